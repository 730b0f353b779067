"""The likeliest token at every step."""

from keras import ops

from remixer_tf.decoding.constraints import Constraint
from remixer_tf.decoding.search import Choice, Decoded, decode
from remixer_tf.layers.base import largest


def greedy_decode(model, batch, max_length, eos_id=1, min_length=0, allowed=None):
    """Takes the likeliest token at every step, until all rows have ended.

    Args:
        model, batch, max_length: see `decode`.
        eos_id: int, the token that ends a sequence.
        min_length, allowed: see `Constraint`.

    Returns:
        a `Decoded`.

    Raises:
        ValueError: the model writes no text, or what `Constraint` raises.
    """

    def choose(log_probs, hypotheses, place, state):
        tokens = largest(log_probs)
        return Choice(tokens, ended=ops.equal(tokens, eos_id))

    constraint = Constraint(eos_id, max_length, min_length, allowed)
    (tokens, scores, _), _ = decode(
        model, batch, max_length, choose, constraint=constraint
    )
    return Decoded(tokens[:, 0], scores[:, 0])
