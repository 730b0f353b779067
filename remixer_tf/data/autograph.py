"""AutoGraph, where it has nothing to convert."""

import inspect

import seqio
import tensorflow as tf


def of_task(task):
    """Returns the parts of a task or mixture that make its examples, a list."""
    parts = []
    for each in seqio.get_subtasks(task):
        source = each.source
        parts += [source, *each.preprocessors]
        if isinstance(source, seqio.FunctionDataSource):
            parts.append(source._dataset_fn)
        parts += [feature.vocabulary for feature in each.output_features.values()]
    return parts


def without(function, parts):
    """Returns `function`, without AutoGraph if all that it calls is known.

    seqio and this package write no Python `if` or `for` over tensors, except for
    seqio's packing. AutoGraph reads their code nevertheless, for about 1 s before the
    first batch. All other code is converted as ever.

    Args:
        function: one that makes a `tf.data.Dataset`.
        parts: list of the functions and objects that it calls.
    """
    if all(_package(part) in ("seqio", "remixer_tf") for part in parts):
        return tf.autograph.experimental.do_not_convert(function)
    return function


def _package(part):
    # A partial function is functools', since its arguments may be anyone's functions.
    owner = part if inspect.isfunction(part) else type(part)
    return owner.__module__.partition(".")[0]
