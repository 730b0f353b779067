"""From a model's logits to answers, or to the likelihood of given ones.

`decode` is what searches have in common.
"""

from remixer_tf.decoding.beam_search import (
    HuggingFaceRules,
    T5Rules,
    beam_search,
)
from remixer_tf.decoding.constraints import Constraint
from remixer_tf.decoding.encoders import best_span, classify
from remixer_tf.decoding.greedy import greedy_decode
from remixer_tf.decoding.sampling import sample
from remixer_tf.decoding.scoring import Scores, check_scores, score
from remixer_tf.decoding.search import (
    Answers,
    Choice,
    Decoded,
    Hypotheses,
    check_writes,
    decode,
)

__all__ = [
    "Answers",
    "Choice",
    "Constraint",
    "Decoded",
    "HuggingFaceRules",
    "Hypotheses",
    "Scores",
    "T5Rules",
    "beam_search",
    "best_span",
    "check_scores",
    "check_writes",
    "classify",
    "decode",
    "greedy_decode",
    "sample",
    "score",
]
