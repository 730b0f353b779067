"""Runs side by side: what they cost, how good they are, and what differs in their gin.

Everything is read from the files of the runs; no model is built.
"""

import csv
import json
import math
import os

from remixer_tf.analysis.tables import write_table
from remixer_tf.errors import UserError
from remixer_tf.evaluation.results import metrics_by_name, read_results
from remixer_tf.training.progress import format_seconds

# The files of a run, and why one is not there.
_WHY = {
    "operative_config.gin": "its configuration cannot be compared",
    "train_summary.json": "it is still training, or was broken off",
    "best.json": "it has no Checkpointing.best, or no evaluation yet",
}
# Metrics of which less is better, by the last part of their name.
_LESS_IS_BETTER = {"loss", "perplexity"}


class Run:
    """What the folder of a run tells.

    Args:
        folder: str.
        read_bindings: a function from the path of a gin file to its bindings, a
            dictionary of str to str.

    Attributes:
        folder: str.
        numbers: dictionary of what it took, see `_numbers`; unknown ones are left out.
        metrics: dictionary from (name, file) to {step: value}, such as
            ("mini_cogs/test/loss", "loss.json"): {1000: 0.5}.
        bindings: what `read_bindings` gives; empty if there is no file.
        missing: list of str, what is not there and why.

    Raises:
        ValueError: the folder is not a run's.
    """

    def __init__(self, folder, read_bindings):
        self.folder = folder
        names = os.listdir(folder) if os.path.isdir(folder) else []
        if not {*_WHY, "eval"}.intersection(names):
            raise UserError(
                f"{folder!r} is not the folder of a run: it has none of "
                f"{', '.join(_WHY)}, eval. Name folders that training wrote, its "
                "--model_dir."
            )
        self.missing = [
            f"no {name}: {why}" for name, why in _WHY.items() if name not in names
        ]
        self.numbers = _numbers(
            self._json("train_summary.json"), self._json("best.json")
        )
        self.metrics = {}
        for kind in ("metrics", "loss", "score"):
            for result in read_results(folder, kind):
                for name, value in metrics_by_name(result).items():
                    if not isinstance(value, str) and not math.isnan(value):
                        steps = self.metrics.setdefault((name, f"{kind}.json"), {})
                        steps[result["step"]] = value
        if not self.metrics:
            self.missing.append("no results in eval: it was never evaluated")
        self.bindings = {}
        if "operative_config.gin" in names:
            self.bindings = read_bindings(os.path.join(folder, "operative_config.gin"))

    def _json(self, name):
        """The numbers in a file; {} where it is missing or damaged."""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return {}
        try:
            with open(path, encoding="utf-8") as file:
                pairs = json.load(file).items()
        except (ValueError, RecursionError, AttributeError):
            self.missing.append(f"{name} is damaged: it does not count")
            return {}
        return {k: v for k, v in pairs if isinstance(v, (int, float)) and abs(v) < 1e30}


def _numbers(summary, best):
    """What train_summary.json and best.json tell, in the order of `_SHOWN`."""
    numbers = dict(summary)
    for unit in ("token", "image"):  # of an earlier version
        if rate := summary.get(f"{unit}s_per_second"):
            flops = summary.get("flops_per_second", 0) / rate
            numbers.setdefault(f"flops_per_{unit}", flops)
    if "step" in best:
        numbers["best_step"] = best["step"]
    return {name: numbers[name] for name in _SHOWN if name in numbers}


# Columns of numbers: heading, and how to show a value.
_SHOWN = {
    "parameters": ("parameters", "{:,}".format),
    "flops_per_step": ("FLOPs per step", "{:.2e}".format),
    "flops_per_token": ("FLOPs per token", "{:.2e}".format),
    "flops_per_image": ("FLOPs per image", "{:.2e}".format),
    "steps": ("steps", "{:,}".format),
    "seconds": ("time", format_seconds),
    "steps_per_second": ("steps per second", "{:.3g}".format),
    "best_step": ("step of the best checkpoint", "{:,}".format),
}


