"""How a run tells how it goes: a progress bar or log lines, and its speed."""

import sys
import time


class Progress:
    """A bar with loss, steps/s, tokens/s and time left; plain lines elsewhere.

    Use it as a context manager around the training loop.

    Args:
      step: int, the step at which the loop starts.
      train_steps: int, the step at which it ends.
      interactive: whether to draw a bar; None for when stdout is a terminal.
    """

    def __init__(self, step, train_steps, interactive=None):
        self._train_steps = train_steps
        self._bar = None
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

    def message(self, text):
        """Prints one line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def advance(self, step):
        """Moves the bar to `step`."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def report(self, step, values):
        """Shows the values of a log period.

        Args:
          step: int.
          values: dict of floats: loss, accuracy, learning_rate, and if known
            steps_per_second and tokens_per_second.
        """
        text = f"loss {values['loss']:.4f}  accuracy {values['accuracy']:.4f}"
        if "steps_per_second" in values:
            text += (
                f"  {values['steps_per_second']:.2f} steps/s"
                f"  {values['tokens_per_second']:,.0f} tokens/s"
            )
        if self._bar:
            self._bar.update(self._task, completed=step, description=text)
            return
        text += f"  learning rate {values['learning_rate']:.3g}"
        if "steps_per_second" in values:
            seconds = (self._train_steps - step) / values["steps_per_second"]
            text += f"  {format_seconds(seconds)} left"
        print(f"step {step}/{self._train_steps}  {text}", flush=True)


class Speed:
    """Steps and tokens per second, with pauses (compilation, saving) left out."""

    def __init__(self):
        self._total = [0, 0.0, 0.0]  # steps, tokens, seconds
        self._start = time.perf_counter()
        self._paused = 0.0
        self._skipped = [0, 0.0]

    def skip(self, seconds, steps=0, tokens=0.0):
        """Leaves out `seconds`, and the work that was done in them."""
        self._paused += seconds
        self._skipped[0] += steps
        self._skipped[1] += tokens

    def lap(self, steps, tokens):
        """Ends a period in which so many steps and tokens were done.

        Returns:
          dict with steps_per_second and tokens_per_second, empty if all was skipped.
        """
        now = time.perf_counter()
        lap = (
            steps - self._skipped[0],
            tokens - self._skipped[1],
            now - self._start - self._paused,
        )
        self._start, self._paused, self._skipped = now, 0.0, [0, 0.0]
        if not lap[0]:
            return {}
        self._total = [total + new for total, new in zip(self._total, lap, strict=True)]
        return _rates(*lap)

    def mean(self):
        """Returns the rates over all periods, as `lap` does."""
        return _rates(*self._total) if self._total[0] else {}


def format_seconds(seconds):
    """Returns for instance '1:02:03'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _rates(steps, tokens, seconds):
    return {"steps_per_second": steps / seconds, "tokens_per_second": tokens / seconds}


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
