"""Results of evaluation: files in the folder of a run, TensorBoard, a table.

- eval/<task>/<split>/<step>/predictions.jsonl: a line for each decoded example
- eval/<task>/<split>/<step>/metrics.json: metrics of these predictions
- eval/<task>/<split>/<step>/scores.jsonl: the likelihood of each target
- eval/<task>/<split>/<step>/score.json: metrics of these scores
- eval/<task>/<split>/<step>/loss.json: loss with the targets given
- tensorboard/train/eval/<task>/<split>: numbers, and the first examples

A number that is not finite is null in these files, and is read as NaN.

An evaluation with a name writes to eval/<name>/<task>, below tensorboard/train too.
"""

import contextlib
import json
import math
import os
import sys

import tensorflow as tf

from remixer_tf import console, tables
from remixer_tf.checkpoints.whole_folder import finite, whole_file, write_json
from remixer_tf.errors import StorageError
from remixer_tf.training.run_files import append_metrics, summary_writer

KINDS = ("metrics", "loss", "score")  # of results, the names of their files
_SHOWN_EXAMPLES = 5


def write_examples(model_dir, result, records, name, columns):
    """Writes a line of JSON for each dictionary of `records`, an example of a result.

    A result has evaluation, task, split and step, and `name` is the file's. Returns the
    first records as a table in Markdown, with the keys `columns`.
    """
    rows = []
    with _writing(model_dir, result) as folder:
        with (
            whole_file(os.path.join(folder, name)) as place,
            tf.io.gfile.GFile(place, "w") as file,
        ):
            for number, record in enumerate(records):
                text = json.dumps(finite(record), ensure_ascii=False)
                file.write(f"{text}\n")
                if number < _SHOWN_EXAMPLES:
                    rows.append([record[column] for column in columns])
    return tables.markdown(columns, rows)


def write_result(model_dir, kind, result, examples=None):
    """Writes a result as <kind>.json, to TensorBoard and to metrics.jsonl.

    A result is a dictionary with evaluation, task, split, step and metrics. Its `units`
    are a dictionary of str, for the metrics that have a unit. Its kind is one of
    `KINDS`: "metrics" of decoded answers, "loss" or "score". `examples` comes from
    `write_examples`.
    """
    with _writing(model_dir, result) as folder:
        curves = os.path.join("eval", *result_names(result))
        writer = summary_writer(model_dir, curves)
        with writer.as_default(result["step"]):
            for name, value in result["metrics"].items():
                if not isinstance(value, str):
                    tf.summary.scalar(f"eval/{name}", value)
            if examples:
                tf.summary.text("eval/examples", examples)
        writer.flush()
        append_metrics(model_dir, result["step"], metrics_by_name(result))
        # Last, since it says that all is there.
        write_json(os.path.join(folder, f"{kind}.json"), result)


@contextlib.contextmanager
def _writing(model_dir, result):
    """Makes the folder of a result. Errors of the file system are one message."""
    folder = _result_folder(model_dir, result)
    try:
        tf.io.gfile.makedirs(folder)
        yield folder
    except (OSError, tf.errors.OpError) as error:
        raise StorageError(
            f"Results cannot be written to {folder}: "
            f"{getattr(error, 'message', error)}. Is the disk full, or the folder not "
            "writable?"
        ) from None


def read_results(model_dir, kind="metrics"):
    """Returns the list of results of a kind in the folder of a run."""
    # Not by a glob pattern: names of folders may have its characters.
    walk = tf.io.gfile.walk(os.path.join(model_dir, "eval"))
    folders = sorted(folder for folder, _, names in walk if f"{kind}.json" in names)
    paths = (os.path.join(folder, f"{kind}.json") for folder in folders)
    return [result for path in paths if (result := _read_result(model_dir, path))]


def read_result(model_dir, kind, identity):
    """Returns the result with this evaluation, task, split and step, or None."""
    path = os.path.join(_result_folder(model_dir, identity), f"{kind}.json")
    return _read_result(model_dir, path) if tf.io.gfile.exists(path) else None


def read_records(model_dir, result, name="predictions.jsonl"):
    """Returns the records that `write_examples` wrote, a list of dictionaries."""
    path = os.path.join(_result_folder(model_dir, result), name)
    try:
        with tf.io.gfile.GFile(path) as file:
            return [json.loads(line) for line in file]
    except (ValueError, RecursionError, tf.errors.OpError) as error:
        raise StorageError(
            f"{path} cannot be read: {getattr(error, 'message', error)}. "
            "remixer_tf eval --force writes it again."
        ) from None


