"""The time that a run spends outside its steps, and before the first one.

    python -m benchmarks.trainer [--steps=300] [--model=remixer_tiny] [--gin.NAME=VALUE]

Trains a model on mini_cogs in bytes with the train command, and times every part. With
KERAS_BACKEND=jax it does so on JAX.
Prints the time from the command to the first step. Prints the cost of logging, the
progress bar and saving as shares of a step.
"""

import time

COMMAND = time.perf_counter()  # Python itself has started a little earlier.

import argparse  # noqa: E402
import contextlib  # noqa: E402
import functools  # noqa: E402
import io  # noqa: E402
import tempfile  # noqa: E402

from benchmarks import tiny_run  # noqa: E402
from benchmarks.machine import print_machine  # noqa: E402
from benchmarks.measure import print_header, print_row  # noqa: E402
from remixer_tf.__main__ import prepare  # noqa: E402

SECONDS = {}


class Terminal(io.StringIO):
    """Makes the trainer draw its bar, which it does in a terminal alone."""

    def isatty(self):
        return True


def timed(owner, name, label, wait=lambda found: None):
    """Replaces a function by one that adds its time to SECONDS[label].

    `wait` waits for what it returns, which JAX may still compute.
    """
    function = getattr(owner, name)

    @functools.wraps(function)
    def timer(*args, **kwargs):
        start = time.perf_counter()
        try:
            found = function(*args, **kwargs)
            wait(found)
            return found
        finally:
            SECONDS.setdefault(label, []).append(time.perf_counter() - start)

    setattr(owner, name, timer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", default="remixer_tiny", help="a file of gin/models")
    options, bindings = parser.parse_known_args()

    start = time.perf_counter()
    prepare()
    import keras
    import numpy as np
    from rich import live

    from remixer_tf import configuration
    from remixer_tf.checkpoints import writing
    from remixer_tf.commands import run_command
    from remixer_tf.data import pipeline
    from remixer_tf.engines.backend_engine import backend_engine
    from remixer_tf.training import logs, progress

    configuration.register_configurables()
    SECONDS["imports"] = [time.perf_counter() - start]
    timed(configuration, "read_configuration", "gin files")
    timed(pipeline, "_count_examples", "making mini_cogs, counting over-long examples")
    engine = type(backend_engine())
    timed(engine, "build", "model and optimizer")
    tracing = "tracing, while the shuffle buffer is filled"
    timed(engine, "cost", tracing)
    as_numbers = functools.partial(keras.tree.map_structure, np.asarray)
    timed(engine, "step", "step", wait=as_numbers)
    timed(writing.Checkpoints, "save", "checkpoint, waited for")
    timed(writing.Checkpoints, "_write", "checkpoint, written aside")
    timed(logs.Logging, "after_call", "TensorBoard")
    timed(progress.Progress, "after_call", "progress bar")
    timed(progress.Progress, "report", "progress bar")
    timed(live.Live, "refresh", "progress bar")  # ten times a second, in a thread

    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            f"--model_dir={folder}/run",
            f"--gin_file=models/{options.model}.gin",
            *tiny_run.DATA,
            *bindings,
            f"--gin.TRAIN_STEPS={options.steps}",
            "--gin.Schedule.log_period=1",
            "--gin.Schedule.checkpoint_period=10",
        ]
        first = []
        after_call = progress.Progress.after_call

        def note_first(self, step, batch, metrics):
            if not first:
                first.append(time.perf_counter() - COMMAND)
            after_call(self, step, batch, metrics)

        progress.Progress.after_call = note_first
        with contextlib.redirect_stdout(Terminal()):
            run_command("train", arguments)

    print_machine()
    print_header("before the first step", "seconds")
    shown = (
        "imports",
        "gin files",
        "making mini_cogs, counting over-long examples",
        "model and optimizer",
        tracing,
    )
    for label in shown:
        print_row(label, f"{sum(SECONDS[label]):.1f}")
    print_row("the first call, with compilation", f"{SECONDS['step'][0]:.1f}")
    rest = first[0] - sum(sum(SECONDS[label]) for label in shown) - SECONDS["step"][0]
    print_row("waiting for the first batch, and the rest", f"{rest:.1f}")
    print_row("**in all**", f"**{first[0]:.1f}**")

    step = sum(SECONDS["step"][1:]) / len(SECONDS["step"][1:])
    print(f"\nA step takes {1000 * step:.1f} ms.\n")
    print_header("each time", "ms", "share of a step")
    for label in (
        "checkpoint, waited for",
        "checkpoint, written aside",
        "TensorBoard",
        "progress bar",
    ):
        times = SECONDS[label]
        count = options.steps if label == "progress bar" else len(times)
        mean = sum(times) / count
        print_row(label, f"{1000 * mean:.1f}", f"{mean / step:.1%}")


if __name__ == "__main__":
    main()
