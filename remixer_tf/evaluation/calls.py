"""Calling a compiled function on batches of examples."""

import numpy as np
import rich.progress
import tensorflow as tf

from remixer_tf import console
from remixer_tf.data.eval_batches import batch_examples
from remixer_tf.models.padding import depends_on_padding


def call_on_examples(function, examples, codec, *, description, **options):
    """Calls a function on batches of examples, next to a progress bar.

    Args:
        function: takes a batch, a dictionary of tensors [rows, ...], and returns a
            structure of NumPy arrays [rows, ...] of the same shapes for all batches.
        examples, codec, options: see `batch_examples`.
        description: str, of the progress bar.

    Returns:
        the structure, with arrays [num_examples, ...] in the order of the examples.
    """
    results = None
    for batch in rich.progress.track(
        batch_examples(examples, codec, **options),
        description,
        transient=True,
        disable=not console.draws(),
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


def padded_lengths(model, feature_lengths):
    """The lengths that rows may be padded to without another answer than `infer`'s.

    Inference pads to `feature_lengths`. Quarters of them save time, and give the same
    where padding is masked and float32 rounds. Otherwise there is one length: a model
    that sees its padding would see less of it than in training; and in bfloat16 a sum
    over fewer zeros may round to another number, and of two tokens that are about as
    likely the other one be written. The length of targets, which are not read, stays.
    """
    writes_in_bfloat16 = (
        hasattr(model, "decode_step") and model.compute_dtype != "float32"
    )
    if writes_in_bfloat16 or depends_on_padding(model):
        return [dict(feature_lengths)]
    return [
        {
            name: n if name == "targets" else -(-n * quarter // 4)
            for name, n in feature_lengths.items()
        }
        for quarter in (1, 2, 3, 4)
    ]
