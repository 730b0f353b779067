"""The sums over a run's steps, and its summary."""

import json
import os
import time

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.models.batches import throughput_unit
from remixer_tf.objectives.summaries import summarize_steps
from remixer_tf.training.overview import count_parameters


class Totals:
    """Adds up metrics, FLOPs and time, over a log period and over the run.

    Args:
        session: the `Session`.
        skipped: the run's `SkippedSteps`.
        start_time: float, `time.perf_counter` when the run began in this process.
    """

    def __init__(self, session, skipped, start_time):
        self._unit = throughput_unit(session.batches.first)  # "tokens" or "images"
        self._session = session
        self._skipped = skipped
        self._start_time = start_time
        self._steps = self._flops = self._read = 0  # in this process
        self._sums = None  # since the last log line
        self._values = {}  # of the last log line

    def after_call(self, step, batch, metrics):
        """Adds a call's metrics, FLOPs and time."""
        batches, speed = self._session.batches, self._session.speed
        steps = self._session.schedule.steps_per_call
        flops = self._session.engine.cost(batch).flops * steps
        self._steps += steps
        self._flops += flops
        if batches.new_shapes:  # Compiling does not count.
            seconds = time.perf_counter() - batches.start
            speed.skip(seconds, float(metrics["tokens"]))
        else:
            speed.count(steps=steps, flops=flops, waited=batches.waited)
        if self._sums:
            metrics = {key: self._sums[key] + value for key, value in metrics.items()}
        self._sums = metrics

    def end_period(self):
        """Returns values since its last call; see `summarize_steps`, `Speed.lap`."""
        read = float(self._sums["tokens"])
        self._read += read
        self._session.speed.count(read=read)
        rates = self._session.speed.lap(self._unit)
        self._values = summarize_steps(self._sums) | rates
        self._sums = None
        return self._values

    def summary(self, step):
        """Returns what train_summary.json says at this step, a dictionary.

        Seconds, FLOPs, skipped steps and what was read count all processes that led to
        this step. Rates and loss are those of this process.
        """
        engine, earlier = self._session.engine, self._session.checkpoints.summary
        values, read = self._values, self._read
        if self._sums:
            values = summarize_steps(self._sums)
            read += float(self._sums["tokens"])
        flops = self._flops * engine.host.count + earlier.get("flops", 0)
        read += earlier.get(self._unit, 0)
        steps = self._steps + earlier.get("counted_steps", 0)
        seconds = time.perf_counter() - self._start_time + earlier.get("seconds", 0)
        return {
            "parameters": count_parameters(engine.model),
            "steps": step,
            "counted_steps": steps,  # Fewer if earlier ones did not count them.
            self._unit: read,
            "flops": flops,
            "flops_per_step": flops / max(steps, 1),
            f"flops_per_{self._unit.removesuffix('s')}": flops / max(read, 1),
            **{
                name: values[name]
                for name in ("objective", "loss", "accuracy")
                if name in values
            },
            **self._session.speed.mean(self._unit),
            "skipped_steps": self._skipped.count + earlier.get("skipped_steps", 0),
            "seconds": seconds,
        }


def write_summary(model_dir, summary, replace=True):
    """Writes train_summary.json, or leaves the one that is there."""
    path = _path(model_dir)
    if replace or not tf.io.gfile.exists(path):
        write_whole(path, json.dumps(summary, indent=2))


def remove_summary(model_dir):
    """Removes train_summary.json, which says that a run has ended."""
    if tf.io.gfile.exists(_path(model_dir)):
        tf.io.gfile.remove(_path(model_dir))


def _path(model_dir):
    return os.path.join(model_dir, "train_summary.json")
