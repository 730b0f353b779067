"""The settings of training: gin sets `Schedule` and `Checkpointing`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from remixer_tf.arguments import PositiveInt, check_fields
from remixer_tf.errors import UserError, check_evaluations, check_integers, check_range


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The number of training steps, and the periods of logging and saving.

    Attributes:
        train_steps: the step at which training ends, counted from the run's start.
        steps_per_call: steps in one call of the engine. It divides `train_steps` and
            all periods, also those of evaluations.
        log_period: steps between log lines and TensorBoard scalars.
        checkpoint_period: steps between checkpoints. The last step is always saved.
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

    def check_evaluations(self, evaluations, best):
        """Raises ValueError unless evaluations fit the schedule and a `Best` or None.

        They have to be a list, and to give the best step's metric.
        """
        check_evaluations(evaluations)
        if best is not None:
            best.check(evaluations)
        for i, evaluation in enumerate(evaluations):
            self.check_periods(**{f"period of evaluation {i}": evaluation.period})

    def check_profile(self, profile):
        """Raises ValueError unless (START, STOP), or None, lie in the run."""
        if profile is None:
            return
        start, stop = profile
        whole = not (start % self.steps_per_call or stop % self.steps_per_call)
        if not (0 <= start < stop <= self.train_steps and whole):
            raise UserError(
                f"--profile=START:STOP needs 0 <= START < STOP <= {self.train_steps} "
                f"(train_steps), multiples of steps_per_call={self.steps_per_call}. "
                f"Received: {start}:{stop}"
            )

    def due(self, step, period):
        """Whether a step ends a period. The last step ends all periods."""
        return step % period == 0 or step == self.train_steps


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """The checkpoints that stay, and the state that a run starts from.

    Attributes:
        keep: int, how many of the newest checkpoints stay.
        keep_period: int. Checkpoints of its multiples stay for good. None for none.
        best: a `Best`. The best checkpoint stays, and training may stop early. None for
            none.
        initial: a function `initial(model)` that sets the weights of a new run, such as
            `InitialCheckpoint`; None for none.
        restart_data_at: int, the step of a checkpoint that continues with weights,
            optimizer and step, and starts the data anew. This allows another task,
            batch size or lengths. Other checkpoints continue exactly, and with None
            all do.

    Raises:
        ValueError: a value has the wrong type or range.
    """

    keep: PositiveInt = 3
    keep_period: PositiveInt | None = None
    best: Any = None
    initial: Callable | None = None
    restart_data_at: int | None = None

    def __post_init__(self):
        check_fields(self)
        if self.best is not None and not hasattr(self.best, "metric"):
            raise UserError(
                f"best must be None or @Best(). Received: best={self.best!r}"
            )


@dataclasses.dataclass(frozen=True)
class Watching:
    """How a run is watched.

    Attributes:
        loggers: list of `WandbLogger`, `MlflowLogger`, or loggers of your own.
        peak_flops: float, the peak FLOP/s of one device, to log the utilization of
            model FLOPs (MFU). None takes the makers' numbers for 16-bit floats, see
            `device_rates.PEAKS`. Other devices and float32 then have no MFU.

    Raises:
        ValueError: the peak is not positive, or `loggers` is no list of loggers, one of
            a kind.
    """

    loggers: tuple = ()
    peak_flops: float | None = None

    def __post_init__(self):
        given = self.loggers
        known = isinstance(given, (list, tuple)) and all(
            hasattr(logger, "start") and not isinstance(logger, type)
            for logger in given
        )
        if not known or len({*map(type, given)}) < len(given):
            raise UserError(
                "loggers must be a list, with one logger of a kind (in gin: "
                f"[@WandbLogger()], with its brackets). Received: loggers={given!r}"
            )
        if self.peak_flops is not None:
            check_range("peak_flops", self.peak_flops, "positive", lambda x: x > 0)


@dataclasses.dataclass(frozen=True)
class Launch:
    """The folder of a run, and how a program starts it.

    Attributes:
        model_dir: folder of the run, made if missing. All hosts share it.
        configuration: a function, called when everything is built; None for none. It
            returns the operative gin as text for operative_config.gin, and a dictionary
            of numbers and strings as hyperparameters for TensorBoard.
        evaluation_bindings: dictionary of str, the gin bindings that can change an
            evaluation's result. Results made with others do not count. None for none.
        dry_run: bool, whether to return before the first step. One batch is read and
            nothing is written.
        layer_checks: bool, whether to test a user's own layers, see `check_own_layers`.
        watching: a `Watching`.
        profile: (START, STOP), the steps of a trace, see `Profiling`; None for none.
    """

    model_dir: str
    configuration: Callable | None = None
    evaluation_bindings: dict | None = None
    dry_run: bool = False
    layer_checks: bool = True
    watching: Watching = Watching()
    profile: tuple | None = None
