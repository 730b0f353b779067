"""Requests to an export: limits, and batches of concurrent ones."""

import inspect
import uuid
from typing import Any, NamedTuple

import tensorflow as tf

from remixer_tf.errors import UserError, check_integers

MAX_ROWS = 512
MAX_BYTES = 2**21  # of one string
# While no call comes, TensorFlow's threads look for one every millisecond: 1% of a core
# each (measured with 8 and 16).
BATCHES_AT_ONCE = 4
WAIT_MILLISECONDS = 5
MANY = 2**20  # so that a long queue waits and is not refused


class Setting(NamedTuple):
    """A number of a request: an argument that may be left out.

    Attributes:
        spec: `tf.TensorSpec` of rank 1.
        default: the number where a request leaves it out.
        low, high: the least and the greatest number that a request may give.
    """

    spec: Any
    default: Any
    low: Any
    high: Any


def limit_requests(function, max_rows=MAX_ROWS, num_ids=None, settings=()):
    """Refuses requests that would exhaust the server's memory, and unknown ids.

    Returns such a `tf.function`. It raises InvalidArgumentError, in one line. A setting
    may be one number for all rows, and is left out of a request to TensorFlow Serving.

    Args:
        function: a `tf.function` with an `input_signature`, of arguments `[batch, ..]`.
        max_rows: int, the most rows of a request.
        num_ids: int; int32 arguments are ids below it. None without such arguments.
        settings: list of `Setting`s, those of the function's last arguments.
    """

    check_integers(max_rows=max_rows)
    specs = function.input_signature
    settings = {setting.spec.name: setting for setting in settings}

    one_or_each = "one number, or one for each text"

    def refuse(valid, message, *values):
        return tf.debugging.Assert(valid, [message, *values])

    def checked(spec, value, rows):
        """An argument, once it is checked; `rows` are the request's."""
        if spec.dtype == tf.string or spec.name in settings:
            rank = tf.rank(value)
            valid, kind = rank == 1, "a list of texts, [batch]"
            if spec.name in settings:
                valid, kind = rank <= 1, one_or_each
            message = f"{spec.name} must be {kind}. Received a tensor of rank:"
            with tf.control_dependencies([refuse(valid, message, rank)]):
                value = tf.reshape(value, [-1])
        size = tf.shape(value)[0]
        message = f"A request has at most {max_rows} rows. Rows of {spec.name}:"
        checks = [refuse(size <= max_rows, message, size)]
        if spec.name in settings:
            low, high = settings[spec.name].low, settings[spec.name].high
            message = f"{spec.name} must be {low} to {high}. Received:"
            valid = tf.reduce_all((value >= low) & (value <= high))
            checks.append(refuse(valid, message, value))
            message = f"{spec.name} must be {one_or_each}. Received:"
            checks.append(refuse((size == 1) | (size == rows), message, size))
        elif spec.dtype == tf.string:
            longest = tf.reduce_max(tf.strings.length(value))
            message = f"A text has at most {MAX_BYTES} bytes. In {spec.name}:"
            checks.append(refuse(longest <= MAX_BYTES, message, longest))
        elif spec.dtype == tf.int32 and num_ids:
            known = tf.reduce_all((value >= 0) & (value < num_ids))
            low, high = tf.reduce_min(value), tf.reduce_max(value)
            message = f"Ids are 0 to {num_ids - 1}. {spec.name} has, from and to:"
            checks.append(refuse(known, message, low, high))
        with tf.control_dependencies(checks):
            if spec.name in settings:
                return tf.broadcast_to(value, [rows])
            return tf.identity(value)

    def limited(*inputs):
        values = []
        for spec, value in zip(specs, inputs, strict=True):
            rows = tf.shape(values[0])[0] if values else None
            values.append(checked(spec, value, rows))
        return function(*values)

    # These take any rank, since TensorFlow's own error for another one is long.
    taken = [
        tf.TensorSpec(None, spec.dtype, spec.name)
        if spec.dtype == tf.string or spec.name in settings
        else spec
        for spec in specs
    ]
    limited.__signature__ = inspect.Signature(
        [_parameter(spec, settings.get(spec.name)) for spec in specs]
    )
    return tf.function(limited, input_signature=taken, autograph=False)


def _parameter(spec, setting):
    """An argument of a signature; TensorFlow saves a tensor that is its default."""
    default = inspect.Parameter.empty
    if setting is not None:
        default = tf.constant([setting.default], spec.dtype)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(spec.name, kind, default=default)


def batch_calls(
    function, sizes, wait_ms=WAIT_MILLISECONDS, batches_at_once=BATCHES_AT_ONCE
):
    """Computes concurrent calls of a function together; returns such a `tf.function`.

    A batch is filled up to the next size. A request that is larger than the largest
    size is computed in parts. Calls that must wait do so in a queue without a bound
    (2^20 batches), and none is refused.

    Args:
        function: a `tf.function` with an `input_signature` that returns a dictionary of
            tensors. All have the leading axis `batch`.
        sizes: list of ints, of batches. They rise from 1 on, else it is a ValueError.
        wait_ms: int, milliseconds that a call waits for others, to fill a batch.
        batches_at_once: int, batches computed at the same time, a thread each.
    """
    check_integers(0, wait_ms=wait_ms)
    check_integers(batches_at_once=batches_at_once)
    if not sizes or [*sizes] != sorted({*sizes}) or sizes[0] < 1:
        raise UserError(
            "Sizes of batches are at least 1, each greater than the one before. "
            f"Received: {sizes}"
        )
    shapes = {
        name: [-1, *spec.shape[1:]]
        for name, spec in function.get_concrete_function().structured_outputs.items()
    }
    compute = tf.nondifferentiable_batch_function(
        batches_at_once,
        MANY,
        1000 * wait_ms,
        allowed_batch_sizes=[*sizes],
        max_enqueued_batches=MANY,
        autograph=False,
    )(function)

    @tf.function(input_signature=function.input_signature, autograph=False)
    def batched(*inputs):
        # Calls meet in a queue with the name of this scope, so no other function of the
        # process may have it.
        with tf.name_scope(f"calls_{uuid.uuid4().hex}"):
            answers = compute(*inputs)
        # Shapes are unknown here, and without rows they are [0].
        return {name: tf.reshape(x, shapes[name]) for name, x in answers.items()}

    return batched
