"""How a run tells how it goes: a progress bar or log lines, and its speed."""

import contextlib
import dataclasses
import sys
import time


class Progress:
    """A bar with loss, steps/s, tokens/s (or images/s) and time left; plain lines else.

    Use it as a context manager around the training loop.

    Args:
        step: int, the step at which the loop starts.
        train_steps: int, the step at which it ends.
        silent: whether to show nothing, as all hosts but one do.
        interactive: whether to draw a bar; None for when stdout is a terminal.
    """

    def __init__(self, step, train_steps, silent=False, interactive=None):
        self._train_steps = train_steps
        self._silent = silent
        self._bar = None
        if silent:
            return
        if sys.stdout.isatty() if interactive is None else interactive:
            self._bar = _make_bar()
            self._task = self._bar.add_task("", total=train_steps, completed=step)

    def __enter__(self):
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception):
        if self._bar:
            self._bar.stop()

    @contextlib.contextmanager
    def paused(self):
        """Takes the bar away while something else is shown."""
        if self._bar:
            self._bar.stop()
        yield
        if self._bar:
            self._bar.start()

    def message(self, text):
        """Prints text, above the bar if there is one."""
        if self._silent:
            return
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def after_call(self, step, batch, metrics):
        """Moves the bar, as a hook."""
        self.advance(step)

    def advance(self, step):
        """Moves the bar to `step`."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def report(self, step, values):
        """Shows the values of a log period.

        Args:
            step: int.
            values: dict of floats: learning_rate, and if known loss (else objective),
                accuracy, auxiliary_loss, steps_per_second, and tokens_per_second or
                images_per_second.
        """
        loss = "loss" if "loss" in values else "objective"
        text = "  ".join(
            f"{name.replace('_', ' ')} {values[name]:.4f}"
            for name in (loss, "accuracy", "auxiliary_loss")
            if name in values
        )
        for unit, digits in (("steps", 2), ("tokens", 0), ("images", 0)):
            if (rate := values.get(f"{unit}_per_second")) is not None:
                text += f"  {rate:,.{digits}f} {unit}/s"
        if self._silent:
            return
        if self._bar:
            self._bar.update(self._task, completed=step, description=text)
            return
        text += f"  learning rate {values['learning_rate']:.3g}"
        if "steps_per_second" in values:
            seconds = (self._train_steps - step) / values["steps_per_second"]
            text += f"  {format_seconds(seconds)} left"
        print(f"step {step}/{self._train_steps}  {text}", flush=True)


class Speed:
    """Rates per second, with pauses (compilation, saving) left out.

    Args:
        unit: str, what is read, "tokens" or "images".
    """

    def __init__(self, unit="tokens"):
        self._unit = unit
        self._total = _Lap()
        self._lap = _Lap()
        self._start = time.perf_counter()

    def step(self, steps, flops, waited):
        """Counts steps, their FLOPs, and the seconds they waited for data."""
        self._lap.steps += steps
        self._lap.flops += flops
        self._lap.waited += waited

    def skip(self, seconds, read=0.0):
        """Leaves out `seconds`, and the tokens or images that were read in them."""
        self._lap.seconds -= seconds
        self._lap.read -= read

    @contextlib.contextmanager
    def paused(self):
        """Leaves out the seconds that a block takes."""
        start = time.perf_counter()
        yield
        self.skip(time.perf_counter() - start)

    def lap(self, read):
        """Ends a period in which so many tokens or images were read.

        Returns:
            dict of steps_per_second, tokens_per_second (or images_per_second),
            flops_per_second and input_wait, the share of time spent waiting for data;
            empty if all was skipped.
        """
        now = time.perf_counter()
        self._lap.read += read
        self._lap.seconds += now - self._start
        lap, self._lap, self._start = self._lap, _Lap(), now
        self._total.add(lap)
        return lap.rates(self._unit)

    def mean(self):
        """Returns the rates over all periods, as `lap` does."""
        return self._total.rates(self._unit)


@dataclasses.dataclass
class _Lap:
    steps: int = 0
    read: float = 0.0
    flops: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0

    def add(self, other):
        for field in dataclasses.fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def rates(self, unit):
        if self.steps <= 0:
            return {}
        return {
            "steps_per_second": self.steps / self.seconds,
            f"{unit}_per_second": self.read / self.seconds,
            "flops_per_second": self.flops / self.seconds,
            "input_wait": self.waited / self.seconds,
        }


def format_seconds(seconds):
    """Returns for instance '1:02:03'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _make_bar():
    from rich import progress

    return progress.Progress(
        progress.MofNCompleteColumn(),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
    )
