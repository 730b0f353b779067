"""Runs of a benchmark: made once, several at a time, told apart by their means."""

import argparse
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import re
import statistics
import threading
import time
import traceback
from typing import NamedTuple

from remixer_tf.errors import UserError, nearest

MIN_DEVIATIONS = 2.0


class Run(NamedTuple):
    """A training run.

    Attributes:
        name: str, of its files in the output folder.
        files: list of str, gin files: its model's, and then how it trains, with a
            `LossEvaluation`.
        bindings: list of str, further gin bindings, such as "SEED = 1".
        data: list of str, gin bindings that name the data's files.
        output: str, folder.
    """

    name: str
    files: list
    bindings: list
    data: list
    output: str

    @property
    def settings(self):
        """The settings that its result depends on, without the data."""
        return [*self.files, *self.bindings]

    @property
    def arguments(self):
        """Its part of a command line, a list of str."""
        values = [*self.bindings, *self.data]
        return [
            *(f"--gin_file={file}" for file in self.files),
            *(f"--gin.{value.replace(' = ', '=', 1)}" for value in values),
        ]


def train(run):
    """Trains, resuming a stopped run, or reads the result of a finished one.

    Returns:
        dictionary with

        - settings and parameters;
        - seconds and cpu_seconds of this process, since the run last began or resumed;
        - evaluations, a list of dictionaries of step, split, loss, token_accuracy and
          perplexity;
        - steps, loss and token_accuracy of the last evaluation;
        - metrics that decoding gave at the end, {split: {name: value}};
        - statistics that layers reported, {name: [[step, value], ...]}.

    Raises:
        UserError: the folder's result has other settings.
    """
    path = os.path.join(run.output, f"{run.name}.json")
    if os.path.exists(path):
        with open(path) as file:
            result = json.load(file)
        if result["settings"] != run.settings:
            raise UserError(
                f"{path} is of other settings than asked for: {result['settings']} "
                f"instead of {run.settings}. Set another --output."
            )
        return result
    from remixer_tf.commands import run_command
    from remixer_tf.evaluation.results import read_results

    folder = os.path.join(run.output, run.name)
    start = time.process_time()
    run_command("train", [f"--model_dir={folder}", *run.arguments])
    with open(os.path.join(folder, "train_summary.json")) as file:
        summary = json.load(file)
    evaluations = [
        {"step": r["step"], "split": r["split"], **r["metrics"]}
        for r in read_results(folder, "loss")
    ]
    evaluations.sort(key=lambda evaluation: evaluation["step"])
    last = evaluations[-1]
    result = {
        "settings": run.settings,
        "steps": last["step"],
        "loss": last["loss"],
        "token_accuracy": last["token_accuracy"],
        "parameters": summary["parameters"],
        "seconds": summary["seconds"],
        "cpu_seconds": time.process_time() - start,
        "evaluations": evaluations,
        "metrics": {
            r["split"]: r["metrics"]
            for r in read_results(folder)
            if r["step"] == last["step"]
        },
        "statistics": _read_statistics(folder),
    }
    with open(path + ".writing", "w") as file:
        json.dump(result, file, indent=2)
    os.replace(path + ".writing", path)
    return result


def _read_statistics(folder):
    """Returns the curves of what layers reported, from TensorBoard's files."""
    import tensorflow as tf
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(
        os.path.join(folder, "tensorboard", "train"), {event_accumulator.TENSORS: 0}
    )
    events.Reload()

    def is_curve(name):
        plugin = events.SummaryMetadata(name).plugin_data.plugin_name
        return name.startswith("statistics/") and plugin == "scalars"

    return {
        name: [[e.step, tf.make_ndarray(e.tensor_proto).item()] for e in curve]
        for name in filter(is_curve, events.Tags()["tensors"])
        for curve in [events.Tensors(name)]
    }


def train_all(variants, run_file, options, data):
    """Trains variants from several seeds, the first seed of all before the second.

    Each run has a process of its own, since gin and TensorFlow keep state; of several
    at once each has one thread.

    Args:
        variants: dictionary of names to what has a `file` and `bindings`, see `Run`.
        run_file: str, gin file of how they train, see `Run`.
        data: see `Run`.
        options: of `add_arguments`.

    Returns:
        dictionary of names to lists of what `train` returns, by seed.

    Raises:
        UserError: a run failed, see `apart`, or --variants matches no name.
    """
    names = matching(options.variants, variants)
    os.makedirs(options.output, exist_ok=True)
    runs = [
        Run(
            name=f"{name}-{seed}",
            files=[variants[name].file, run_file],
            bindings=[*variants[name].bindings, *options.gin, f"SEED = {seed}"],
            data=data,
            output=options.output,
        )
        for seed in range(options.seeds)
        for name in names
    ]
    results = {name: [] for name in names}
    one_thread = options.workers > 1
    with processes(options.workers, one_thread, runs_of_each=1) as executor:
        found = executor.map(apart, [train] * len(runs), [r.name for r in runs], runs)
        for run, result in zip(runs, found, strict=True):
            print(f"{run.name}: loss {result['loss']:.4f}", flush=True)
            results[run.name.rpartition("-")[0]].append(result)
    return results


def processes(number, one_thread, runs_of_each):
    """Returns an executor of so many processes; each ends after some runs.

    They end with the process that starts them, also if that is killed.
    """
    return concurrent.futures.ProcessPoolExecutor(
        number,
        multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(one_thread,),
        max_tasks_per_child=runs_of_each,
    )


