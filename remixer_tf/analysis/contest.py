"""Contestants by one metric: means over seeds, intervals, differences, a plot."""

import collections
import itertools
import math
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from remixer_tf import console
from remixer_tf.analysis.comparison import SHOWN, seed_of, spread, write_missing
from remixer_tf.errors import StorageError, UserError, nearest, shorten
from remixer_tf.evaluation.results import with_unit
from remixer_tf.tables import write_table

_DRAWS = 10_000  # samples with replacement, of a bootstrap
_MARKERS = "os^D"
_COSTS = ("flops_per_token", "flops_per_image", "flops_per_step")
# What runs measured, shown as means over a contestant's runs.
_MEASURED = (
    "steps_per_second",
    "decoded_tokens_per_second",
    "host_memory_gigabytes",
    "device_memory_gigabytes",
)
_HEADER = {
    "contestant": "contestant",
    "seeds": "seeds",
    "step": "step",
    "mean": "mean",
    "deviation": "deviation",
    "interval": "95% interval",
    "difference": "difference",
    "difference_interval": "95% interval of the difference",
    "paired_seeds": "paired seeds",
    "parameters": "parameters",
}


class Contestant(NamedTuple):
    """Runs that differ in their seed alone.

    Attributes:
        title: str.
        values: {seed: float}, the last value of the metric.
        parameters: int, or None.
        flops: float, of matrix products, or None.
        steps: the steps at which the values were measured, sorted; () if unknown.
        others: {name: float}, other numbers of the table: the FLOPs that `flops` leaves
            out, and what the runs measured, means over those that have them.
    """

    title: str
    values: dict
    parameters: float | None
    flops: float | None
    steps: Sequence = ()
    others: Mapping = MappingProxyType({})


def contestants(runs, groups, metric):
    """Reads the contestants of groups of runs, by the last value of a metric.

    Args:
        runs: {folder: what `comparison.read_run` gives}.
        groups: {title: list of folders}.
        metric: str, as `compare` prints it: "cogs/test/loss", or "cogs/test/accuracy
            (metrics.json)" where two files have it.

    Returns:
        list of `Contestant`, and what their FLOPs belong to, a str such as
        "flops_per_token".

    Raises:
        UserError: a run lacks the metric, as one of another task does, two files have
            it, or runs have it in several units.
    """
    key = _key(runs, metric)
    cost = next((x for x in _COSTS if all(("run", x) in r for r in runs.values())), "")

    def mean(folders, name):
        there = [x for f in folders if (x := runs[f].get(("run", name))) is not None]
        return statistics.mean(there) if there else None

    found = []
    for title, folders in _by_title(groups).items():
        values = {seed_of(runs[x]) or x: runs[x]["last", key] for x in folders}
        steps = sorted({runs[x]["last_step", key] for x in folders})
        sizes = mean(folders, "parameters"), mean(folders, cost)
        means = {name: mean(folders, name) for name in (f"rest_{cost}", *_MEASURED)}
        others = {name: x for name, x in means.items() if x is not None}
        found.append(Contestant(title, values, *sizes, steps, others))
    return found, cost


def lacking(runs, groups):
    """Returns {name: why} of what the numbers of contestants leave out.

    Such are operations without a count, and damaged files. The arguments are those of
    `contestants`.
    """
    return {
        f"{title}: {name}": why
        for title, folders in _by_title(groups).items()
        for folder in folders
        for (section, name), why in runs[folder].items()
        if section == "missing" and name != "no best.json"  # no column shows it
    }


def unequal_steps(found):
    """Returns {name: why} if `contestants` have values of several steps, else {}."""
    if len({step for contestant in found for step in contestant.steps}) < 2:
        return {}
    steps = (f"{x.title} at {_range(x.steps)}" for x in found)
    return {"the last results are of unequal steps": ", ".join(steps)}


def _by_title(groups):
    """Returns {title without the number of seeds: folders}.

    It is what is left of a sweep's folders, if that is one name and of one group alone.
    """
    full = {title: re.sub(r" \(\d+ seeds\)$", "", title) for title in groups}
    short = {title: _name(folders) or full[title] for title, folders in groups.items()}
    times = collections.Counter(short.values())
    return {
        (short if times[short[title]] == 1 else full)[title]: folders
        for title, folders in groups.items()
    }


