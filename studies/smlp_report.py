"""The results of `studies.smlp`: tables, answers and a picture."""

import math
import statistics

import numpy as np

from remixer_tf.tables import markdown
from studies import runs
from studies.smlp_models import MODELS, QUESTIONS

_REFERENCE = "smlp"  # to whose step the others' are compared


class Comparison:
    """Runs of several models, against steps and against time.

    Args:
        results: dictionary of models' names to lists of what `runs.train` returns.
        times: dictionary of names to {"flops_per_token": float, "seconds": list of
            floats, of a step in each round}.

    Attributes:
        steps: int, the steps that all runs have taken.
        seconds_per_step: dictionary of names to floats, medians over the rounds.
        seconds: float, the time of the quickest model for `steps` steps.
        by_steps, by_time: dictionaries of names to lists of losses, one for each run,
            after `steps` and after `seconds`.
    """

    def __init__(self, results, times):
        self.results, self.times = results, times
        self.steps = min(run["steps"] for found in results.values() for run in found)
        self.seconds_per_step = {
            name: statistics.median(times[name]["seconds"]) for name in results
        }
        self.seconds = self.steps * min(self.seconds_per_step.values())
        self.by_steps, self.by_time = {}, {}
        for name, found in results.items():
            steps = self.seconds / self.seconds_per_step[name]
            self.by_steps[name] = [_loss_after(run, self.steps) for run in found]
            self.by_time[name] = [_loss_after(run, steps) for run in found]

    def table(self):
        """Perplexities, costs and sizes next to the paper's, in Markdown."""
        rows = []
        for name, found in self.results.items():
            model, times = MODELS[name], self.times[name]
            rows.append(
                [
                    name,
                    model.perplexity or "–",
                    _perplexity(self.by_steps[name]),
                    _perplexity(self.by_time[name]),
                    f"{model.words}k" if model.words else "–",
                    f"{1000 * self.seconds_per_step[name]:.1f}",
                    self._ratio(name),
                    f"{times['flops_per_token'] / 1e6:.3f}",
                    f"{found[0]['parameters']:,}",
                    *(
                        f"{statistics.mean(run[key] for run in found):.0f}"
                        for key in ("cpu_seconds", "seconds")
                    ),
                ]
            )
        return markdown(
            [
                "model",
                "paper's perplexity",
                f"ours after {self.steps:,} steps",
                f"ours after {self.seconds:.0f} s",
                "paper's words/s",
                "ms a step",
                f"of {_REFERENCE}'s",
                "MFLOP a token in training",
                "parameters",
                "CPU seconds a run",
                "seconds a run",
            ],
            rows,
        )

    def _ratio(self, name):
        if _REFERENCE not in self.times:
            return "–"
        pairs = zip(
            self.times[name]["seconds"], self.times[_REFERENCE]["seconds"], strict=True
        )
        return f"{statistics.median(ours / other for ours, other in pairs):.2f}"

    def loads(self):
        """The mixtures' statistics of the last log period, in Markdown.

        All are means over steps, the largest share of the load too. Steps in which the
        load is uneven show first in "dropped" and "unused".
        """
        rows = {}  # (model, layer) -> {statistic: values of the runs}
        for name, found in self.results.items():
            for run in found:
                for path, curve in run["statistics"].items():
                    _, _, *layer, statistic = path.split("/")
                    layer = "/".join(layer).removesuffix("/router")
                    row = rows.setdefault((name, layer), {})
                    row.setdefault(statistic, []).append(curve[-1][1])
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        return markdown(
            ["model", "layer", *(column.replace("_", " ") for column in columns)],
            [
                [
                    *place,
                    *(
                        f"{statistics.mean(row[column]):.3g}" if column in row else ""
                        for column in columns
                    ),
                ]
                for place, row in rows.items()
            ],
        )

    def answers(self):
        """The questions, and what the runs say to them, in Markdown."""
        rows = [
            [
                question,
                f"{better} better than {worse}",
                runs.verdict_text(self.by_steps[better], self.by_steps[worse]),
                runs.verdict_text(self.by_time[better], self.by_time[worse]),
            ]
            for question, pairs in QUESTIONS.items()
            for better, worse in pairs
            if {better, worse} <= set(self.results)
        ]
        return markdown(["question", "", "at equal FLOPs", "at equal time"], rows)

    def draw(self, path):
        """Draws perplexity against steps and time, and what is dropped, as a PNG.

        A line is the mean over the runs; the band is from the best to the worst run.
        Lines of models without experts are dashed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 4.6), layout="constrained")
        by_steps, by_time, dropped = figure.subplots(1, 3)
        for i, (name, found) in enumerate(self.results.items()):
            mixture = bool(found[0]["statistics"])
            style = {"color": f"C{i % 10}", "linestyle": "-" if mixture else "--"}
            steps = np.array([e["step"] for e in found[0]["evaluations"]])
            values = np.array(
                [[math.exp(_loss_after(run, step)) for step in steps] for run in found]
            )
            for axis, x in (
                (by_steps, steps),
                (by_time, steps * self.seconds_per_step[name]),
            ):
                axis.plot(x, values.mean(0), label=name, **style)
                axis.fill_between(
                    x, values.min(0), values.max(0), color=style["color"], alpha=0.15
                )
            curves = [
                curve
                for run in found
                for path_, curve in run["statistics"].items()
                if path_.endswith("/dropped")
            ]
            if curves:
                curves = np.array(curves)
                dropped.plot(
                    curves[0, :, 0], curves[:, :, 1].mean(0), label=name, **style
                )
        by_time.axvline(self.seconds, color="grey", linewidth=0.8, linestyle=":")
        by_steps.set(xlabel="steps", ylabel="perplexity of a byte")
        by_time.set(xlabel="seconds of one core", ylabel="perplexity of a byte")
        dropped.set(xlabel="steps", ylabel="share of choices dropped")
        for axis in (by_steps, dropped):
            axis.legend(fontsize=7)
        for axis in (by_steps, by_time, dropped):
            axis.grid(alpha=0.3)
        figure.savefig(path, dpi=90)


def _loss_after(run, step):
    """A run's validation loss after `step` steps, on lines between evaluations."""
    points = [(e["step"], e["loss"]) for e in run["evaluations"]]
    return float(np.interp(step, *zip(*points, strict=True)))


def _perplexity(losses):
    values = [math.exp(loss) for loss in losses]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"
