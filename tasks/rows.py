"""Tasks made of rows in memory, and what tasks of texts have in common."""

import seqio
import tensorflow as tf

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.tasks import metrics

# Of texts, tokens that end in EOS. Such a task can be cached.
TOKENIZE = (
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos,
)


def byte_features(names=("inputs", "targets"), extra_ids=0, add_eos=True):
    """Returns features of text in bytes, which `get_task.vocabulary` replaces."""
    feature = seqio.Feature(byte_vocabulary(extra_ids), add_eos=add_eos)
    return dict.fromkeys(names, feature)


def add_task(name, read_rows, splits, kind_of_type):
    """Registers a seqio task whose examples are inputs, targets and a type.

    Examples keep the texts (`inputs_pretokenized`, `targets_pretokenized`) and the
    string `type`. `read_rows` returns all rows of a split's name, (inputs, targets,
    type), when the split is read. The metric is
    `metrics.exact_match_by_type(kind_of_type)`.
    """
    seqio.TaskRegistry.add(
        name,
        source=RowSource(read_rows, splits),
        preprocessors=TOKENIZE,
        output_features=byte_features(),
        postprocess_fn=metrics.postprocess,
        metric_fns=[metrics.exact_match_by_type(kind_of_type)],
        shuffle_buffer_size=32_768,  # more training examples than any of them has
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
            rows = read_rows(split)
            if not rows:
                raise UserError(f"The split {split!r} has no rows.")
            columns = map(list, zip(*rows, strict=True))
            columns = dict(zip(names, columns, strict=True))
            return tf.data.Dataset.from_tensor_slices(columns)

        super().__init__(dataset_fn, splits)
        self.read_rows = read_rows

    def get_dataset(self, split="train", shuffle=True, seed=None, **kwargs):
        return super().get_dataset(split, shuffle=False, seed=seed, **kwargs)

    def num_input_examples(self, split):
        """Returns the number of rows of a split."""
        return len(self.read_rows(split))