def _read_result(model_dir, path):
    """Returns the result of a file. A damaged file is logged and gives None."""
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    try:
        result = _as_written_today(json.loads(text), os.path.basename(path))
        known = type(result["step"]) is int and isinstance(result.get("key", {}), dict)
        # Names other than those of its folder could lead out of the run.
        known &= _result_folder(model_dir, result) == os.path.dirname(path)
        metrics = result["metrics"]
        known &= all(isinstance(v, (int, float, str)) for v in metrics.values())
        units = result.get("units", {})
        metrics |= {name: _Measured(metrics[name], units[name]) for name in units}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        text = f"{path} is damaged and does not count."
        console.say(text, "warning", sys.stderr)  # Output may be a table.
    return result if known else None


def _as_written_today(result, file):
    """NaN for null, and a name for the accuracy that loss.json had before: its unit."""
    metrics = result["metrics"]
    metrics |= {name: math.nan for name, value in metrics.items() if value is None}
    if file == "loss.json" and "accuracy" in metrics:
        new = "image_accuracy" if "images" in result else "token_accuracy"
        names = {name: new if name == "accuracy" else name for name in metrics}
        result["metrics"] = {names[name]: value for name, value in metrics.items()}
    return result


def result_names(result):
    """Returns the list of evaluation (if named), task and split of a result."""
    names = (result.get("evaluation"), result["task"], result["split"])
    return [name for name in names if name]


def metrics_at(model_dir, step):
    """Returns {"name/task/split/metric": value} of all results of a step.

    If results of several kinds have a metric of the same name, as evaluations of
    different days may, the name of its file follows: "toy/dev/f1 (score.json)".
    """
    found = {}  # {name: {kind: value}}
    for kind in KINDS:
        for result in read_results(model_dir, kind):
            for name, value in metrics_by_name(result).items():
                if result["step"] == step:
                    found.setdefault(name, {})[kind] = value
    return {
        name if len(values) == 1 else f"{name} ({kind}.json)": value
        for name, values in found.items()
        for kind, value in values.items()
    }


class _Measured(float):
    """A number of a file, and its `unit`, a str."""

    def __new__(cls, value, unit=""):
        self = super().__new__(cls, value)
        self.unit = unit
        return self


def with_unit(name, *values):
    """Returns the name of metrics with the unit of all values, such as "em (%)".

    None is no value. If values have several units, the name has none: see `own_units`.
    """
    units = {_unit(value) for value in values if value is not None}
    return name + _in_brackets(*units) if len(units) == 1 else name


def own_units(*values):
    """Returns what follows each value: nothing if the name has the unit of all."""
    units = [value if value is None else _unit(value) for value in values]
    alone = len({unit for unit in units if unit is not None}) > 1
    return [_in_brackets(unit) if alone else "" for unit in units]


def _unit(value):
    return getattr(value, "unit", "")


def _in_brackets(unit):
    return f" ({unit})" if unit else ""


def metrics_by_name(result):
    """Returns {"name/task/split/metric": value} of a result, see `Best`.

    A value that has a unit keeps it, see `with_unit`.
    """
    return {
        "/".join([*result_names(result), metric]): value
        for metric, value in result["metrics"].items()
    }


def _result_folder(model_dir, result):
    return os.path.join(model_dir, "eval", *result_names(result), str(result["step"]))


def print_table(name, step, results):
    """Prints the splits of a task, {split: result}, next to each other."""
    if console.is_json():
        for split, result in results.items():
            fields = {"step": step, "task": name, "split": split}
            for metric, value in result["metrics"].items():
                taken = metric in (*console.KEYS, *fields)
                fields[f"{name}/{split}/{metric}" if taken else metric] = value
            console.say(f"{name} {split} at step {step}", "result", fields=fields)
        return
    title, header = f"{name} at step {step}", ["metric", *results]
    results, rows = results.values(), []
    for name in dict.fromkeys(n for r in results for n in r["metrics"]):
        values = [r["metrics"].get(name) for r in results]
        cells = map("".join, zip(map(_cell, values), own_units(*values), strict=True))
        rows.append([with_unit(name, *values), *cells])
    rows.append(None)
    for name in ("examples", "target_tokens", "images"):
        if any(name in result for result in results):
            rows.append([name, *(f"{r.get(name, 0):,.0f}" for r in results)])
    if all("decoding_seconds" in result for result in results):
        speeds = (r["decoded_tokens"] / r["decoding_seconds"] for r in results)
        rows.append(["decoded tokens/s", *(f"{speed:,.0f}" for speed in speeds)])
    file = console.Lasting(sys.stdout)
    tables.write_table(file, "text", title, header, rows, fold=True)


def _cell(value):
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"
