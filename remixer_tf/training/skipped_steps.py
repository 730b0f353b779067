"""Steps whose loss or gradient is not finite."""

import io
import os

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.host import Host
from remixer_tf.errors import NotFiniteError
from remixer_tf.models.batches import targets_and_weights


class SkippedSteps:
    """Counts steps that were skipped as not finite, and ends the run after too many.

    A call's result is looked at while the next call runs, so that the host does not
    wait for the device. The batch of such a step is kept in `nonfinite-<step>`.

    Args:
        model_dir: folder of the run.
        max_skipped: int, how many steps may be skipped.
        configuration: str, the operative gin, kept with the batch.
        host: the `Host` that this process is: each writes its own part of the batch.

    Attributes:
        count: int, the steps that were skipped.
        stop: bool, whether a host had asked for it in the results looked at so far.
    """

    def __init__(self, model_dir, max_skipped=0, configuration="", host=None):
        self.count = 0
        self.stop = False
        self._model_dir = model_dir
        self._max_skipped = max_skipped
        self._configuration = configuration
        self._host = host or Host()
        self._last = None

    def after_call(self, step, batch, metrics):
        """Looks at the result of the call before. Raises as `flush` does."""
        self.flush()
        self._last = step, batch, metrics

    def flush(self):
        """Looks at the result of the last call.

        Raises:
            FloatingPointError: more than `max_skipped` steps were not finite.
        """
        if self._last is None:
            return
        (step, batch, metrics), self._last = self._last, None
        self.stop |= float(metrics["stop"]) > 0
        skipped = round(float(metrics["skipped"]))
        if not skipped:
            return
        self.count += skipped
        first = step - targets_and_weights(batch)[0].shape[0] + 1
        steps = f"step {step}" if first == step else f"steps {first} to {step}"
        folder = os.path.join(self._model_dir, f"nonfinite-{step}")
        tf.io.gfile.makedirs(folder)
        self._write(folder, batch)
        text = (
            f"Loss or gradient was not finite in {skipped} of {steps}, "
            f"{self.count} in this run. Such steps change no weights. The batch is "
            f"in {folder}."
        )
        if self.count > self._max_skipped:
            raise NotFiniteError(
                f"{text} No more than {self._max_skipped} are allowed "
                "(max_skipped_steps). The last checkpoint is good. Try a smaller "
                "learning rate, more warm-up, clip_norm, or float32."
            )
        logging.warning("%s", text)

    def _write(self, folder, batch):
        shard = self._host.shard_info
        if self._host.saves_position:  # Others have the same rows.
            content = io.BytesIO()
            arrays = {key: value.numpy() for key, value in batch.items()}
            np.savez_compressed(content, **arrays)
            name = f"batch-{shard.index}-of-{shard.num_shards}.npz"
            with tf.io.gfile.GFile(os.path.join(folder, name), "wb") as file:
                file.write(content.getvalue())
        if self._host.index == 0:
            path = os.path.join(folder, "operative_config.gin")
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(self._configuration)
