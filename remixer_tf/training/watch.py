"""Why a run stops before its end: numbers that are not finite, and signals."""

import contextlib
import io
import os
import signal
import threading

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.host import Host
from remixer_tf.errors import NotFiniteError
from remixer_tf.objectives.batches import targets_and_weights

_KEPT = "nothing is lost. The same command goes on."
PREEMPTED = 75  # exit code; EX_TEMPFAIL of sysexits.h: run the same command again


class FiniteWatch:
    """Counts steps that were skipped as not finite, and ends the run after too many.

    A call's result is looked at while the next call runs, so that the host does not
    wait for the device.

    Args:
        model_dir: folder of the run; `nonfinite-<step>` appears there.
        max_skipped: int, how many steps may be skipped.
        configuration: str, the operative gin, written beside the batch.
        host: the `Host` that this process is: each writes its own part of the batch.
    """

    def __init__(self, model_dir, max_skipped=0, configuration="", host=None):
        self.skipped = 0
        self.stop = False
        self._model_dir = model_dir
        self._max_skipped = max_skipped
        self._configuration = configuration
        self._host = host or Host()
        self._last = None

    def add(self, step, superbatch, sums):
        """Takes the result of a call, and looks at the one before.

        Sets `stop` where a host has asked for it.

        Args:
            step: int, the step after the call.
            superbatch, sums: what a `TrainStep` took and returned.

        Raises:
            FloatingPointError: more than `max_skipped` steps were not finite.
        """
        self.flush()
        self._last = step, superbatch, sums

    def flush(self):
        """Looks at the call added last. Raises as `add` does."""
        if self._last is None:
            return
        (step, superbatch, sums), self._last = self._last, None
        self.stop |= float(sums["stop"]) > 0
        skipped = round(float(sums["skipped"]))
        if not skipped:
            return
        self.skipped += skipped
        first = step - targets_and_weights(superbatch)[0].shape[0] + 1
        steps = f"step {step}" if first == step else f"steps {first} to {step}"
        folder = os.path.join(self._model_dir, f"nonfinite-{step}")
        tf.io.gfile.makedirs(folder)
        self._write(folder, superbatch)
        text = (
            f"Loss or gradient was not finite in {skipped} of {steps}, "
            f"{self.skipped} in this run. Such steps change no weights. The batch is "
            f"in {folder}."
        )
        if self.skipped > self._max_skipped:
            raise NotFiniteError(
                f"{text} No more than {self._max_skipped} are allowed "
                "(max_skipped_steps). The last checkpoint is good. Try a smaller "
                "learning rate, more warm-up, clip_norm, or float32."
            )
        logging.warning("%s", text)

    def _write(self, folder, superbatch):
        shard = self._host.shard_info
        if self._host.saves_position:  # Others have the same rows.
            content = io.BytesIO()
            arrays = {key: value.numpy() for key, value in superbatch.items()}
            np.savez_compressed(content, **arrays)
            name = f"batch-{shard.index}-of-{shard.num_shards}.npz"
            with tf.io.gfile.GFile(os.path.join(folder, name), "wb") as file:
                file.write(content.getvalue())
        if self._host.index == 0:
            path = os.path.join(folder, "operative_config.gin")
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(self._configuration)


class StopSignal:
    """Ends a run at SIGTERM, which takes a machine away, and at SIGINT (Ctrl-C).

    At once, but where steps would be lost: there it is noted, for the loop to save
    first. Use it as a context manager around the run.

    Attributes:
        received: the number of the signal, or None.
    """

    def __init__(self):
        self.received = None
        self._held = False
        self._previous = {}
        self._message = None

    def __enter__(self):
        # Else the program handles signals itself.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._message:
            print(self._message, flush=True)

    @contextlib.contextmanager
    def held(self):
        """Notes signals in this block. Its end is where nothing is left to save."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @contextlib.contextmanager
    def let_through(self):
        """Ends the run at once in this block of a `held` one, as nothing is lost."""
        self._held = False
        try:
            if self.received:
                self.leave(_KEPT)
            yield
        finally:
            self._held = True

    def leave(self, what):
        """Ends the run.

        Args:
            what: str, what has been saved.

        Raises:
            KeyboardInterrupt: SIGINT came.
            SystemExit: SIGTERM came, here or to another process.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(f"Ctrl-C: {what}")
        self._message = f"SIGTERM: {what}"
        raise SystemExit(PREEMPTED)

    def _note(self, number, frame):
        again = self.received == number == signal.SIGINT
        self.received = number
        if again:
            self.leave("it came twice: steps since the last checkpoint are lost.")
        if not self._held:
            self.leave(_KEPT)
