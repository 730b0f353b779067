"""The tasks `text_lm[_stride]`, `text_mlm`, `text_documents`: your own text files.

`text_files.py` says where the files are looked for. Documents end in EOS, stand on
end, and are cut into pieces of the length that the model reads, so that no token is
padding but at the very end. An example of a length of 8, on bytes:

    text_lm    targets  [87, 107, 108, 118, 35, 108, 118, 1]
    text_mlm   inputs   [260, 87, 107, 261, 118, 35, 108, 118]
               targets  [-1, -1, -1, 108, -1, -1, -1, -1]

`text_lm_stride` is `text_lm` to be evaluated with a stride, the length of its targets;
its inputs are what comes before them, as far as their length goes:

    --gin.LossEvaluation.task="'text_lm_stride'" \\
    --gin.LossEvaluation.feature_converter=@PrefixLMFeatureConverter \\
    --gin.LossEvaluation.feature_lengths="{'inputs': 448, 'targets': 64}"

`text_documents` has the documents whole, to train a vocabulary from:

    python -m remixer_tf.train_vocabulary --task=text_documents --features=targets ...

`text_lm` is read with `seqio.LMFeatureConverter`, `text_mlm` with
`MaskedLMFeatureConverter` and a vocabulary of at least three extra ids. None has
metrics beside the loss and what follows from it.
"""

import functools

import seqio

from remixer_tf.data.context import with_context
from remixer_tf.data.masked_lm import concat_and_split, mask_tokens
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import rows, text_files
from remixer_tf.tasks.text_files import set_directory

__all__ = ["set_directory"]


def _read_rows(split):
    return [(text,) for text in text_files.read_split(split)]


def _add_task(name, vocabulary, features, preprocessors):
    seqio.TaskRegistry.add(
        name,
        source=rows.RowSource(_read_rows, text_files.SPLITS, names=("targets",)),
        preprocessors=[
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
            *preprocessors,
        ],
        output_features={feature: seqio.Feature(vocabulary) for feature in features},
        shuffle_buffer_size=1000,
    )


_add_task("text_documents", byte_vocabulary(), ["targets"], [])
_add_task("text_lm", byte_vocabulary(), ["targets"], [concat_and_split])
_add_task(
    "text_lm_stride",
    byte_vocabulary(),
    ["inputs", "targets"],
    [concat_and_split, with_context],
)
_add_task(
    "text_mlm",
    byte_vocabulary(extra_ids=3),
    ["inputs", "targets"],
    # One token less for [CLS], which masking puts in front.
    [functools.partial(concat_and_split, room=1), mask_tokens],
)
