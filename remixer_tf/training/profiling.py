"""A trace of some steps, for TensorBoard and Perfetto."""

import os

from remixer_tf.training.session import Session


class Profiling:
    """Records what host 0 and its devices do from step START to step STOP.

    The trace is in tensorboard/train/plugins/profile/<time>, where TensorBoard looks:
    HOST.xplane.pb for TensorBoard, and HOST.trace.json.gz for Perfetto. It is written
    too if the run ends before STOP. Use it as a context manager around the loop.

    Args:
        session: the `Session`. Its `Launch.profile` is (START, STOP), or None.
    """

    def __init__(self, session: Session):
        self._session = session
        self._start, self._stop = session.launch.profile or (None, None)
        if session.engine.host.index:
            self._start = None
        self._folder = os.path.join(session.model_dir, "tensorboard", "train")
        self._records = False

    def __enter__(self):
        step = self._session.step
        if self._start is not None and step > self._start:
            self._session.progress.message(
                "warning: no trace is written: --profile begins at step "
                f"{self._start}, and the run continues from step {step}"
            )
        if step == self._start:
            self._begin()
        return self

    def __exit__(self, *exception):
        if self._records:
            self._end()

    def after_call(self, step, batch, metrics):
        """Begins or ends the recording after a step."""
        begins, ends = step == self._start, self._records and step == self._stop
        if not begins and not ends:
            return
        float(metrics["steps"])  # Wait until the device has taken the step.
        with self._session.speed.paused():
            self._begin() if begins else self._end()

    def _begin(self):
        self._session.engine.start_trace(self._folder)
        self._records = True

    def _end(self):
        self._records = False
        self._session.engine.stop_trace()
        self._session.progress.message(
            f"the trace of steps {self._start} to {self._stop} is in "
            f"{self._folder}/plugins/profile"
        )
