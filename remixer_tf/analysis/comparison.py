"""Runs in the columns of a table: their costs, metrics and differences in gin.

Runs that differ only in their seed share a column. Everything is read from the files of
the runs. No model is built.
"""

import json
import math
import os
import re
import statistics
from types import MappingProxyType
from typing import NamedTuple

from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.errors import UserError
from remixer_tf.evaluation.results import (
    KINDS,
    metrics_by_name,
    own_units,
    read_results,
    with_unit,
)
from remixer_tf.tables import write_table
from remixer_tf.training.progress import format_seconds

# The files of a run, and why one is not there.
_WHY = {
    "operative_config.gin": "its configuration cannot be compared",
    "train_summary.json": "it is still training, or was broken off",
    "best.json": "it has no Checkpointing.best, or no evaluation yet",
}
# The numbers of a run: heading, and a function that shows a value.
SHOWN = {
    "parameters": ("parameters", "{:,}".format),
    "flops_per_step": ("matrix-product FLOPs per step", "{:.2e}".format),
    "flops_per_token": ("matrix-product FLOPs per token", "{:.2e}".format),
    "flops_per_image": ("matrix-product FLOPs per image", "{:.2e}".format),
    "rest_flops_per_step": ("other FLOPs per step", "{:.2e}".format),
    "rest_flops_per_token": ("other FLOPs per token", "{:.2e}".format),
    "rest_flops_per_image": ("other FLOPs per image", "{:.2e}".format),
    "steps": ("steps", "{:,}".format),
    "loss": ("training loss, last log line", "{:.4g}".format),
    "seconds": ("time", format_seconds),
    "steps_per_second": ("steps per second", "{:.3g}".format),
    "decoded_tokens_per_second": ("decoded tokens per second", "{:,.0f}".format),
    "host_memory_gigabytes": ("peak GB of the process", "{:.3g}".format),
    "device_memory_gigabytes": ("peak GB of a device", "{:.3g}".format),
    "best_step": ("step of the best checkpoint", "{:,}".format),
}
# Sections of a run, see `read_run`, that are no numbers of it.
_TEXTS = ("gin", "missing", "unit")


def read_run(folder, read_bindings):
    """Reads the files of a run's folder.

    `read_bindings` returns the bindings, a dictionary of str, of a gin file's path.

    Returns {(section, name): value}. Section "run" has numbers of `SHOWN`, "gin"
    bindings, "missing" reasons. "last", "last_step", "best", "best_step" and "unit"
    have metrics, whose names are (metric, file).
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if not {*_WHY, "eval"}.intersection(names):
        raise UserError(
            f"{folder!r} is not the folder of a run: it has none of "
            f"{', '.join(_WHY)}, eval. Name folders that training wrote, its "
            "--model_dir."
        )
    check_run_version(folder)
    found = {
        ("missing", f"no {name}"): why
        for name, why in _WHY.items()
        if name not in names
    }

    def numbers(name):
        if name not in names:
            return {}
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                values = dict(json.load(file).items())
        except (ValueError, RecursionError, AttributeError):
            found["missing", f"{name} is damaged"] = "it does not count"
            return {}
        if isinstance(left_out := values.get("not_counted"), list):
            what = f"FLOPs of {', '.join(map(str, left_out))}"
            found["missing", what] = (
                "left out, but for Fourier transforms, which other FLOPs have"
            )
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, (int, float)) and abs(value) < 1e30
        }

    summary, best = numbers("train_summary.json"), numbers("best.json")
    if "step" in best:
        summary["best_step"] = best["step"]
    results = {kind: read_results(folder, kind) for kind in KINDS}
    summary |= _decoding_rate(results["metrics"])
    if "metrics.jsonl" in names:
        summary |= _peak_memory(os.path.join(folder, "metrics.jsonl"))
    found |= {("run", name): summary[name] for name in SHOWN if name in summary}
    metrics = _by_metric(results)
    for name, values in sorted(metrics.items()):
        pairs = last_and_best(name[0], values)
        for label, (step, value) in zip(("last", "best"), pairs, strict=True):
            found |= {(label, name): value, (f"{label}_step", name): step}
            if hasattr(value, "unit"):
                found["unit", name] = value.unit
    if not metrics:
        found["missing", "no results in eval"] = "it was never evaluated"
    if "operative_config.gin" in names:
        bindings = read_bindings(os.path.join(folder, "operative_config.gin"))
        found |= {
            ("gin", name): value
            for name, value in bindings.items()
            if not name.endswith("relative_paths.folders")  # where training started
        }
    return found


def by_configuration(runs):
    """Groups runs that differ only in their seed.

    Two runs have the same configuration if their operative_config.gin binds the same
    names to the same values. The seed does not count: `Run.seed`, the macro that it
    names, and SEED. Both must have ended, or neither. A run without that file is alone,
    and so are all runs of a configuration if two have the same seed.

    `runs` is {folder: what `read_run` gives}. Returns {title: list of folders}.
    """
    titles = dict(zip(runs, titles_of(runs), strict=True))
    alike = {}
    for folder, found in runs.items():
        gin = {name: value for (kind, name), value in found.items() if kind == "gin"}
        seed, names = _seed(gin)
        same = frozenset((name, gin[name]) for name in gin.keys() - names)
        ended = ("missing", "no train_summary.json") not in found
        alike.setdefault((same, ended) if gin else folder, {})[folder] = seed
    groups = {}
    for seeds in alike.values():
        once = len({*seeds.values()}) == len(seeds)
        for folders in [list(seeds)] if once else [[folder] for folder in seeds]:
            title = ", ".join(titles[folder] for folder in folders)
            groups[title_of_seeds(title, len(folders))] = folders
    return groups


def seed_of(run):
    """Returns the values of a run's seed, a tuple; () if its gin is not there."""
    gin = {name: value for (kind, name), value in run.items() if kind == "gin"}
    return _seed(gin)[0]


