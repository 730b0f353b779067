"""Which devices share a run."""

import functools

import tensorflow as tf

_STRATEGIES = ("single", "mirrored")


@functools.cache
def get_strategy(name="single"):
    """Returns the `tf.distribute.Strategy` called `name`, the same one every time.

    (The collectives of two MirroredStrategies in one process get the same keys, and
    fail when their tensors differ in shape.)

    Args:
      name: 'single', one device (the first accelerator, else the CPU), or
        'mirrored', all accelerators of this machine, or all logical CPU devices
        if there is none, each with a copy of the variables.

    Raises:
      ValueError: `name` is none of them.
    """
    if name == "single":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices(
            "GPU"
        ) or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    raise ValueError(
        f"There is no strategy called {name!r}. Expected one of "
        f"{', '.join(map(repr, _STRATEGIES))}. Set it with --gin.train.strategy=..."
    )
