"""Requests that come at the same time, computed together."""

import uuid

import tensorflow as tf

from remixer_tf.errors import UserError

# Batches computed at the same time. While no call comes, TensorFlow's threads look for
# one every millisecond: 1% of a core each (measured with 8 and 16).
THREADS = 4
WAIT_MICROSECONDS = 5_000  # for a batch to fill up
# A request is split, and waits, rather than refused.
MANY = 2**20


def batch_calls(function, sizes):
    """Computes concurrent calls of a function together.

    They wait a few milliseconds for one another. Of a request larger than the largest
    size, parts are computed one after the other. Smaller batches are filled up to the
    next size.

    Args:
        function: a `tf.function` with an `input_signature` that returns a dictionary of
            tensors. All have the leading axis `batch`.
        sizes: list of ints that rise, the sizes of batches.

    Returns:
        such a `tf.function`.

    Raises:
        ValueError: the sizes do not rise from 1 on.
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
        # The name of this scope is that of the queue in which calls meet. It must be
        # unlike that of any other function in the process, or their calls are mixed.
        with tf.name_scope(f"calls_{uuid.uuid4().hex}"):
            answers = compute(*inputs)
        # Shapes are unknown here, and of no rows they are [0], whatever the rest.
        return {name: tf.reshape(x, shapes[name]) for name, x in answers.items()}

    return batched
