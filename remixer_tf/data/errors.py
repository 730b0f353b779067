"""What goes wrong inside a dataset, told as plain sentences."""

import contextlib
import re

import tensorflow as tf

_START, _END = "data error <<", ">>"


def fail_unless(condition, message):
    """Returns an op that fails with `message`, a scalar string, unless `condition`.

    For functions that `tf.data.Dataset.map` calls. See `data_errors`.
    """
    return tf.debugging.Assert(condition, [tf.strings.join([_START, message, _END])])


@contextlib.contextmanager
def data_errors():
    """Turns TensorFlow's report of a failed `fail_unless` into a plain ValueError.

    with data_errors():
        batch = next(iterator)
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(f"{_START}(.*?){_END}", error.message, re.DOTALL)
        if not found:
            raise
        raise ValueError(found[1]) from None