def _name(folders):
    """What is left of a sweep's folders without seeds; None if it is not one name."""
    names = {re.sub(r",?seed=\d+$", "", os.path.basename(x)) for x in folders}
    (name, *others) = names
    if name and not others and os.path.basename(folders[0]) != name:
        return name
    return None


def _key(runs, metric):
    """The (name, file) of the metric, which all runs have."""
    names = {key for run in runs.values() for kind, key in run if kind == "last"}
    said = {f"{name} ({file})": (name, file) for name, file in names}
    files = [key for key in sorted(names) if key[0] == metric]
    if len(files) > 1:
        raise UserError(
            f"{metric} is in {' and '.join(file for _, file in files)}. Write "
            f"--metric='{metric} ({files[0][1]})'."
        )
    key = said.get(metric, files[0] if files else None)
    if not names:
        raise UserError(
            "no run has results of an evaluation. Train with train.evaluations = "
            "[@LossEvaluation()], or evaluate: remixer_tf eval --model_dir=RUN."
        )
    if key is None:
        known = sorted({name for name, _ in names})
        raise UserError(
            f"no run has the metric {metric!r}.{nearest(metric, known)} They have: "
            f"{shorten(known)}."
        )
    for folder, run in runs.items():
        own = sorted(name for kind, (name, *_) in run if kind == "last")
        if not own:
            raise UserError(
                f"{folder} has no results of an evaluation. Leave it out, or evaluate "
                f"it: remixer_tf eval --model_dir={folder}."
            )
        if ("last", key) not in run:
            raise UserError(
                f"{folder} has no {key[0]}, and contestants in one table have one "
                f"task. It has: {shorten(own)}."
            )
    folders = {run.get(("unit", key)): folder for folder, run in runs.items()}
    if len(folders) > 1:
        said = [f"{unit or 'no unit'} in {folders[unit]}" for unit in folders]
        raise UserError(
            f"{key[0]} has {', and '.join(said)}: they cannot be compared. Evaluate "
            "again what has the wrong one: remixer_tf eval --force --model_dir=RUN."
        )
    return key


def interval(values):
    """The 95% interval of the mean, by the percentile bootstrap; None of one value.

    Resampling few seeds gives an interval inside of their range: three seeds say how
    far apart they are, and no more.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    drawn = np.random.default_rng(0).choice(values, (_DRAWS, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def differences(contestant, other):
    """The values less the other's, of the seeds that both have, a list."""
    both = [seed for seed in contestant.values if seed in other.values]
    return [contestant.values[seed] - other.values[seed] for seed in both]


def _summary(contestant, first):
    """{column: number, (low, high) or None} of a contestant next to the first."""
    values = [*contestant.values.values()]
    mean, deviation = spread(values) if len(values) > 1 else (values[0], None)
    apart = [] if contestant is first else differences(contestant, first)
    return {
        "contestant": contestant.title,
        "seeds": len(values),
        "step": _range(contestant.steps),
        "mean": mean,
        "deviation": deviation,
        "interval": interval(values),
        "difference": statistics.mean(apart) if apart else None,
        "difference_interval": interval(apart),
        "paired_seeds": len(apart) or None,
        "parameters": contestant.parameters,
    }


def _range(steps):
    """The least and the largest step: runs may have trained for other times."""
    return " to ".join(str(step) for step in dict.fromkeys((*steps[:1], *steps[-1:])))


def write_contest(
    found,
    cost,
    metric,
    format,
    file,
    failed=MappingProxyType({}),
    lacks=MappingProxyType({}),
):
    """Writes a table of `contestants`, differences being from the first.

    `failed` is {name: why} of runs that are in no row: a line for each, in CSV a row of
    0 seeds. `lacks` is what `lacking` gives: a line for each, in CSV a warning.
    """
    first = found[0]
    rows = [_summary(x, first) | {cost: x.flops} | x.others for x in found]
    others = [f"rest_{cost}", *_MEASURED]
    names = [*_HEADER, *[cost] * bool(cost)]
    names += [name for name in others if any(name in x.others for x in found)]
    if format == "csv":
        header = []
        for name in names:
            pair = name.endswith("interval")
            header += [f"{name}_low", f"{name}_high"] if pair else [name]
        cells = [[_csv(row.get(name), name) for name in names] for row in rows]
        cells = [sum(row, []) for row in cells]
        cells += [[name, 0, *[""] * (len(header) - 2)] for name in failed]
        write_table(file, format, "", header, cells)
        for name, why in lacks.items():
            console.say(f"{name}: {why}", "warning", sys.stderr)
        return
    known = _HEADER | {name: SHOWN[name][0] for name in _MEASURED}
    header = [known.get(name, name.replace("_", " ")) for name in names]
    metric = with_unit(metric, *(x for one in found for x in one.values.values()))
    title = f"{metric}: differences are from {first.title}"
    cells = [[_text(row.get(name), name) for name in names] for row in rows]
    write_table(file, format, title, header, cells)
    write_missing({**lacks, **failed}, format, file)


