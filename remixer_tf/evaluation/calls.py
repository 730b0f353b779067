"""Calling a compiled function on batches of examples."""

import numpy as np
import rich.progress
import tensorflow as tf

from remixer_tf import console
from remixer_tf.data.eval_batches import batch_examples
from remixer_tf.training.progress import rich_console


def call_on_examples(function, examples, codec, *, description, **options):
    """Calls a function on batches of examples, and shows a progress bar.

    The function takes a dictionary of tensors [rows, ...], and returns a structure of
    NumPy arrays [rows, ...], of the same shapes for all batches. Returns the structure,
    with arrays [num_examples, ...] in the order of the examples. For examples, codec
    and options see `batch_examples`.
    """
    places, results = [], []
    for batch in rich.progress.track(
        batch_examples(examples, codec, **options),
        description,
        transient=True,
        console=rich_console(),
        disable=not console.draws(),
    ):
        places.append(batch.pop("example_index").numpy())
        results.append(function(batch))
    # Rows that fill up the last batch have the place -1.
    order = np.argsort(np.concatenate(places), kind="stable")[-len(examples) :]
    return tf.nest.map_structure(lambda *x: np.concatenate(x)[order], *results)
