"""Tasks made of rows in memory: pairs of texts, scored by type of example."""

import seqio
import tensorflow as tf

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import metrics

# Of texts, tokens that end in EOS. Such a task can be cached.
TOKENIZE = (
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos,
)


def add_task(name, read_rows, splits, kind_of_type, shuffle_buffer_size):
    """Registers a seqio task whose examples are inputs, targets and a type.

    Inputs and targets are bytes by default, and end in EOS. Examples keep the texts
    (`inputs_pretokenized`, `targets_pretokenized`) and the string `type`. The metric
    is exact match after whitespace normalisation, see `metrics.exact_match_by_type`.

    Args:
        name: str, of the task.
        read_rows: function of a split's name that returns all its rows: (inputs,
            targets, type). Called when the split is read, not before.
        splits: names of the splits.
        kind_of_type: dictionary, type -> "lexical" or "structural".
        shuffle_buffer_size: int; as large as the training split, it shuffles fully.
    """
    seqio.TaskRegistry.add(
        name,
        source=RowSource(read_rows, splits),
        preprocessors=TOKENIZE,
        output_features={
            "inputs": seqio.Feature(byte_vocabulary()),
            "targets": seqio.Feature(byte_vocabulary()),
        },
        postprocess_fn=metrics.postprocess,
        metric_fns=[metrics.exact_match_by_type(kind_of_type)],
        shuffle_buffer_size=shuffle_buffer_size,
    )


class RowSource(seqio.FunctionDataSource):
    """Rows in memory. Asked to shuffle, it leaves that to the task's buffer.

    seqio's own class would warn that a source of one file shuffles too little.

    Args:
        read_rows: function of a split's name that returns all its rows: tuples of str,
            or of what else makes tensors of equal shapes.
        splits: names of the splits.
        names: names of a row's parts.
    """

    def __init__(self, read_rows, splits, names=("inputs", "targets", "type")):
        def dataset_fn(split, shuffle_files=False, seed=None):
            del shuffle_files, seed
            columns = zip(*read_rows(split), strict=True)
            return tf.data.Dataset.from_tensor_slices(
                dict(zip(names, map(list, columns), strict=True))
            )

        super().__init__(dataset_fn, splits)
        self.read_rows = read_rows

    def get_dataset(self, split="train", shuffle=True, seed=None, **kwargs):
        return super().get_dataset(split, shuffle=False, seed=seed, **kwargs)

    def num_input_examples(self, split):
        """Returns the number of rows of a split."""
        return len(self.read_rows(split))
