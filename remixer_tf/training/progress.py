"""The progress bar or log lines of a run, and its speed."""

import collections
import contextlib
import datetime
import sys
import time

from remixer_tf import console


class Progress:
    """A progress bar with loss, steps/s, tokens/s (or images/s), time left; or lines.

    Use it as a context manager around the training loop, which runs from `step` to
    `train_steps`. `silent` shows nothing: only one host shows its progress.
    """

    def __init__(self, step, train_steps, silent=False):
        self._train_steps = train_steps
        self._silent = silent
        self._bar = None
        if console.draws() and not silent:
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
        """Removes the bar while something else is shown."""
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
            console.say(text)

    def after_call(self, step, batch, metrics):
        """Moves the bar to `step`."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def report(self, step, values):
        """Shows those values of a log period that it knows, of a dictionary."""
        if self._silent:
            return
        loss = "loss" if "loss" in values else "objective"
        text = "  ".join(
            f"{name.replace('_', ' ')} {values[name]:.4f}"
            for name in (loss, "token_accuracy", "image_accuracy", "auxiliary_loss")
            if name in values
        )
        for unit, digits in (("steps", 2), ("tokens", 0), ("images", 0)):
            if (rate := values.get(f"{unit}_per_second")) is not None:
                text += f"  {rate:,.{digits}f} {unit}/s"
        for name, label in (("model_flops_utilization", "MFU"), ("goodput", "goodput")):
            if name in values:
                text += f"  {label} {values[name]:.1%}"
        if "loss_scale" in values:
            text += f"  loss scale {values['loss_scale']:g}"
        if self._bar:
            self._bar.update(self._task, completed=step, description=text)
            return
        text += f"  learning rate {values['learning_rate']:.3g}"
        if "steps_per_second" in values:
            seconds = (self._train_steps - step) / values["steps_per_second"]
            text += f"  {format_seconds(seconds)} left"
        fields = {**values, "step": step, "train_steps": self._train_steps}
        console.say(f"step {step}/{self._train_steps}  {text}", fields=fields)


class Speed:
    """Rates per second, without pauses for compilation, saving and evaluation.

    `unit` is "tokens" or "images".
    """

    def __init__(self):
        self._lap = collections.Counter()  # steps, read, flops, waited, seconds
        self._total = collections.Counter()
        self._start = time.perf_counter()

    def count(self, **amounts):
        """Adds to steps, flops, waited (seconds for data) or read (tokens, images)."""
        self._lap.update(amounts)

    def skip(self, seconds, read=0.0):
        """Leaves out `seconds`, and the tokens or images read in them."""
        self.count(seconds=-seconds, read=-read)

    @contextlib.contextmanager
    def paused(self):
        """Leaves out the seconds of a block."""
        start = time.perf_counter()
        yield
        self.skip(time.perf_counter() - start)

    def lap(self, unit):
        """Ends a period, and returns its rates by name; {} if all was skipped.

        "input_wait" is the share of time spent waiting for data.
        """
        now = time.perf_counter()
        self.count(seconds=now - self._start)
        self._total.update(self._lap)
        rates = _rates(self._lap, unit)
        self._lap.clear()
        self._start = now
        return rates

    @property
    def seconds_in_steps(self):
        """The seconds until the last lap, without pauses and waiting for data."""
        return self._total["seconds"] - self._total["waited"]

    def mean(self, unit):
        """Returns the rates over all periods, as `lap` does."""
        return _rates(self._total, unit)


def _rates(lap, unit):
    names = {
        "steps": "steps_per_second",
        "read": f"{unit}_per_second",
        "flops": "flops_per_second",
        "waited": "input_wait",
    }
    if lap["steps"] <= 0:
        return {}
    return {name: lap[key] / lap["seconds"] for key, name in names.items()}


def format_seconds(seconds):
    """Returns a time such as '1:02:03', and above a day '1 day, 2:03:04'."""
    return str(datetime.timedelta(seconds=round(seconds)))


def rich_console():
    """Returns a `rich.console.Console` on standard output that outlasts its reader."""
    from rich.console import Console  # late, as all that is slow to import

    # Without markup, since names of metrics may look like rich's.
    return Console(file=console.Lasting(sys.stdout), markup=False, emoji=False)


def _make_bar():
    from rich import progress

    return progress.Progress(
        progress.MofNCompleteColumn(),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
        console=rich_console(),
    )
