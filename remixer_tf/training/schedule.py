"""At which steps a run does what."""

import dataclasses

from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How many steps a run takes, and after which of them it logs and saves.

    Attributes:
        train_steps, steps_per_call, log_period, checkpoint_period: see `train`.
    """

    train_steps: int
    steps_per_call: int
    log_period: int
    checkpoint_period: int

    def check(self, evaluations):
        """Raises ValueError unless all numbers and the evaluations' periods fit."""
        periods = dataclasses.asdict(self) | {
            f"period of evaluation {i}": evaluation.period
            for i, evaluation in enumerate(evaluations)
        }
        steps_per_call = periods.pop("steps_per_call")
        check_integers(steps_per_call=steps_per_call, **periods)
        for name, value in periods.items():
            if value % steps_per_call:
                raise UserError(
                    f"{name}={value} is not a multiple of "
                    f"steps_per_call={steps_per_call}. Steps are run in groups of "
                    "steps_per_call: change one of the two."
                )

    def due(self, step, period):
        """Whether a step ends a period. The last step ends all of them."""
        return step % period == 0 or step == self.train_steps