def _csv(value, name):
    if name.endswith("interval"):
        return ["", ""] if value is None else [*value]
    return ["" if value is None else value]


def _text(value, name):
    if value is None:
        return ""
    if name.endswith("interval"):
        return "{:.4g} to {:.4g}".format(*value)
    if name == "parameters":
        return f"{value:,}"
    if name == "difference":
        return f"{value:+.4g}"
    if name in _MEASURED or "flops" in name:
        return f"{value:.3g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_contest(found, cost, metric, path):
    """Draws the metric over FLOPs, or parameters if FLOPs are not known, into a file.

    A point has the 95% interval of its mean. A warning names contestants without a
    finite metric, which have no point; without any point there is no file. Raises a
    UserError if neither cost is known of all contestants, and a StorageError if the
    file cannot be written.
    """
    from matplotlib.figure import Figure  # late: slow to import

    label, places = cost_axis(found, cost)
    if None in places:
        lack = [x.title for x, at in zip(found, places, strict=True) if at is None]
        raise UserError(
            f"--plot={path} needs the FLOPs or parameters of all runs. Those of "
            f"{', '.join(lack)} have no whole train_summary.json, which training "
            "writes at its end. Train them to their end, or leave them out."
        )
    finite = [all(map(math.isfinite, x.values.values())) for x in found]
    if not all(finite):
        names = [x.title for x, there in zip(found, finite, strict=True) if not there]
        lacks = f"lacks {', '.join(names)}" if any(finite) else "is not drawn"
        text = f"{path} {lacks}: {metric} is not finite."
        console.say(text, "warning", sys.stderr)  # Output may be the table.
    if not any(finite):
        return
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axis = figure.subplots()
    titles = [contestant.title for contestant in found]
    found, places = ([*itertools.compress(x, finite)] for x in (found, places))
    draw_points(axis, found, places, titles)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    values = [x for one in found for x in one.values.values()]
    axis.set(xlabel=label, ylabel=with_unit(metric, *values))
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"--plot={path} cannot be written: {error}.") from error


def cost_axis(found, cost):
    """Returns the name of what `draw_contest` draws over, and each contestant's value.

    It is all FLOPs, or those of matrix products if runs have no others, or parameters.
    """
    if not cost:
        return "parameters", [x.parameters for x in found]
    name, flops = cost.replace("_", " "), [x.flops for x in found]
    rest = [x.others.get(f"rest_{cost}") for x in found]
    if None in rest:
        return name.replace("flops", "FLOPs of matrix products"), flops
    return name.replace("flops", "FLOPs"), [*map(sum, zip(flops, rest, strict=True))]


def draw_points(axis, found, places, titles=None, **style):
    """Draws a point for each of `contestants`, with the 95% interval of its mean.

    Args:
        axis: of matplotlib; its scale is logarithmic for places that are far apart.
        found: list of `Contestant`.
        places: list of float, where each one stands.
        titles: list of str, to which colours and markers belong in several plots; None
            for those found.
        style: what `axis.errorbar` takes too.
    """
    titles = titles or [contestant.title for contestant in found]
    for place, contestant in zip(places, found, strict=True):
        i = titles.index(contestant.title)
        values = [*contestant.values.values()]
        mean = statistics.mean(values)
        low, high = interval(values) or (mean, mean)
        given = {
            "fmt": _MARKERS[i // 10 % len(_MARKERS)],  # There are 10 colours.
            "color": f"C{i % 10}",
            "capsize": 3,
            "label": contestant.title,
        }
        axis.errorbar([place], [mean], [[mean - low], [high - mean]], **given | style)
    if max(places) > 3 * min(places) > 0:
        axis.set_xscale("log")
