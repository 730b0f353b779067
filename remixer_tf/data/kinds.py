"""Types of arguments that the modules of this package share, see `checked`."""

from typing import Annotated

import seqio

from remixer_tf.arguments import Check, instance
from remixer_tf.errors import UserError


def _check_task(name, value):
    if not isinstance(value, (seqio.Task, seqio.Mixture)):
        raise UserError(
            f"{name} must be a seqio.Task or seqio.Mixture. get_task(NAME) finds what "
            f"is registered under a name. Received: {name}={value!r:.200}"
        )


Task = Annotated[seqio.Task | seqio.Mixture, Check("task", _check_task)]
ShardInfo = Annotated[seqio.ShardInfo, instance(seqio.ShardInfo)]
