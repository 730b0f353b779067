"""Requests to an export: limits, and batches of concurrent ones."""

import uuid

import tensorflow as tf

from remixer_tf.errors import UserError, check_integers

MAX_ROWS = 512
MAX_BYTES = 2**21  # of one string
# Batches computed at the same time. While no call comes, TensorFlow's threads look for
# one every millisecond: 1% of a core each (measured with 8 and 16).
THREADS = 4
WAIT_MICROSECONDS = 5_000  # for a batch to fill up
MANY = 2**20  # so that a long queue waits and is not refused


def limit_requests(function, max_rows=MAX_ROWS, num_ids=None):
    """Refuses requests that would exhaust the server's memory, and unknown ids.

    Returns such a `tf.function`. It raises InvalidArgumentError, in one line.

    Args:
        function: a `tf.function` with an `input_signature`, of arguments `[batch, ..]`.
        max_rows: int, the most rows of a request.
        num_ids: int; int32 arguments are ids below it. None without such arguments.
    """

    check_integers(max_rows=max_rows)

    @tf.function(input_signature=function.input_signature, autograph=False)
    def limited(*inputs):
        checks = []
        for spec, value in zip(function.input_signature, inputs, strict=True):
            rows = tf.shape(value)[0]
            message = f"A request has at most {max_rows} rows. Rows of {spec.name}:"
            checks.append(tf.debugging.Assert(rows <= max_rows, [message, rows]))
            if spec.dtype == tf.string:
                size = tf.reduce_max(tf.strings.length(value))
                message = f"A text has at most {MAX_BYTES} bytes. In {spec.name}:"
                checks.append(tf.debugging.Assert(size <= MAX_BYTES, [message, size]))
            elif spec.dtype == tf.int32 and num_ids:
                known = tf.reduce_all((value >= 0) & (value < num_ids))
                low, high = tf.reduce_min(value), tf.reduce_max(value)
                message = f"Ids are 0 to {num_ids - 1}. {spec.name} has, from and to:"
                checks.append(tf.debugging.Assert(known, [message, low, high]))
        with tf.control_dependencies(checks):
            return function(*map(tf.identity, inputs))

    return limited


def batch_calls(function, sizes):
    """Computes concurrent calls of a function together; returns such a `tf.function`.

    Calls wait a few milliseconds for one another. A batch is filled up to the next
    size. A request that is larger than the largest size is computed in parts.

    `function` is a `tf.function` with an `input_signature` that returns a dictionary of
    tensors. All have the leading axis `batch`. `sizes`, of batches, is a list of ints
    that rise from 1 on, else it is a ValueError.
    """
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
        THREADS,
        MANY,
        WAIT_MICROSECONDS,
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
