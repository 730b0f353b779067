"""Waiting times at the front door, next to their goals.

    python -m benchmarks.front_door [--rounds=5] [--lines=1000]

A Remixer tiny on mini_cogs in bytes, trained for one step, inputs 104, targets 192,
greedy, at most 32 tokens an answer. Contestants of a ratio take turns in one process;
the medians of times and of ratios within a round are printed. `infer` and `generate`
load the run and answer all lines. One string is answered after a first one. Processes
are timed from their start: an import inside, a help to its end, and a command to the
first line that it prints.
"""

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time

import tensorflow as tf

import remixer_tf
from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from benchmarks.tiny_run import ARGUMENTS
from remixer_tf.commands import run_command

IMPORT = """
import time
start = time.perf_counter(), time.process_time()
import remixer_tf
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""
SHORT = "text_to_text.max_length=32"
QUESTION = "A cat liked that the teacher slept beside line "


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            train(f"{folder}/run")
        questions = [f"{QUESTION}{i}" for i in range(options.lines)]
        with open(f"{folder}/in.txt", "w") as file:
            file.write("".join(f"{question}\n" for question in questions))
        print_header("what", "goal", "here")
        processes(folder, options.rounds)
        many_lines(folder, questions, options.rounds)
        one_string(folder, questions[0], 20 * options.rounds)


def train(model_dir):
    short = ["--gin.TRAIN_STEPS=1", "--gin.train.evaluations=[]"]
    more = ["--gin.Schedule.checkpoint_period=1", "--gin.WARMUP_STEPS=1"]
    total = ["--gin.WarmupCosineDecay.total_steps=2"]
    run_command(
        "train", [f"--model_dir={model_dir}", *ARGUMENTS, *short, *more, *total]
    )


def processes(folder, rounds):
    """Prints the times of processes until they are of use."""
    found = [python("-c", IMPORT).split() for _ in range(rounds)]
    for name, times in zip(("wall", "CPU"), zip(*found, strict=True), strict=True):
        seconds = statistics.median(map(float, times))
        print_row(f"import remixer_tf, {name}", "0.1 s", f"{1e3 * seconds:.1f} ms")
    run, file = f"--model_dir={folder}/run", f"--input={folder}/in.txt"
    helps = {"the list of commands": [], "train --help": ["train", "--help"]}
    firsts = {
        "train": ["train", f"--model_dir={folder}/new", *ARGUMENTS, "--dry_run"],
        "infer": ["infer", run, file],
        "eval": ["eval", run],
        "export": ["export", run],
    }
    contestants = {
        name: lambda arguments=arguments: python("-m", "remixer_tf", *arguments)
        for name, arguments in helps.items()
    } | {name: lambda a=arguments: first_line(a) for name, arguments in firsts.items()}
    times = take_turns(contestants, rounds)
    for name in contestants:
        what, goal = (
            (name, "0.5 s") if name in helps else (f"{name}, first line", "2 s")
        )
        least = min(x[name] for x in times)
        here = f"{median(times, name):.2f} s, at best {least:.2f} s"
        print_row(what, goal, here)


def python(*arguments):
    """Returns all that a Python process prints."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def first_line(arguments):
    """Waits for the first line of a command, and ends it."""
    command = [sys.executable, "-m", "remixer_tf", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **streams) as process:
        process.stdout.readline()
        process.kill()


def many_lines(folder, questions, rounds):
    """Prints the time of `generate` next to that of `infer`, for the same lines."""
    answers = {}

    def infer():
        files = [f"--input={folder}/in.txt", f"--output={folder}/out.txt"]
        run_command("infer", [f"--model_dir={folder}/run", f"--gin.{SHORT}", *files])

    def generate():
        run = remixer_tf.load(f"{folder}/run", bindings=[SHORT])
        answers["run"] = run.generate(questions)

    contestants = {"infer": infer, "generate": generate}
    for name, clock in (("wall", time.perf_counter), ("CPU", time.process_time)):
        times = take_turns(contestants, rounds, clock)
        here = f"{ratio(times, 'generate', 'infer'):.3f}"
        here += f" ({median(times, 'generate'):.2f} s / {median(times, 'infer'):.2f} s)"
        print_row(f"generate / infer, {len(questions):,} lines, {name}", "1.05", here)
    with open(f"{folder}/out.txt", errors="replace") as file:
        lines = [
            x.replace("\\n", "\n").replace("\\r", "\r") for x in file.read().split("\n")
        ]
    if lines[:-1] != answers["run"]:
        raise AssertionError("generate and infer differ")


def one_string(folder, question, rounds):
    """Prints the time of one string next to that of the SavedModel."""
    run = remixer_tf.load(f"{folder}/run", bindings=[SHORT])
    saved = tf.saved_model.load(run.export(f"{folder}/saved"))
    signature = saved.signatures["serving_default"]

    def serve():
        return signature(inputs=tf.constant([question]))["outputs"].numpy()[0].decode()

    contestants = {"generate": lambda: run.generate(question), "saved": serve}
    if len({answer() for answer in contestants.values()}) > 1:
        raise AssertionError("generate and the SavedModel differ")
    times = take_turns(contestants, rounds)
    here = f"{ratio(times, 'generate', 'saved'):.3f}"
    here += f" ({1e3 * median(times, 'generate'):.1f} ms / "
    here += f"{1e3 * median(times, 'saved'):.1f} ms)"
    print_row("one string after the first / SavedModel", "1.1", here)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