def _start(one_thread):
    if one_thread:
        use_one_thread()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    # A worker that waits for calls would wait forever: it holds the pipe's other end.
    multiprocessing.parent_process().join()
    os._exit(1)


def as_they_end(executor, number, calls):
    """Has an executor of `number` processes make calls, and yields those that ended.

    No call waits in the executor: Python 3.11 starts no process for waiting calls once
    one has ended after its runs (CPython's issue 115634).

    Args:
        calls: iterable of (key, function, arguments).

    Yields:
        (key, future), a `concurrent.futures.Future` that is done.
    """
    calls, running = iter(calls), {}
    while True:
        for key, function, arguments in itertools.islice(calls, number - len(running)):
            running[executor.submit(function, *arguments)] = key
        if not running:
            return
        first = concurrent.futures.FIRST_COMPLETED
        for future in concurrent.futures.wait(running, return_when=first).done:
            yield running.pop(future), future


def apart(function, name, *arguments):
    """Calls a function for the run of a name, in a process of its own.

    Raises a UserError if the run fails. A traceback is printed, but of a user's error.
    """
    try:
        return function(*arguments)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        # Another class of error perhaps cannot be sent between processes.
        raise UserError(f"The run {name} failed: {error}") from None


def use_one_thread():
    """Tells TensorFlow, which has to be imported later."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"


def verdict(better, worse):
    """Whether the losses of runs bear out that one model is better.

    The gap is `mean(worse) - mean(better)`, in pooled standard deviations of one run,
    `sqrt((s_better^2 + s_worse^2) / 2)`.

    Args:
        better, worse: lists of floats, losses; `better` is the one claimed to be.

    Returns:
        "supported", "contradicted", "a tie", or "undecided" with fewer than two runs
        of one; and the gap in deviations.
    """
    if min(len(better), len(worse)) < 2:
        return "undecided", math.nan
    gap = statistics.mean(worse) - statistics.mean(better)
    variances = statistics.variance(better), statistics.variance(worse)
    deviation = math.sqrt(statistics.mean(variances))
    if gap:
        gap = gap / deviation if deviation else math.copysign(math.inf, gap)
    if abs(gap) <= MIN_DEVIATIONS:
        return "a tie", gap
    return ("supported" if gap > 0 else "contradicted"), gap


def verdict_text(better, worse):
    """`verdict` in words, with the gap of the means."""
    word, deviations = verdict(better, worse)
    gap = statistics.mean(worse) - statistics.mean(better)
    return f"{word} (gap {gap:+.4f}, {deviations:+.1f} deviations)"


def unigram_loss(text):
    """Cross entropy of the validation text's bytes under the training text's counts."""
    import numpy as np

    from remixer_tf.tasks import text_files

    text_files.data_folder.set(text)
    train, validation = (
        np.bincount(
            np.frombuffer("".join(text_files.read_split(split)).encode(), np.uint8),
            minlength=256,
        )
        for split in text_files.SPLITS
    )
    logs = np.log((train + 1) / (train.sum() + 256))
    return -np.sum(validation * logs) / validation.sum()


def text_files(folder):
    """Returns the `Run.data` of a folder of text files; without any, a UserError."""
    endings = "*.txt", "*.txt.gz", "*.jsonl", "*.jsonl.gz"
    if not any(any(pathlib.Path(folder).rglob(ending)) for ending in endings):
        raise UserError(
            f"--text={folder} has no {', '.join(endings)} in it or below. Name a "
            "folder of text files."
        )
    return [f"text_files.directory = {os.path.abspath(folder)!r}"]


def word_vocabulary(folder, task):
    """Writes the words of a task's training set to a file, unless it is there.

    Args:
        folder: where the file is to be.
        task: str, name of a registered task.

    Returns:
        str, the file's path.
    """
    path = os.path.join(os.path.abspath(folder), "words.model")
    if not os.path.exists(path):
        import remixer_tf.tasks  # noqa: F401 (it registers the task)
        from remixer_tf.data.vocabulary_training import read_texts, train_vocabulary

        texts = read_texts(task, "train", ["inputs", "targets"])
        train_vocabulary(texts, path, model_type="word")
    return path


def matching(pattern, names):
    """Returns the names that a regular expression matches, a list.

    Raises a UserError if it is none, or matches no name.
    """
    try:
        found = [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise UserError(
            f"--variants is a regular expression: {error}. Received: {pattern!r}"
        ) from None
    if not found:
        raise UserError(
            f"--variants={pattern} matches no name.{nearest(pattern, names)} They are "
            f"{', '.join(names)}."
        )
    return found


def _number(text):
    """The type of an option that is a whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected 1, 2, ... Received: {text!r}")
    return int(text)


def add_arguments(parser, data="--text", help="folder of text files", required=True):
    """Adds what the command of every comparison takes to an `argparse` parser.

    Args:
        parser: `argparse.ArgumentParser`.
        data, help: str, the option that names the data, and what it says of itself.
        required: bool, whether the data must be named.
    """
    parser.add_argument(data, required=required, help=help)
    parser.add_argument("--output", required=True, help="folder of the results")
    parser.add_argument("--workers", type=_number, default=2, help="runs at once")
    parser.add_argument("--seeds", type=_number, default=3, help="runs of a model")
    parser.add_argument(
        "--variants", default="", metavar="REGEX", help="only those that match"
    )
    parser.add_argument(
        "--gin", action="append", default=[], help="such as --gin='TRAIN_STEPS = 10'"
    )
