"""Language modelling and denoising of text: files of one's own, and C4.

`text_task` makes a task of files (see `text_files.py`) or of a dataset of TensorFlow
Datasets. These tasks read the folder `text_files.directory`:

- `text_span_corruption`: T5's denoising;
- `text_prefix_lm`: the rest of a piece after its beginning;
- `text_mlm`: BERT's masking, for `MaskedLMFeatureConverter`;
- `text_lm`: for language models;
- `text_lm_stride`: `text_lm`, evaluated with a stride, which is the length of its
  targets; its inputs are the text before them, up to their own length:

        --gin.LossEvaluation.task=text_lm_stride \\
        --gin.LossEvaluation.feature_lengths="{'inputs': 448, 'targets': 64}"

- `text_documents`: whole documents, to train a vocabulary from:

        python -m remixer_tf train_vocabulary --task=text_documents --features=targets

C4 has `c4_v220_lm` and `c4_v220_mlm` as well as T5's `c4_v220_span_corruption` and
`c4_v220_prefix_lm`. The only metrics are the loss and what follows from it.

Documents are joined and cut into pieces of the model's length, so that almost no token
is padding. "abcdefghijkl" and "mnopqrst", in bytes, could give as a first example

    span_corruption  inputs   [100, 101, ..., 113, 358, 1]     lengths 16, 6
                     targets  [358, 114, 115, 116, 1]
    prefix_lm        inputs   [100, 101, 1]                    lengths 8, 8
                     targets  [102, 103, 104, 105, 106, 1]
    mlm              inputs   [260, 261, 101, 102, ..., 110]   length 12
                     targets  [-1, 100, -1, ..., -1]
    lm               targets  [100, 101, ..., 111, 1, 112]     length 14

Span corruption and prefix LM end each example in EOS, the others each document.
Sources: T5 (Raffel et al. 2020, sections 3.1.4, 3.2.1 and 3.3.4), whose code runs where
it can; BERT (Devlin et al. 2019, section 3.1).
"""

import functools
from typing import NamedTuple

import seqio
import tensorflow as tf

from remixer_tf.data.masked_lm import concat_and_split, mask_tokens
from remixer_tf.errors import UserError, check_choices
from remixer_tf.tasks import text_files
from remixer_tf.tasks.rows import RowSource, byte_features, check_task
from remixer_tf.tasks.streams import StreamedRows, is_streamed
from remixer_tf.tasks.t5_library import import_t5

DENSITY = 0.15
MEAN_SPAN = 3.0


def span_corruption(dataset, sequence_length, output_features):
    """T5's span corruption; the sentinels are ids that the text does not use.

    15% of a piece's tokens move into the targets, in spans of 3 on average: inputs of
    512 hold 568 tokens of text, and targets have 114. Features are one token shorter
    than their lengths, as EOS follows.
    """
    t5 = import_t5("data.preprocessors")
    raw, targets = t5.random_spans_helper(
        inputs_length=sequence_length["inputs"],
        noise_density=DENSITY,
        mean_noise_span_length=MEAN_SPAN,
        extra_tokens_per_span_inputs=1,
        extra_tokens_per_span_targets=1,
    )
    if sequence_length["targets"] < targets:
        raise UserError(
            f"Span corruption makes targets of {targets} tokens from inputs of "
            f"{sequence_length['inputs']}. Set FEATURE_LENGTHS = {{'inputs': "
            f"{sequence_length['inputs']}, 'targets': {targets}}}. Received: "
            f"{dict(sequence_length)}."
        )
    spans = round(round(raw * DENSITY) / MEAN_SPAN)
    extra_ids = output_features["targets"].vocabulary.extra_ids
    if extra_ids < spans:
        raise UserError(
            f"Span corruption of {raw} tokens has {spans} spans, and each needs an id "
            f"of its own: the vocabulary's extra ids. Received: extra_ids={extra_ids}. "
            "Set extra_ids = 100 at byte_vocabulary or sentencepiece_vocabulary, and "
            "name that in VOCABULARY."
        )
    return t5.span_corruption(
        dataset,
        sequence_length,
        output_features,
        mean_noise_span_length=MEAN_SPAN,
        noise_density=DENSITY,
    )


def joined_prefix_lm(dataset, sequence_length, output_features):
    """T5's prefix LM on documents that are joined first.

    A piece as long as the inputs is cut at a random place into inputs and targets. EOS
    follows both.
    """
    if sequence_length["targets"] < sequence_length["inputs"]:
        raise UserError(
            "The targets of prefix LM may be as long as its inputs. Set "
            "FEATURE_LENGTHS to equal lengths. Received: "
            f"{dict(sequence_length)}."
        )
    t5 = import_t5("data.preprocessors")
    dataset = t5.select_random_chunk(
        dataset, output_features, feature_key="targets", max_length=65536
    )
    dataset = t5.reduce_concat_tokens(dataset, feature_key="targets", batch_size=128)
    dataset = t5.split_tokens_to_inputs_length(
        dataset, sequence_length, output_features
    )
    return t5.denoise(
        dataset,
        output_features,
        noise_density=0.5,
        noise_mask_fn=t5.random_prefix_noise_mask,
        inputs_fn=t5.drop_nonnoise_tokens,
        targets_fn=t5.drop_noise_tokens,
    )


