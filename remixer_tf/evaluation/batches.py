"""Calling a compiled function of batches on examples."""

import numpy as np
import rich.console
import rich.progress
import tensorflow as tf

from remixer_tf.data.eval_batches import batch_examples


def call_on_examples(function, examples, codec, *, description, **options):
    """Calls a function on batches of examples; see `batch_examples` for those.

    Args:
        function: takes a batch, a dictionary of tensors [rows, ...], and returns a
            structure of NumPy arrays [rows, ...] of the same shapes for all batches.
        examples: list from `read_examples`.
        codec: the `Codec` of their task.
        description: str, beside the progress bar.
        options: of `batch_examples`.

    Returns:
        the structure, with arrays [num_examples, ...] in the order of the examples.
    """
    results = None
    hidden = not rich.console.Console().is_terminal
    for batch in rich.progress.track(
        batch_examples(examples, codec, **options),
        description,
        transient=True,
        disable=hidden,
    ):
        index = batch.pop("example_index").numpy()
        real = index >= 0
        new = function(batch)
        if results is None:
            results = tf.nest.map_structure(
                lambda x: np.zeros([len(examples), *x.shape[1:]], x.dtype), new
            )
        for whole, part in zip(
            tf.nest.flatten(results), tf.nest.flatten(new), strict=True
        ):
            whole[index[real]] = part[real]
    return results
