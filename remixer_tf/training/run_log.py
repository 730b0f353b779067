"""What a run tells TensorBoard, and metrics.jsonl."""

import os
import resource

import numpy as np
import tensorflow as tf

from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.training.experts import imbalances
from remixer_tf.training.metrics_file import append_metrics


class RunLog:
    """Writes tensorboard/train and metrics.jsonl of a run. Use it as a context manager.

    Args:
        model_dir: folder of the run.
        overview: the run's `Overview`.
        batch: the first superbatch, which tells the batch size.
        host: the `Host` that this process is. The first one writes.
        examples_per_epoch: int; None does not count epochs.
    """

    def __init__(self, model_dir, overview, batch, host, examples_per_epoch=None):
        rows = targets_and_weights(batch)[0].shape[1]
        self._overview = overview
        self._batch_size = rows * host.shard_info.num_shards
        self._examples_per_epoch = examples_per_epoch
        self._model_dir = model_dir if host.index == 0 else None
        self._writer = tf.summary.create_noop_writer()
        if self._model_dir:
            folder = os.path.join(model_dir, "tensorboard", "train")
            self._writer = tf.summary.create_file_writer(folder)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._writer.close()

    def start(self, step, configuration, hyperparameters):
        """Writes what stays the same: hyperparameters, configuration, parameters.

        Args:
            step: int, the step that the run starts from.
            configuration: str, the operative gin.
            hyperparameters: dict of numbers and strings.
        """
        from tensorboard.plugins.hparams import api as hparams

        with self._writer.as_default(step):
            if hyperparameters:
                hparams.hparams(hyperparameters)
            indented = "".join(f"    {line}\n" for line in configuration.splitlines())
            tf.summary.text("configuration", indented)
            tf.summary.text("parameters", self._overview.parameter_table())
        self._writer.flush()

    def scalars(self, step, values, engine, skipped):
        """Writes the values of a log period.

        Args:
            step: int.
            values: dict from `summarize_steps` and `Speed.lap`: floats, written as
                curves, and arrays `[n]`, written as histograms.
            engine: the `Engine`, asked for the norm of the weights and its memory.
            skipped: int, steps that were not finite.
        """
        examples = step * self._batch_size
        values = dict(values)
        if "flops_per_second" in values:
            rate = values.pop("flops_per_second")
            values["share_of_matmul_rate"] = rate / self._overview.matmul_rate
            if self._overview.peak_rate:
                values["model_flops_utilization"] = rate / self._overview.peak_rate
        values["parameter_norm"] = engine.parameter_norm()
        values["examples"] = examples
        if self._examples_per_epoch:
            values["epochs"] = examples / self._examples_per_epoch
        values["skipped_steps"] = skipped
        # The largest so far, in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        values["host_memory_gigabytes"] = peak / 1e9
        values |= {f"{k}_gigabytes": used for k, used in engine.memory().items()}
        values |= imbalances(values)
        if self._model_dir:
            append_metrics(self._model_dir, step, values)
        with self._writer.as_default(step):
            for name, value in values.items():
                write = tf.summary.histogram if np.ndim(value) else tf.summary.scalar
                write(name, value)
