"""Runs of a benchmark: made once, several at a time, told apart by their means."""

import argparse
import ast
import concurrent.futures
import functools
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import re
import statistics
import sys
import tempfile
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
    def arguments(self):
        """Its part of a command line, a list of str."""
        values = [*self.bindings, *self.data]
        return [
            *(f"--gin_file={file}" for file in self.files),
            *(f"--gin.{value.replace(' = ', '=', 1)}" for value in values),
        ]


def settings_of(files, bindings):
    """A digest of what gin files and bindings set.

    It is of their values: names of files, comments and order do not matter. Raises a
    UserError as `configuration.read` does.
    """
    from remixer_tf import configuration

    text = configuration.read(files, bindings).text(defaults=False)
    values = text.partition("\n")[2]  # The first line has the version.
    return hashlib.sha256(values.encode()).hexdigest()[:16]


@functools.cache
def data_of(path):
    """A digest of a file, or of a folder's files and their names, but hidden ones."""
    root = pathlib.Path(path)
    digest = hashlib.sha256()
    for file in sorted(filter(pathlib.Path.is_file, [root, *root.rglob("[!.]*")])):
        digest.update(f"{file.relative_to(root)}\n".encode())
        with open(file, "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def identity(run):
    """All that a run's result depends on: digests of its settings and of its data."""
    pairs = [binding.split(" = ", 1) for binding in run.data]
    anywhere = [f"{name} = ''" for name, _ in pairs]  # Content counts, and no folder.
    settings = settings_of(run.files, [*run.bindings, *anywhere])
    return [settings, *(data_of(ast.literal_eval(path)) for _, path in pairs)]


def finished(runs):
    """Returns {name: what `train` returned} of the `Run`s that have ended.

    Raises a UserError if a run's settings are wrong, or it has ended or was stopped
    with other settings or data, or its result is damaged.
    """
    found = {}
    for run in runs:
        expected = identity(run)
        for path in (_started_path(run), _result_path(run)):
            if not os.path.exists(path):
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    result = json.load(file)
                same = result["identity"] == expected
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f"{path} is damaged. Remove it: its run is made again."
                ) from None
            if not same:
                raise UserError(
                    f"{path} is of other settings or data than asked for. Set another "
                    "--output."
                )
            if path == _result_path(run):
                found[run.name] = result
    return found


def _result_path(run):
    return os.path.join(run.output, f"{run.name}.json")


def _started_path(run):
    return os.path.join(run.output, run.name, "identity.json")


def train(run):
    """Trains, resuming a stopped run, and writes the result to its file.

    Returns:
        dictionary with

        - identity, see `identity`, and parameters;
        - seconds and cpu_seconds of this process, since the run last began or resumed;
        - evaluations, a list of dictionaries of step, split, loss, token_accuracy and
          perplexity;
        - steps, loss and token_accuracy of the last evaluation;
        - metrics that decoding gave at the end, {split: {name: value}};
        - statistics that layers reported, {name: [[step, value], ...]}.
    """
    from remixer_tf.commands import run_command
    from remixer_tf.evaluation.results import read_results

    folder, known = os.path.join(run.output, run.name), {"identity": identity(run)}
    os.makedirs(folder, exist_ok=True)
    with open(_started_path(run), "w") as file:
        json.dump(known, file)
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
    result = known | {
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
    path = _result_path(run)
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
        UserError: as `matching`, `finished` and `results_of` do.
    """
    names = matching(options.variants, variants)
    make_folder(options.output)
    runs = {
        (name, seed): Run(
            name=f"{name}-{seed}",
            files=[variants[name].file, run_file],
            bindings=[*variants[name].bindings, *options.gin, f"SEED = {seed}"],
            data=data,
            output=options.output,
        )
        for seed in range(options.seeds)
        for name in names
    }
    with processes(options.workers, options.workers > 1, runs_of_each=1) as executor:
        found = executor.submit(finished, [*runs.values()]).result()
        calls = [
            (run.name, apart, (train, run.name, run))
            for run in runs.values()
            if run.name not in found
        ]
        for name, result in results_of(executor, options.workers, calls):
            print(f"{name}: loss {result['loss']:.4f}", flush=True)
            found[name] = result
    return {
        name: [found[f"{name}-{seed}"] for seed in range(options.seeds)]
        for name in names
    }


def make_folder(path):
    """Makes the folder of --output, or raises a UserError."""
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(
            f"--output={path} cannot be written: {error.strerror}. Name another folder."
        ) from None


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


def results_of(executor, number, calls):
    """Has an executor of `number` processes make calls, and yields what they return.

    A call that fails stops no other one. No call waits in the executor: Python 3.11
    starts no process for waiting calls once one has ended after its runs (CPython's
    issue 115634).

    Args:
        calls: iterable of (name of a run, function, arguments).

    Yields:
        (name, result).

    Raises:
        UserError: at the end, if calls have failed; at once, if a process was killed.
    """
    calls, running, failed = iter(calls), {}, []
    try:
        while True:
            for name, function, given in itertools.islice(calls, number - len(running)):
                running[executor.submit(function, *given)] = name
            if not running:
                break
            first = concurrent.futures.FIRST_COMPLETED
            for future in concurrent.futures.wait(running, return_when=first).done:
                error = future.exception()
                if isinstance(error, concurrent.futures.BrokenExecutor):
                    raise error
                name = running.pop(future)
                if error:
                    failed.append(name)
                    print(f"error: {error}", file=sys.stderr, flush=True)
                else:
                    yield name, future.result()
    except concurrent.futures.BrokenExecutor:
        raise UserError(
            f"A process was killed while these ran: {', '.join(running.values())}. Was "
            "there too little memory? Run the same command to go on, with fewer "
            "--workers if so; runs that have ended are kept."
        ) from None
    if failed:
        raise UserError(
            f"{len(failed)} runs failed, see above: {'; '.join(failed)}. Run the same "
            "command to try them again; runs that have ended are kept."
        )


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
    """Writes the words of a task's training set to a file.

    Args:
        folder: where the file is to be.
        task: str, name of a registered task.

    Returns:
        str, the file's path.
    """
    import remixer_tf.tasks  # noqa: F401 (it registers the task)
    from remixer_tf.data.vocabulary_training import read_texts, train_vocabulary

    path = os.path.join(os.path.abspath(folder), "words.model")
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


def number(text):
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
    parser.add_argument("--workers", type=number, default=2, help="runs at once")
    parser.add_argument("--seeds", type=number, default=3, help="runs of a model")
    parser.add_argument(
        "--variants", default="", metavar="REGEX", help="only those that match"
    )
    parser.add_argument(
        "--gin", action="append", default=[], help="such as --gin='TRAIN_STEPS = 10'"
    )
