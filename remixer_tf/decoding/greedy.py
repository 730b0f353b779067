"""The likeliest token at every step."""

from typing import Any

from keras import ops

from remixer_tf.decoding.constraints import AnswerLimits
from remixer_tf.decoding.search import Choice, Decoded, Search, decode
from remixer_tf.kernels.largest import largest


def greedy_decode(
    model: Any,
    batch: Any,
    max_length: int,
    eos_id: int = 1,
    limits: AnswerLimits | None = None,
) -> Decoded:
    """Takes the likeliest token at every step, until all rows have ended.

    For arguments and errors see `decode`. Returns a `Decoded`; scores are
    log-probabilities after the penalty of repetition.
    """

    def choose(log_probs, hypotheses, place, state):
        tokens = largest(log_probs)
        return Choice(tokens, ended=ops.equal(tokens, eos_id))

    def search(batch):
        return Search(choose)

    (tokens, scores, _), _ = decode(model, batch, max_length, search, eos_id, limits)
    return Decoded(tokens[:, 0], scores[:, 0])
