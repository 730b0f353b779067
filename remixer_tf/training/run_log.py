"""What a run tells the terminal, TensorBoard and metrics.jsonl."""

import os
import resource

import numpy as np
import tensorflow as tf

from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.training import experts
from remixer_tf.training.metrics_file import append_metrics


class Logging:
    """Writes the values of each log period. Use it as a context manager.

    It writes tensorboard/train and metrics.jsonl in the folder of the run.

    Args:
        session: the `Session`.
        overview: the `Overview`.
        totals: the `Totals`.
        skipped: the `SkippedSteps`.
    """

    def __init__(self, session, overview, totals, skipped):
        rows = targets_and_weights(session.batches.first)[0].shape[1]
        host = session.engine.host
        self._session = session
        self._overview = overview
        self._totals = totals
        self._skipped = skipped
        self._batch_size = rows * host.shard_info.num_shards
        self._writes = host.index == 0
        self._writer = tf.summary.create_noop_writer()
        if self._writes:
            folder = os.path.join(session.model_dir, "tensorboard", "train")
            self._writer = tf.summary.create_file_writer(folder)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._writer.close()

    def start(self, configuration, hyperparameters):
        """Writes what stays the same: hyperparameters, configuration, parameters.

        Args:
            configuration: str, the operative gin.
            hyperparameters: dict of numbers and strings.
        """
        from tensorboard.plugins.hparams import api as hparams

        with self._writer.as_default(self._session.step):
            if hyperparameters:
                hparams.hparams(hyperparameters)
            indented = "".join(f"    {line}\n" for line in configuration.splitlines())
            tf.summary.text("configuration", indented)
            tf.summary.text("parameters", self._overview.parameter_table())
        self._writer.flush()

    def after_call(self, step, batch, metrics):
        """Writes the values of a log period at its end, as a hook."""
        session = self._session
        if not session.schedule.due(step, session.schedule.log_period):
            return
        self._skipped.flush()
        values = self._totals.end_period()
        session.progress.report(step, values)
        if problem := experts.warning(values):
            session.progress.message(problem)
        values = self._with_state(step, values)
        if self._writes:
            append_metrics(session.model_dir, step, values)
        with self._writer.as_default(step):
            for name, value in values.items():
                write = tf.summary.histogram if np.ndim(value) else tf.summary.scalar
                write(name, value)

    def _with_state(self, step, values):
        """Returns values of a period with those of the run: epochs, memory, ..."""
        engine, values = self._session.engine, dict(values)
        examples = step * self._batch_size
        if "flops_per_second" in values:
            rate = values.pop("flops_per_second")
            values["share_of_matmul_rate"] = rate / self._overview.matmul_rate
            if self._overview.peak_rate:
                values["model_flops_utilization"] = rate / self._overview.peak_rate
        values["parameter_norm"] = engine.parameter_norm()
        values["examples"] = examples
        if per_epoch := self._session.schedule.examples_per_epoch:
            values["epochs"] = examples / per_epoch
        values["skipped_steps"] = self._skipped.count
        # The largest so far, in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        values["host_memory_gigabytes"] = peak / 1e9
        values |= {f"{k}_gigabytes": used for k, used in engine.memory().items()}
        return values | experts.imbalances(values)
