"""Trains and compares two models in some minutes.

The command trains a T5.1.1 and a Remixer on mini_cogs, in ./quickstart. It runs the
commands that a user would run, and prints each: it trains a vocabulary, trains and
evaluates both models, prints one table, exports the Remixer and asks it one sentence.
Run it again to resume. It has no options: to change something, run what it prints.
"""

import json
import os
import shlex
import subprocess
import sys

from remixer_tf.tables import write_table

MODELS = {"T5.1.1 tiny": "t5_1_1_tiny", "Remixer tiny": "remixer_tiny"}
TASK = "mini_cogs"
FOLDER = "quickstart"

# The whole program that asks an exported model.
ASK = """\
import sys
import tensorflow as tf
import tensorflow_text  # the operations of the tokenizer

model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"](inputs=tf.constant([sys.argv[2]]))
print(answer["outputs"][0].numpy().decode())
"""


def add_arguments(parser):
    pass  # It has no options.


def run(options):
    try:
        _run_all()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # The command has said what was wrong.


def _run_all():
    vocabulary = os.path.join(FOLDER, "words.model")
    if not os.path.exists(vocabulary):
        kind = ("--model_type=word", f"--output={vocabulary}")
        _run("train_vocabulary", f"--task={TASK}", *kind)
    results = {}
    for title, model in MODELS.items():
        model_dir = os.path.join(FOLDER, model)
        _run(
            "train",
            f"--model_dir={model_dir}",
            f"--gin_file=models/{model}.gin",
            f"--gin_file=runs/{TASK}.gin",
            f"--gin.VOCABULARY_FILE={vocabulary}",
        )
        splits = "--gin.DecodedEvaluation.splits=['test', 'gen']"
        _run("eval", f"--model_dir={model_dir}", splits)
        results[title] = read_results(model_dir)
    print_table(results)
    ask_exported(os.path.join(FOLDER, "remixer_tiny"), results["Remixer tiny"][0])


def _run(command, *arguments):
    """Runs one of the package's commands, after printing it."""
    command = ["-m", "remixer_tf", command, *arguments]
    print(f"\n$ {shlex.join(['python', *command])}", flush=True)
    subprocess.run(
        [sys.executable, *command],
        check=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )


def read_results(model_dir):
    """Returns what training and evaluation wrote: (summary, {split: metrics})."""
    with open(os.path.join(model_dir, "train_summary.json")) as file:
        summary = json.load(file)
    metrics = {}
    for split in ("test", "gen"):
        folder = os.path.join(model_dir, "eval", TASK, split, str(summary["steps"]))
        with open(os.path.join(folder, "metrics.json")) as file:
            metrics[split] = json.load(file)["metrics"]
    return summary, metrics


def print_table(results):
    """Prints models as columns: size, speed, exact match in and out of distribution."""
    columns = [_column(*result) for result in results.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    rows.insert(4, None)  # below the size and the speed
    title = "mini_cogs: exact match in %"
    write_table(sys.stdout, "text", title, ["", *results], rows)


def _column(summary, metrics):
    """The column of a model, {name: text}."""
    column = {
        "parameters": f"{summary['parameters']:,}",
        "training steps": f"{summary['steps']:,}",
        "steps/s": f"{summary['steps_per_second']:.2f}",
        "tokens/s": f"{summary['tokens_per_second']:,.0f}",
        "test (in distribution)": f"{metrics['test']['exact_match']:.1f}",
        "gen (held-out kinds)": f"{metrics['gen']['exact_match']:.1f}",
    }
    for name, value in metrics["gen"].items():
        if name != "exact_match":
            label = name.removeprefix("exact_match/").removeprefix("type/")
            column[f"  {label}"] = f"{value:.1f}"
    return column


def ask_exported(model_dir, summary):
    """Exports a model and asks it, in a process without remixer_tf, one sentence."""
    step = str(summary["steps"])
    exported = os.path.join(model_dir, "export", step)
    if not os.path.exists(exported):
        _run("export", f"--model_dir={model_dir}")
    predictions = os.path.join(model_dir, "eval", TASK, "test", step)
    with open(os.path.join(predictions, "predictions.jsonl")) as file:
        example = json.loads(file.readline())
    print(f"\nAsking {exported} with tensorflow and tensorflow_text alone:")
    answer = subprocess.run(
        [sys.executable, "-c", ASK, exported, example["input"]],
        capture_output=True,  # TensorFlow says much on standard error as it starts.
        text=True,
    )
    if answer.returncode:
        sys.stderr.write(answer.stderr)
    answer.check_returncode()
    print(f"  sentence  {example['input']}")
    print(f"  answer    {answer.stdout.strip()}")
    print(f"  right     {example['target']}")
