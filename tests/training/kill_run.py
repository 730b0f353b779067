"""Kills a run at random moments, resumes it, and compares with an undisturbed one.

    python -m tests.training.kill_run [--kills=20] [--seed=0]
    KERAS_BACKEND=jax python -m tests.training.kill_run --checkpoint_format=orbax

A run is a process of its own that trains the toy model with dropout, saves every few
steps, and is killed by SIGKILL: half of the times at any moment, half in the middle of
a save. All losses and the final checkpoint must be bitwise those of the run that was
not killed. Prints what happened, and exits with 1 if something differed.
"""

import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.run import Run
from tests.continuing import read_losses, read_weights
from tests.training import toy

TRAIN_STEPS, CHECKPOINT_PERIOD, WIDTH = 100, 5, 2000


def start(model_dir, checkpoint_format):
    """Trains in a child process; returns its id.

    The child is forked before TensorFlow has started anything, which saves its import.
    """
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    toy.train_toy(
        Run(
            lambda: toy.ToyModel(width=WIDTH, dropout_rate=0.3),
            engine=lambda: backend_engine(
                jax=lambda: JaxEngine(checkpoint_format=checkpoint_format)
            ),
        ),
        model_dir,
        TRAIN_STEPS,
        optimizer=lambda: keras.optimizers.Adam(0.001),
        log_period=1,
        checkpoint_period=CHECKPOINT_PERIOD,
    )
    sys.stdout.flush()
    os._exit(0)


def kill_while_saving(child, folder, generator):
    """Kills as soon as a checkpoint is being written; returns whether it was."""
    for _ in range(generator.randrange(1, 8)):  # Not always the first.
        while not list(folder.glob("writing-*")):
            if os.waitpid(child, os.WNOHANG)[0]:
                return False
        time.sleep(generator.random() * 0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def kill_at(child, seconds):
    """Kills after so long; returns whether the run was still going."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def read_in_child(function, *arguments):
    """Runs `function` in a process of its own, and returns what it returns.

    TensorFlow must not start in this one, from which children are forked.
    """
    import pickle

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writer, "wb") as file:
            pickle.dump(function(*arguments), file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


def read_state(model_dir):
    """Returns {path: value} of the last checkpoint."""
    return {
        path: value
        for group in ("model", "optimizer")
        for path, value in read_weights(model_dir, TRAIN_STEPS, group).items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint_format", default="tensorflow")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    root = pathlib.Path(tempfile.mkdtemp())
    begin = time.monotonic()
    os.waitpid(start(root / "whole", options.checkpoint_format), 0)
    duration = time.monotonic() - begin
    print(f"a run of {TRAIN_STEPS} steps takes {duration:.1f} s")
    losses = read_in_child(read_losses, root / "whole")
    state = read_in_child(read_state, root / "whole")
    assert sorted(losses) == list(range(1, TRAIN_STEPS + 1))
    kills, saving, runs, failures = 0, 0, 0, []
    while kills < options.kills:
        model_dir = root / f"killed-{runs}"
        runs += 1
        finished = False
        while not finished:
            child = start(model_dir, options.checkpoint_format)
            if kills == options.kills:
                finished = True
                os.waitpid(child, 0)
            elif kills % 2:
                killed = kill_while_saving(child, model_dir / "checkpoints", generator)
                saving += killed
                kills += killed
                finished = not killed
            else:
                killed = kill_at(child, generator.random() * duration)
                kills += killed
                finished = not killed
        for step, values in read_in_child(read_losses, model_dir).items():
            if values != losses[step]:
                failures.append(f"run {runs}: loss of step {step}")
        other = read_in_child(read_state, model_dir)
        failures += [
            f"run {runs}: {name}"
            for name in state
            if not np.array_equal(state[name], other[name])
        ]
    print(
        f"{kills} kills in {runs} run(s), {saving} of them while saving: "
        + (
            f"DIFFERENT: {failures[:10]}"
            if failures
            else "all losses and weights equal"
        )
    )
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
