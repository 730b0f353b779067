"""From a model's logits to answers, or to the likelihood of given ones.

`decode` is what searches have in common.
"""

from remixer_tf.decoding.encoders import best_span, classify
from remixer_tf.decoding.greedy import greedy_decode
from remixer_tf.decoding.scoring import Scores, score
from remixer_tf.decoding.search import (
    Choice,
    Decoded,
    Hypotheses,
    check_writes,
    decode,
)

__all__ = [
    "Choice",
    "Decoded",
    "Hypotheses",
    "Scores",
    "best_span",
    "check_writes",
    "classify",
    "decode",
    "greedy_decode",
    "score",
]
