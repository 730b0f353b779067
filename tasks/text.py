"""Language modelling and denoising of text: files of one's own, and C4.

`text_files.py` says where the files are looked for and how they are cut into
documents. `text_task` makes a task of files, or of a dataset of TensorFlow Datasets,
that a gin file names. These are registered, of the folder `text_files.directory`:

- `text_span_corruption`: T5's denoising;
- `text_prefix_lm`: the rest of a piece after a beginning of it;
- `text_mlm`: BERT's masking, for `MaskedLMFeatureConverter`;
- `text_lm`: for language models;
- `text_lm_stride`: `text_lm` to be evaluated with a stride, the length of its targets;
  its inputs are what comes before them, as far as their length goes:

        --gin.LossEvaluation.task=text_lm_stride \\
        --gin.LossEvaluation.feature_lengths="{'inputs': 448, 'targets': 64}"

- `text_documents`: the documents whole, to train a vocabulary from:

        python -m remixer_tf train_vocabulary --task=text_documents --features=targets

and of C4 `c4_v220_lm` and `c4_v220_mlm`, beside T5's `c4_v220_span_corruption` and
`c4_v220_prefix_lm`. None has metrics beside the loss and what follows from it.
"""

import functools
from typing import NamedTuple

import seqio

from remixer_tf.errors import UserError
from remixer_tf.tasks import objectives, text_files
from remixer_tf.tasks.bad_rows import check_on_bad_rows
from remixer_tf.tasks.rows import RowSource, byte_features

__all__ = ["OBJECTIVES", "text_task"]


class Objective(NamedTuple):
    """What becomes of documents.

    Attributes:
        features: tuple of str.
        preprocessors: tuple of preprocessors, of int32 `[n]` under "targets".
        extra_ids: int, of the vocabulary.
    """

    features: tuple
    preprocessors: tuple
    extra_ids: int = 0


OBJECTIVES = {
    "span_corruption": Objective(
        ("inputs", "targets"), objectives.SPAN_CORRUPTION, extra_ids=100
    ),
    "prefix_lm": Objective(("inputs", "targets"), objectives.PREFIX_LM),
    "mlm": Objective(("inputs", "targets"), objectives.MASKED_LM, extra_ids=3),
    "lm": Objective(("targets",), objectives.CAUSAL_LM),
    "lm_stride": Objective(("inputs", "targets"), objectives.STRIDED_LM),
    "documents": Objective(("targets",), objectives.DOCUMENTS),
}


def text_task(
    objective="span_corruption",
    corpus=None,
    name=None,
    on_bad_rows="raise",
    shuffle_buffer_size=1000,
):
    """Makes a seqio task from text, see `remixer_tf.tasks.objectives`.

    It can be cached: `python -m remixer_tf cache`. What is cached are the documents'
    tokens, so that every epoch is corrupted anew.

    Args:
        objective: a name of `OBJECTIVES`.
        corpus: None, the folder of `text_files.directory`; a dictionary, split -> file,
            pattern, or list of them, see `remixer_tf.tasks.text_files`; or the name of
            a dataset of TensorFlow Datasets with texts under "text", such as
            "c4/en:2.2.0".
        name: str, of the task; default "text_" and the objective.
        on_bad_rows: "raise", or "skip": they are left out, and counted in a warning.
        shuffle_buffer_size: int, examples.

    Returns:
        a `seqio.Task`, of bytes, which `get_task.vocabulary` replaces. It is not in
        seqio's registry.

    Raises:
        ValueError: an argument does not fit. When examples are asked for: bad rows, or
            no text.
        FileNotFoundError: when examples are asked for: there is no such file.
    """
    if objective not in OBJECTIVES:
        raise UserError(
            f"objective must be one of {', '.join(OBJECTIVES)}. Received: "
            f"{objective!r}."
        )
    check_on_bad_rows(on_bad_rows)
    features, preprocessors, extra_ids = OBJECTIVES[objective]
    return seqio.Task(
        name or f"text_{objective}",
        source=_source(corpus, on_bad_rows == "skip"),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            *preprocessors,
        ],
        output_features=byte_features(features, extra_ids),
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _source(corpus, skip):
    if corpus is None:
        read, splits = text_files.read_split, text_files.SPLITS
    elif isinstance(corpus, dict) and corpus:
        splits = tuple(corpus)

        def read(split, skip):
            return text_files.read_files(corpus[split], skip)

    elif isinstance(corpus, str) and ":" in corpus:
        return seqio.TfdsDataSource(corpus)
    else:
        raise UserError(
            "corpus must be None (the folder of text_files.directory), a dictionary "
            "such as {'train': 'books/*.txt', 'validation': 'dev.jsonl.gz'}, or a "
            "dataset of TensorFlow Datasets with its version, such as 'c4/en:2.2.0'. "
            f"Received: {corpus!r}."
        )
    return RowSource(
        lambda split: [(text,) for text in read(split, skip)], splits, names=("text",)
    )


for _objective in OBJECTIVES:
    seqio.TaskRegistry.add_provider(f"text_{_objective}", text_task(_objective))
for _objective in ("lm", "mlm"):
    _task = text_task(_objective, "c4/en:2.2.0", f"c4_v220_{_objective}")
    seqio.TaskRegistry.add_provider(_task.name, _task)
