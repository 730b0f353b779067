"""Results on GLUE and SuperGLUE, as papers print them, and files for their sites.

Everything is read from the folder of a run. No model is built.
"""

import os

import tensorflow as tf

import remixer_tf.tasks  # noqa: F401  (registers the benchmarks)
from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.data.pipeline import get_task
from remixer_tf.errors import MissingFileError, StorageError, UserError
from remixer_tf.evaluation.results import read_records, read_results
from remixer_tf.tables import aligned
from remixer_tf.tasks.result_tables import glue_table, inference_table, super_glue_table
from remixer_tf.tasks.submissions import has_submission, submission

TABLES = (super_glue_table, glue_table, inference_table)


def write_report(model_dir, step=None):
    """Prints the rows of the papers' tables, and writes submission/<step>/<set>.

    `step` is None for the last one with results in the folder of a run. Raises a
    ValueError if there are none of decoding, or none of that step, and a
    FileNotFoundError if there is no folder.
    """
    if not tf.io.gfile.isdir(model_dir):
        raise MissingFileError(f"There is no folder {model_dir}.")
    check_run_version(model_dir)
    results = read_results(model_dir)
    steps = sorted({result["step"] for result in results})
    if not steps or step not in (None, *steps):
        there = f" They are of steps {', '.join(map(str, steps))}." if steps else ""
        raise UserError(
            f"There are no results of DecodedEvaluation in {model_dir}"
            f"{'' if step is None else f' of step {step}'}.{there} Run "
            "remixer_tf eval first."
        )
    step = steps[-1] if step is None else step
    results = [result for result in results if result["step"] == step]
    for name, split in dict.fromkeys(
        (r.get("evaluation"), r["split"]) for r in results
    ):
        metrics = {
            result["task"]: result["metrics"]
            for result in results
            if (result.get("evaluation"), result["split"]) == (name, split)
        }
        for table in TABLES:
            title = " ".join(filter(None, (name, split, f"at step {step}")))
            print_row(title, table(), metrics)
    for result in results:
        if has_submission(result["task"], result["split"]):
            task = get_task(result["task"])
            name, text = submission(task, read_records(model_dir, result))
            folder = os.path.join(model_dir, "submission", str(step))
            _write(os.path.join(folder, result.get("evaluation") or "", name), text)


def print_row(title, table, metrics):
    """Prints the row of a `ResultTable` of {task: metrics}, unless it is empty."""
    row = table.row(metrics)
    if all(number is None for cell in row.values() for number in cell):
        return
    row = row | ({"Average": [table.average(metrics)]} if table.averaged else {})
    cells = [
        "/".join("-" if x is None else f"{x:.1f}" for x in cell)
        for cell in row.values()
    ]
    lines = aligned([[*row], cells], str.rjust)
    print(f"\n{table.name} {title}", *lines, sep="\n")


def _write(path, text):
    try:
        tf.io.gfile.makedirs(os.path.dirname(path))
        write_whole(path, text)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", error)
        raise StorageError(f"{path} cannot be written: {reason}.") from None
    print(f"Predictions for the benchmark: {path}")
