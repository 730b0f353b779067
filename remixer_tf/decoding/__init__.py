"""From a model's logits to answers, or to the likelihood of given ones.

`decode` is what searches have in common.
"""

from remixer_tf.decoding.beam_search import HuggingFaceRules, T5Rules, beam_search
from remixer_tf.decoding.constraints import AnswerLimits
from remixer_tf.decoding.encoders import best_span, classify
from remixer_tf.decoding.greedy import greedy_decode
from remixer_tf.decoding.sampling import Sampling, sample
from remixer_tf.decoding.scoring import Scores, check_scores, score
from remixer_tf.decoding.search import (
    Answers,
    Choice,
    Decoded,
    Hypotheses,
    Search,
    check_writes,
    decode,
)

__all__ = [
    "AnswerLimits",
    "Answers",
    "Choice",
    "Decoded",
    "HuggingFaceRules",
    "Hypotheses",
    "Sampling",
    "Scores",
    "Search",
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