def title_of_seeds(title, number):
    """Returns the title of a column with the number of its seeds."""
    return f"{title} ({number} seeds)" if number > 1 else title


def _seed(gin):
    """Returns the values of a run's seed, a tuple, and the names that stand for it.

    `gin` is {name: value as gin text}.
    """
    names = [name for name in gin if re.split("[/.]", name)[-2:] == ["Run", "seed"]]
    values = []
    for name in names:  # It grows by the macros that it names.
        value = gin.get(name, "")
        if not value.startswith("%"):
            values.append(value)
        elif value[1:] not in names:
            names.append(value[1:])
    return tuple(values), {"SEED", *names}


class Spread(NamedTuple):
    """The mean of a number over runs, and its standard deviation (of n - 1)."""

    mean: float
    deviation: float

    def __format__(self, spec):
        # Two digits of a deviation are enough.
        rough = ".2g" if spec.endswith("g") else spec
        return f"{self.mean:{spec}} ± {self.deviation:{rough}}"


def average(runs):
    """Returns one of several runs, see `read_run`, that differ in their seed.

    A number that differs is a `Spread`, or the mean of the runs' seconds; a binding
    that differs has all values. A number that only some runs have is missing.
    """
    found = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        values = [run[key] for run in runs if key in run]
        if key[0] in ("missing", "unit"):
            found[key] = values[0]
        elif len(values) < len(runs) and key[0] != "gin":  # a macro of the seed
            found["missing", _name(key[1])] = "some seeds do not have it"
        elif len({run.get(("unit", key[1])) for run in runs}) > 1:
            found["missing", _name(key[1])] = "its unit is another for some seeds"
        else:
            found[key] = _average(key, values)
    return found


def _average(key, values):
    if len({*values}) == 1:
        return values[0]
    if key[0] == "gin":
        return ", ".join(values)
    mean, deviation = spread(values)
    if key == ("run", "seconds"):
        return mean
    if all(isinstance(value, int) for value in values):
        return Spread(round(mean), round(deviation))
    return Spread(mean, deviation)


def spread(values):
    """Returns the mean of numbers and their standard deviation (of n - 1)."""
    mean = statistics.mean(values)
    # One of them may be infinite, or NaN.
    return mean, statistics.stdev(values) if math.isfinite(mean) else math.nan


def _decoding_rate(results):
    """Returns the tokens that the last evaluation decoded in a second, as a dictionary.

    `results` are of `DecodedEvaluation`. Empty if none says so.
    """
    names = ("step", "decoded_tokens", "decoding_seconds")
    found = [[result.get(name) for name in names] for result in results]
    found = [row for row in found if all(isinstance(x, (int, float)) for x in row)]
    last = [row for row in found if row[0] == max(row[0] for row in found)]
    seconds = sum(row[2] for row in last)
    if not seconds:
        return {}
    return {"decoded_tokens_per_second": sum(row[1] for row in last) / seconds}


def _peak_memory(path):
    """Returns the peaks in metrics.jsonl: of the process and of a device."""
    peaks = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                values = dict(json.loads(line).items())
            except (ValueError, RecursionError, AttributeError):
                continue  # A kill left it half written.
            for name, value in values.items():
                if name.endswith("_memory_gigabytes") and isinstance(value, float):
                    of = "host" if name.startswith("host_") else "device"
                    name = f"{of}_memory_gigabytes"
                    peaks[name] = max(value, peaks.get(name, 0.0))
    return peaks


def _by_metric(results):
    """Returns {(metric, file): {step: value}} of {kind: results}."""
    metrics = {}
    for kind in KINDS:
        for result in results[kind]:
            for name, value in metrics_by_name(result).items():
                if not isinstance(value, str):
                    steps = metrics.setdefault((name, f"{kind}.json"), {})
                    steps[result["step"]] = value
    return metrics


def last_and_best(name, values):
    """Returns (step, value) of the last and of the best evaluation, from {step: value}.

    The best loss or perplexity is the least, and the best of other metrics the largest.
    The first of equal ones is best, and NaN only if there is nothing else. `name` is
    that of the metric.
    """
    sign = -1 if name.rpartition("/")[2] in ("loss", "perplexity") else 1
    numbers = {step: v for step, v in values.items() if not math.isnan(v)} or values
    best = max(numbers, key=lambda step: (sign * numbers[step], -step))
    return (max(values), values[max(values)]), (best, values[best])