def with_context(dataset, sequence_length):
    """A preprocessor: the tokens before a piece of text become its inputs.

    Each token is a target once. The dataset has int32 `[n]` under "targets", in the
    text's order. With lengths of 4 for inputs and 2 for targets,

        {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5, 6]}, {"targets": [7]}

    become targets with the inputs [], [1, 2], [1, 2, 3, 4] and [3, 4, 5, 6].
    """

    def advance(before, example):
        text = tf.concat([before, example["targets"]], axis=0)
        start = tf.maximum(tf.size(text) - sequence_length["inputs"], 0)
        return text[start:], {"inputs": before, "targets": example["targets"]}

    return dataset.scan(tf.zeros([0], tf.int32), advance)


class Objective(NamedTuple):
    """The features of an objective, its preprocessors, and the extra ids it needs.

    The preprocessors read a document's tokens, int32 `[n]`, under "targets".
    """

    features: tuple
    preprocessors: tuple
    extra_ids: int = 0


_BOTH = ("inputs", "targets")
_eos = seqio.preprocessors.append_eos
_eos_after_trim = seqio.preprocessors.append_eos_after_trim
# One token less for [CLS], which masking puts in front.
_pieces_for_masking = functools.partial(concat_and_split, room=1)
OBJECTIVES = {
    "span_corruption": Objective(_BOTH, (span_corruption, _eos_after_trim), 100),
    "prefix_lm": Objective(_BOTH, (joined_prefix_lm, _eos_after_trim)),
    "mlm": Objective(_BOTH, (_eos, _pieces_for_masking, mask_tokens), 3),
    "lm": Objective(("targets",), (_eos, concat_and_split)),
    "lm_stride": Objective(_BOTH, (_eos, concat_and_split, with_context)),
    "documents": Objective(("targets",), (_eos,)),
}


def text_task(
    objective="span_corruption",
    corpus=None,
    name=None,
    on_bad_rows="raise",
    shuffle_buffer_size=1000,
    streamed: bool | None = None,
):
    """Makes a `seqio.Task` from text; it is not in seqio's registry.

    It is in bytes unless `Run.vocabulary` is set. `python -m remixer_tf cache`
    keeps the documents' tokens, so that every epoch is corrupted anew.

    Args:
        objective: a name of `OBJECTIVES`.
        corpus: None, the folder of `text_files.directory`; a dictionary, split -> file,
            pattern, or list of them, see `text_files`; or a dataset of TensorFlow
            Datasets with texts under "text", such as "c4/en:2.2.0".
        name: str, of the task; default "text_" and the objective.
        on_bad_rows: "raise", or "skip": they are left out, and counted in a warning.
        shuffle_buffer_size: int, examples.
        streamed: bool, whether the files of a dictionary are read in their order and
            not held in memory, shuffled, see `remixer_tf.tasks.streams`; None for files
            of more than 256 MiB together.

    Raises:
        ValueError: an argument does not fit. When examples are asked for: bad rows, or
            no text.
        FileNotFoundError: when examples are asked for: there is no such file.
    """
    check_choices(OBJECTIVES, objective=objective)
    check_choices(("raise", "skip"), on_bad_rows=on_bad_rows)
    name = name or f"text_{objective}"
    check_task(name, shuffle_buffer_size)
    features, preprocessors, extra_ids = OBJECTIVES[objective]
    return seqio.Task(
        name,
        source=_source(corpus, on_bad_rows == "skip", streamed),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            *preprocessors,
        ],
        output_features=byte_features(features, extra_ids),
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _source(corpus, skip, streamed):
    read, splits = text_files.read_split, text_files.SPLITS
    if isinstance(corpus, str) and ":" in corpus:
        return seqio.TfdsDataSource(corpus)
    of_files = isinstance(corpus, dict) and corpus
    if streamed and not of_files:
        raise UserError(
            "streamed=True needs a corpus that names files, such as {'train': "
            f"'web-*.jsonl.zst'}}. Received: corpus={corpus!r}"
        )
    settings = {"corpus": corpus or text_files.data_folder, "skip": skip}
    if of_files:
        splits = tuple(corpus)

        def shards(split):
            return text_files.files_of_patterns(corpus[split])

        if is_streamed(streamed, lambda: [x for k in corpus for x in shards(k)]):
            read = functools.partial(text_files.stream_file, skip)
            return StreamedRows(shards, read, splits, ("text",), settings=settings)

        def read(split, skip):
            return text_files.read_files(corpus[split], skip)

    elif corpus is not None:
        raise UserError(
            "corpus must be None (the folder of text_files.directory), a dictionary "
            "such as {'train': 'books/*.txt', 'validation': 'dev.jsonl.gz'}, or a "
            "dataset of TensorFlow Datasets with its version, such as 'c4/en:2.2.0'. "
            f"Received: {corpus!r}."
        )
    return RowSource(
        lambda split: [(x,) for x in read(split, skip)], splits, ("text",), settings
    )


for _objective in OBJECTIVES:
    seqio.TaskRegistry.add_provider(f"text_{_objective}", text_task(_objective))
for _objective in ("lm", "mlm"):
    _task = text_task(_objective, "c4/en:2.2.0", f"c4_v220_{_objective}")
    seqio.TaskRegistry.add_provider(_task.name, _task)
