"""Limits of one request to an export."""

import tensorflow as tf

MAX_ROWS = 512
MAX_BYTES = 2**21  # of one string


def limit_requests(function, max_rows=MAX_ROWS, num_ids=None):
    """Refuses requests that would take the server's memory, or ids that are none.

    Args:
        function: a `tf.function` with an `input_signature`, of arguments `[batch, ..]`.
        max_rows: int, rows of a request at most.
        num_ids: int; int32 arguments are ids from 0 to `num_ids - 1`. None if it has
            no such arguments.

    Returns:
        such a `tf.function`. It raises InvalidArgumentError, of one line.
    """

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
