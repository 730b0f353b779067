"""What becomes of running text in pre-training: seqio's preprocessors.

Each is a tuple of preprocessors of datasets with a document's tokens, int32 `[n]`,
under "targets". Documents are joined, and cut into pieces of the length that the model
reads, so that next to no token is padding. Of documents "abcdefghijkl" and "mnopqrst",
in bytes, a first example could be

    SPAN_CORRUPTION  inputs   [100, 101, ..., 113, 358, 1]     lengths 16, 6
                     targets  [358, 114, 115, 116, 1]
    PREFIX_LM        inputs   [100, 101, 1]                     lengths 8, 8
                     targets  [102, 103, 104, 105, 106, 1]
    MASKED_LM        inputs   [260, 261, 101, 102, ..., 110]   length 12
                     targets  [-1, 100, -1, ..., -1]
    CAUSAL_LM        targets  [100, 101, ..., 111, 1, 112]     length 14

Span corruption and prefix LM end each example in EOS, the others each document.
Sources: T5 (Raffel et al. 2020, sections 3.1.4, 3.2.1 and 3.3.4), whose code these run
where they can; BERT (Devlin et al. 2019, section 3.1) for masking.
"""

import functools

import seqio

from remixer_tf.data.context import with_context
from remixer_tf.data.masked_lm import concat_and_split, mask_tokens
from remixer_tf.errors import UserError
from remixer_tf.tasks.t5_library import import_t5

DENSITY = 0.15
MEAN_SPAN = 3.0


def span_corruption(dataset, sequence_length, output_features):
    """T5's span corruption, with sentinels that are no tokens of the text's.

    Inputs have room for `raw` tokens, of which 15% go into the targets in spans of 3 on
    average: at 512, 568 and targets of 114. Features are one token shorter than their
    lengths at most: EOS follows.

    Raises:
        ValueError: the targets' length is too short, or the vocabulary has fewer extra
            ids than a piece has spans.
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
    """T5's prefix LM, but of documents that are joined first.

    A piece as long as the inputs is cut at a random place: what comes before it are the
    inputs, the rest the targets. EOS follows both.

    Raises:
        ValueError: targets are shorter than inputs.
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


_append_eos = seqio.preprocessors.append_eos
_append_eos_after_trim = seqio.preprocessors.append_eos_after_trim

SPAN_CORRUPTION = (span_corruption, _append_eos_after_trim)
PREFIX_LM = (joined_prefix_lm, _append_eos_after_trim)
# One token less for [CLS], which masking puts in front.
MASKED_LM = (_append_eos, functools.partial(concat_and_split, room=1), mask_tokens)
CAUSAL_LM = (_append_eos, concat_and_split)
STRIDED_LM = (*CAUSAL_LM, with_context)
DOCUMENTS = (_append_eos,)
