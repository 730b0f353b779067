"""Trains and compares two models in some minutes.

The command trains a T5.1.1 and a Remixer on mini_cogs, in ./quickstart. It runs the
commands that a user would run, and prints each. First it trains a vocabulary. Then it
trains, scores and draws both models at the same time. It prints one table, exports the
Remixer and asks it one sentence. Run it again to resume. It has no options: to change
something, run what it prints.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys

from remixer_tf.commands import run_command, start_command
from remixer_tf.tables import write_table

TASK = "mini_cogs"
FOLDER = "quickstart"
T5, REMIXER = "t5_1_1_tiny", "remixer_tiny"
MODELS = {"T5.1.1 tiny": T5, "Remixer tiny": REMIXER}
RUN = "runs/quickstart.gin"

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
    share_cores()
    vocabulary = os.path.join(FOLDER, "words.model")
    if not os.path.exists(vocabulary):
        kind = ("--model_type=word", f"--output={vocabulary}")
        _run("train_vocabulary", f"--task={TASK}", *kind)
    log = os.path.join(FOLDER, f"{T5}.log")
    with run_aside(*_training(T5, vocabulary), output=log):
        _run(*_training(REMIXER, vocabulary))
    folders = {title: os.path.join(FOLDER, model) for title, model in MODELS.items()}
    results = {title: read_results(folder) for title, folder in folders.items()}
    print_table(results)
    folder, (summary, _) = folders["Remixer tiny"], results["Remixer tiny"]
    ask_exported(folder, summary)
    page = os.path.join(folder, "pictures", str(summary["steps"]), "index.html")
    print(
        f"\nOpen {page}: the matrices H that the Remixer learned. Then ask it more, at "
        "the page http://localhost:8000 of\n"
        f"python -m remixer_tf serve --model_dir={folder}"
    )


def share_cores():
    """Gives two processes half of the cores each, before TensorFlow is loaded.

    A step of these models gains little from more: two cores take 0.15 s of CPU time for
    a step, and one takes 0.12 s.
    """
    threads = str(max(1, (os.cpu_count() or 1) // 2))
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, threads)


def _training(model, vocabulary):
    """Returns the command that trains a model, a list of its words."""
    return [
        "train",
        f"--model_dir={os.path.join(FOLDER, model)}",
        f"--gin_file=models/{model}.gin",
        f"--gin_file={RUN}",
        f"--gin.VOCABULARY_FILE={vocabulary}",
    ]


def _run(*command):
    """Runs one of the package's commands in this process, after printing it."""
    _show(command)
    run_command(command[0], command[1:])


def _show(command, end=""):
    text = shlex.join(["python", "-m", "remixer_tf", *command])
    print(f"\n$ {text}{end}", flush=True)


@contextlib.contextmanager
def run_aside(*command, output):
    """Runs a command in another process during a block, with its output in a file.

    After the block it waits for the command. If that fails, its output is shown.
    """
    _show(command, end=f" >> {output} 2>&1 &")
    process = start_command(command, output)
    try:
        yield
        code = process.wait()
    finally:  # After an error in the block, it saves and ends.
        process.terminate()
        process.wait()
    if code:
        with open(output, errors="replace") as log:
            sys.stderr.write(log.read())
        sys.exit(code)


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
        sys.exit(answer.returncode)
    print(f"  sentence  {example['input']}")
    print(f"  answer    {answer.stdout.strip()}")
    print(f"  right     {example['target']}")