def last_and_best(name, values):
    """Returns (step, value) of the last and of the best evaluation, from {step: value}.

    Less is better for a loss and a perplexity, more for all else. Of equals, the first.
    """
    sign = -1 if name.rpartition("/")[2] in _LESS_IS_BETTER else 1
    best = max(values, key=lambda step: (sign * values[step], -step))
    return (max(values), values[max(values)]), (best, values[best])


def different_bindings(runs):
    """Returns {name: [a run's value or None]} of what is not equal in all runs.

    Runs without a configuration do not count; theirs is None.
    """
    known = [run.bindings for run in runs if run.bindings]
    names = sorted(set().union(*known))
    return {
        name: [run.bindings.get(name) for run in runs]
        for name in names
        if len({bindings.get(name) for bindings in known}) > 1
    }


def write_comparison(runs, format, file):
    """Writes runs side by side.

    'text' and 'markdown' have tables of numbers, of metrics and of gin with a column
    for each run, and lines that tell what is missing. 'csv' is one long table with the
    columns section, name, run, value; sections are run, last, last_step, best,
    best_step, gin and missing.

    Args:
        runs: list of `Run`.
        format: one of `remixer_tf.analysis.tables.FORMATS`.
        file: a text file to write to.
    """
    titles = _titles(runs)
    if format == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["section", "name", "run", "value"])
        writer.writerows(_long_rows(runs, titles))
        return
    write_table(file, format, "", ["", *titles], _rows_of_numbers(runs))
    if metrics := _rows_of_metrics(runs):
        header = ["metric", "file", "", *titles]
        write_table(file, format, "Metrics", header, metrics, labels=3)
    if bindings := different_bindings(runs):
        rows = [[n, *(v or "" for v in values)] for n, values in bindings.items()]
        title = "What differs in gin (empty: not set)"
        header = ["binding", *titles]
        write_table(file, format, title, header, rows, labels=len(header))
    elif sum(bool(run.bindings) for run in runs) > 1:
        file.write("\nNothing differs in gin.\n")
    lines = [
        f"{title}: {text}"
        for title, run in zip(titles, runs, strict=True)
        for text in run.missing
    ]
    bullet = "- " if format == "markdown" else ""
    file.write("".join(["\n"] * bool(lines) + [f"{bullet}{x}\n" for x in lines]))


def _titles(runs):
    """The last part of each folder's name, or the folder where two share it."""
    folders = [os.path.normpath(run.folder) for run in runs]
    names = [os.path.basename(folder) for folder in folders]
    return names if len({*names}) == len(names) else folders


def _rows_of_numbers(runs):
    rows = []
    for name, (heading, show) in _SHOWN.items():
        cells = [show(r.numbers[name]) if name in r.numbers else "" for r in runs]
        if any(cells):
            rows.append([heading, *cells])
    return rows


def _rows_of_metrics(runs):
    rows = []
    for key in sorted({key for run in runs for key in run.metrics}):
        found = [
            last_and_best(key[0], run.metrics[key]) if key in run.metrics else None
            for run in runs
        ]
        for i, label in enumerate(("last", "best")):
            cells = (f"{p[i][1]:.4g} at {p[i][0]:,}" if p else "" for p in found)
            rows.append([*key, label, *cells])
    return rows


def _long_rows(runs, titles):
    for title, run in zip(titles, runs, strict=True):
        for name, value in run.numbers.items():
            yield "run", name, title, value
        for (name, file), values in sorted(run.metrics.items()):
            pairs = last_and_best(name, values)
            for label, (step, value) in zip(("last", "best"), pairs, strict=True):
                yield label, f"{name} ({file})", title, value
                yield f"{label}_step", f"{name} ({file})", title, step
    for name, values in different_bindings(runs).items():
        for title, value in zip(titles, values, strict=True):
            if value is not None:
                yield "gin", name, title, value
    for title, run in zip(titles, runs, strict=True):
        for text in run.missing:
            name, _, why = text.partition(": ")
            yield "missing", name, title, why
