"""What a run is told: gin sets `Schedule` and `Checkpointing`, a program the rest."""

import dataclasses
from collections.abc import Callable
from typing import Any

from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How many steps a run takes, and after which of them it logs and saves.

    Attributes:
        train_steps: the step at which training ends, counted from the run's start.
        steps_per_call: steps in one call of the engine. It divides `train_steps` and
            all periods, those of evaluations too.
        log_period: steps between log lines and TensorBoard scalars.
        checkpoint_period: steps between checkpoints; the last step is always saved.
        examples_per_epoch: int, to log epochs; None logs none.

    Raises:
        ValueError: a number is not positive, or no multiple of `steps_per_call`.
    """

    train_steps: int
    steps_per_call: int = 1
    log_period: int = 100
    checkpoint_period: int = 1000
    examples_per_epoch: int | None = None

    def __post_init__(self):
        check_integers(steps_per_call=self.steps_per_call)
        names = ("train_steps", "log_period", "checkpoint_period")
        self.check_periods(**{name: getattr(self, name) for name in names})

    def check_periods(self, **periods):
        """Raises ValueError unless each is a positive multiple of steps_per_call."""
        check_integers(**periods)
        for name, value in periods.items():
            if value % self.steps_per_call:
                raise UserError(
                    f"{name}={value} is not a multiple of "
                    f"steps_per_call={self.steps_per_call}. Steps are run in groups of "
                    "steps_per_call: change one of the two."
                )

    def due(self, step, period):
        """Whether a step ends a period. The last step ends all of them."""
        return step % period == 0 or step == self.train_steps


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Which checkpoints stay, and what a run starts from.

    Attributes:
        keep: how many of the newest checkpoints stay.
        keep_period: checkpoints of steps that it divides stay for good; None for none.
        best: a `Best`: that checkpoint stays, and training may stop early; None for
            none.
        initial: a function `initial(model)` that sets weights when the run starts from
            scratch, such as `InitialCheckpoint`; None for none.
        restart_data_at: the step of a checkpoint after which the data starts anew, to
            continue with another task, batch size or lengths: weights, optimizer and
            step stay. Checkpoints of other steps continue exactly, as do all with None.

    Raises:
        ValueError: a value is not of these kinds.
    """

    keep: int = 3
    keep_period: int | None = None
    best: Any = None
    initial: Callable | None = None
    restart_data_at: int | None = None

    def __post_init__(self):
        check_integers(keep=self.keep)
        if self.keep_period is not None:
            check_integers(keep_period=self.keep_period)
        if self.best is not None and not hasattr(self.best, "metric"):
            raise UserError(
                f"best must be None or @Best(). Received: best={self.best!r}"
            )


@dataclasses.dataclass(frozen=True)
class Launch:
    """Where and how a program starts a run.

    Attributes:
        model_dir: folder of the run, made if it is missing. All hosts share it.
        configuration: a function called when everything is built, that returns the
            operative gin as text, and a dictionary of numbers and strings as
            hyperparameters for TensorBoard; None for nothing. The text becomes
            operative_config.gin, see `write_configuration`.
        evaluation_bindings: dictionary of str, the bindings of gin that can change an
            evaluation's result: one made with others does not count; None for none.
        dry_run: whether to return before the first step, with one batch read and
            nothing written.
        layer_checks: whether to try layers that are not of this package, see
            `check_own_layers`.
    """

    model_dir: str
    configuration: Callable | None = None
    evaluation_bindings: dict | None = None
    dry_run: bool = False
    layer_checks: bool = True