def write_comparison(runs, groups, format, file, failed=MappingProxyType({})):
    """Writes a column for each group of runs.

    `runs` is {folder: what `read_run` gives}, and `groups` {title: list of folders}. A
    group of several runs has means and standard deviations, see `average`. `failed` is
    {name: why} of runs that are in no column: a line for each, in CSV a row of the
    section "missing".

    "text" and "markdown" have tables of numbers, of metrics and of differences in gin,
    and lines about missing files. "csv" is one table with the columns section, name,
    run and value, see `read_run`. It has each run, and then for each group of several
    their number, ("run", "seeds"), and in sections such as "last_mean" and
    "last_deviation" what their numbers are together.
    """
    if format == "csv":
        titles = dict(zip(runs, titles_of(runs), strict=True))
        table = _table({titles[folder]: found for folder, found in runs.items()})
        rows = [
            (section, name, title, value)
            for (section, name), cells in table.items()
            for title, value in cells.items()
        ]
        for title, folders in groups.items():
            if len(folders) > 1:
                rows.append(("run", "seeds", title, len(folders)))
                rows += _spread_rows(title, [runs[folder] for folder in folders])
        rows += [("missing", "run", name, why) for name, why in failed.items()]
        rows = [[section, _name(name), *others] for section, name, *others in rows]
        write_table(file, format, "", ["section", "name", "run", "value"], rows)
        return
    columns = {
        title: average([runs[folder] for folder in folders])
        for title, folders in groups.items()
    }
    table = _table(columns)

    def cells(key, show=str):
        return [show(table[key][t]) if t in table[key] else "" for t in columns]

    rows = [
        [heading, *cells(("run", name), show)]
        for name, (heading, show) in SHOWN.items()
        if ("run", name) in table
    ]
    write_table(file, format, "", ["", *columns], rows)
    metrics = []
    for name in sorted(name for section, name in table if section == "last"):
        last = table["last", name]
        firsts = [
            runs[folder].get(("last", name)) if title in last else None
            for title, (folder, *_) in groups.items()
        ]
        units = own_units(*firsts)
        for label in ("last", "best"):
            values = cells((label, name), "{:.4g}".format)
            steps = cells((f"{label}_step", name), " at {:,}".format)
            texts = map("".join, zip(values, units, steps, strict=True))
            metrics.append([with_unit(name[0], *firsts), name[1], label, *texts])
    if metrics:
        header = ["metric", "file", "", *columns]
        write_table(file, format, "Metrics", header, metrics, labels=3)
    rows = [[key[1], *cells(key)] for key in sorted(table) if key[0] == "gin"]
    if rows:
        title = "What differs in gin (empty: not set)"
        header = ["binding", *columns]
        write_table(file, format, title, header, rows, labels=len(header))
    elif sum(_has_gin(found) for found in columns.values()) > 1:
        file.write("\nNothing differs in gin.\n")
    missing = [
        (f"{title}: {name}", why)
        for title, found in columns.items()
        for (section, name), why in found.items()
        if section == "missing"
    ]
    write_missing(dict(missing) | dict(failed), format, file)


def write_missing(found, format, file):
    """Writes {name: why} below a table, in a line each."""
    bullet = "- " if format == "markdown" else ""
    lines = [f"{bullet}{name}: {why}\n" for name, why in found.items()]
    file.write("".join(["\n"] * bool(lines) + lines))


def _name(name):
    """A name of `read_run` as text: that of a metric is (metric, file)."""
    return name if isinstance(name, str) else "{} ({})".format(*name)


def _table(columns):
    """Returns {(section, name): {title: value}}, of bindings those that differ."""
    table = {}
    for title, found in columns.items():
        for key, value in found.items():
            table.setdefault(key, {})[title] = value
    configured = [title for title, found in columns.items() if _has_gin(found)]
    return {
        key: cells
        for key, cells in table.items()
        if key[0] != "gin" or len({cells.get(title) for title in configured}) > 1
    }


def _has_gin(found):
    return any(section == "gin" for section, _ in found)


def _spread_rows(title, runs):
    """Yields (section, name, title, value) of what numbers of runs are together."""
    for section, name in runs[0]:
        values = [run[section, name] for run in runs if (section, name) in run]
        one_unit = len({run.get(("unit", name)) for run in runs}) == 1
        if section not in _TEXTS and len(values) == len(runs) and one_unit:
            mean, deviation = spread(values)
            yield f"{section}_mean", name, title, mean
            yield f"{section}_deviation", name, title, deviation


def titles_of(folders):
    """Returns the last part of each folder's name, or the folders if two share it."""
    folders = [os.path.normpath(folder) for folder in folders]
    names = [os.path.basename(folder) for folder in folders]
    return names if len({*names}) == len(names) else folders
