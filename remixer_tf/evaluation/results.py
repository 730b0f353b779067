"""Results of evaluation: files in the folder of a run, TensorBoard, a table.

eval/<task>/<split>/<step>/metrics.json        what was measured, by decoding
eval/<task>/<split>/<step>/loss.json           with the targets given
eval/<task>/<split>/<step>/score.json          by the targets' likelihood
eval/<task>/<split>/<step>/predictions.jsonl   one line for each example
eval/<task>/<split>/<step>/scores.jsonl        the same, of likelihoods
tensorboard/eval_<task>_<split>                numbers, and the first examples
submission/<step>/<set>.jsonl or .tsv          what GLUE's and SuperGLUE's sites take

Those of an evaluation with a name lie in eval/<name>/<task>/..., and in
tensorboard/eval_<name>_<task>_<split>.
"""

import json
import os

import rich.console
import rich.table
import seqio
import tensorflow as tf

_SHOWN_EXAMPLES = 5


def write_examples(model_dir, result, records, name, columns):
    """Writes what a result says of each example, a line of JSON each.

    Args:
        model_dir: folder of the run.
        result: dictionary with task, split and step.
        records: iterable of dictionaries.
        name: str, of the file.
        columns: the keys of those values that the table shows.

    Returns:
        the first of them as a table, {"examples": `seqio.metrics.Text`}.
    """
    folder = _result_folder(model_dir, result)
    tf.io.gfile.makedirs(folder)
    first = []
    with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if len(first) < _SHOWN_EXAMPLES:
                first.append(record)
    rows = [columns, ["---"] * len(columns)]
    rows += [[str(record[column]) for column in columns] for record in first]
    cells = ([cell.replace("|", "&#124;") for cell in row] for row in rows)
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return {"examples": seqio.metrics.Text(text)}


def write_result(model_dir, kind, result, texts=None):
    """Writes a result as <kind>.json, and its metrics to TensorBoard.

    Args:
        model_dir: folder of the run.
        kind: "metrics" (decoded), "loss" or "score".
        result: dictionary with task, split, step and metrics.
        texts: None, or a dictionary of `seqio.metrics.Text`.
    """
    folder = _result_folder(model_dir, result)
    tf.io.gfile.makedirs(folder)
    logger = seqio.TensorBoardLogger(os.path.join(model_dir, "tensorboard"))
    logger(
        task_name="_".join(["eval", *result_names(result)]).replace("/", "_"),
        step=result["step"],
        metrics={
            name: seqio.metrics.Scalar(value)
            for name, value in result["metrics"].items()
            if not isinstance(value, str)
        }
        | (texts or {}),
        dataset=None,
        inferences=None,
        targets=None,
    )
    # Last, under another name first: who reads it may take the rest for done.
    path = os.path.join(folder, f"{kind}.json")
    with tf.io.gfile.GFile(path + ".writing", "w") as file:
        file.write(json.dumps(result, indent=2) + "\n")
    tf.io.gfile.rename(path + ".writing", path, overwrite=True)


def read_results(model_dir, kind="metrics"):
    """Returns the results of a kind that are in the folder of a run, as a list."""
    folder = os.path.join(model_dir, "eval")
    patterns = [os.path.join(folder, "*", "*", "*", f"{kind}.json")]
    patterns += [os.path.join(folder, "*", "*", "*", "*", f"{kind}.json")]
    results = []
    for path in sorted(tf.io.gfile.glob(patterns)):
        with tf.io.gfile.GFile(path) as file:
            results.append(json.load(file))
    return results


def read_records(model_dir, result, name):
    """Returns what `write_examples` wrote of each example, a list of dictionaries."""
    with tf.io.gfile.GFile(
        os.path.join(_result_folder(model_dir, result), name)
    ) as file:
        return [json.loads(line) for line in file]


def write_submission(model_dir, step, name, text):
    """Writes a file for a benchmark's site, and prints where it is."""
    folder = os.path.join(model_dir, "submission", str(step))
    tf.io.gfile.makedirs(folder)
    path = os.path.join(folder, name)
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)
    print(f"Predictions for the benchmark: {path}")


def result_names(result):
    """The names that tell a result from others of its kind and step, a list."""
    names = (result.get("evaluation"), result["task"], result["split"])
    return [name for name in names if name]


def _result_folder(model_dir, result):
    return os.path.join(model_dir, "eval", *result_names(result), str(result["step"]))


def print_table(name, step, results):
    """Prints the splits of a task side by side.

    Args:
        name: str, of the task.
        step: int.
        results: dictionary split -> what `write_result` was given.
    """
    table = rich.table.Table("metric", title=f"{name} at step {step}")
    for split in results:
        table.add_column(split, justify="right")
    for name in dict.fromkeys(n for r in results.values() for n in r["metrics"]):
        table.add_row(name, *(_cell(r["metrics"].get(name)) for r in results.values()))
    table.add_section()
    for name in ("examples", "target_tokens", "images"):
        if any(name in result for result in results.values()):
            table.add_row(name, *(f"{r.get(name, 0):,.0f}" for r in results.values()))
    if all("decoding_seconds" in result for result in results.values()):
        speeds = (r["decoded_tokens"] / r["decoding_seconds"] for r in results.values())
        table.add_row("decoded tokens/s", *(f"{speed:,.0f}" for speed in speeds))
    rich.console.Console().print(table)


def print_row(title, table, metrics):
    """Prints the row of a `ResultTable`, unless no number of it is there.

    Args:
        title: str.
        table: `ResultTable`.
        metrics: dictionary task -> metric -> number.
    """
    row = table.row(metrics)
    if all(number is None for cell in row.values() for number in cell):
        return
    average = table.average(metrics)
    row = row | ({"Average": [average]} if table.averaged else {})
    cells = {
        column: "/".join("-" if x is None else f"{x:.1f}" for x in cell)
        for column, cell in row.items()
    }
    widths = {column: max(len(column), len(cell)) for column, cell in cells.items()}
    print(f"\n{title}")
    print("  ".join(column.rjust(width) for column, width in widths.items()))
    print("  ".join(cells[column].rjust(width) for column, width in widths.items()))


def _cell(value):
    """A value as a table shows it."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"
