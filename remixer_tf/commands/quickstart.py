"""Trains and compares two models in some minutes.

A T5.1.1 and a Remixer are trained on mini_cogs, in ./quickstart. The command runs the
commands that a user would run, and prints each: train a vocabulary, then for each model
train and evaluate; then one table. At last it exports the Remixer and asks it one
sentence. Run again, it resumes. It has no options: to change something, run the printed
commands.
"""

import json
import os
import shlex
import subprocess
import sys

MODELS = {"T5.1.1 tiny": "t5_1_1_tiny", "Remixer tiny": "remixer_tiny"}
TASK = "mini_cogs"
FOLDER = "quickstart"

# All that a process needs which serves an exported model.
ASK = """\
import sys
import tensorflow as tf
import tensorflow_text  # the operations of the tokenizer

model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"](inputs=tf.constant([sys.argv[2]]))
print(answer["outputs"][0].numpy().decode())
"""


def add_arguments(parser):
    del parser  # It has none.


def run(options):
    del options
    try:
        _run_all()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # The command has said what was wrong.


def _run_all():
    vocabulary = os.path.join(FOLDER, "words.model")
    if not os.path.exists(vocabulary):
        _run("train_vocabulary", f"--task={TASK}", "--model_type=word",
            f"--output={vocabulary}")  # fmt: skip
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
        _run(
            "eval",
            f"--model_dir={model_dir}",
            "--gin.DecodedEvaluation.splits=['test', 'gen']",
        )
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
    """What training and evaluation wrote: (summary, {split: metrics})."""
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
    import rich.console  # late, as all that is slow to import
    import rich.table

    table = rich.table.Table(title="mini_cogs: exact match in %")
    table.add_column("")
    for title in results:
        table.add_column(title, justify="right")

    def row(name, value):
        table.add_row(name, *[value(*result) for result in results.values()])

    row("parameters", lambda s, m: f"{s['parameters']:,}")
    row("training steps", lambda s, m: f"{s['steps']:,}")
    row("steps/s", lambda s, m: f"{s['steps_per_second']:.2f}")
    row("tokens/s", lambda s, m: f"{s['tokens_per_second']:,.0f}")
    table.add_section()
    row("test (in distribution)", lambda s, m: f"{m['test']['exact_match']:.1f}")
    row("gen (held-out kinds)", lambda s, m: f"{m['gen']['exact_match']:.1f}")
    _, metrics = next(iter(results.values()))
    for name in metrics["gen"]:
        if name != "exact_match":
            label = name.removeprefix("exact_match/").removeprefix("type/")
            row(f"  {label}", lambda s, m, name=name: f"{m['gen'][name]:.1f}")
    rich.console.Console().print(table)


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
