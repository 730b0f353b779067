"""The likeliest token at every step."""

from keras import ops

from remixer_tf.decoding.constraints import Constraint
from remixer_tf.decoding.repetition import Repetition
from remixer_tf.decoding.search import Choice, Decoded, decode
from remixer_tf.kernels.largest import largest


def greedy_decode(
    model,
    batch,
    max_length,
    eos_id=1,
    min_length=0,
    allowed=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
):
    """Takes the likeliest token at every step, until all rows have ended.

    Args:
        model, batch, max_length: see `decode`.
        eos_id: int, the token that ends a sequence.
        min_length, allowed: see `Constraint`.
        no_repeat_ngram_size, repetition_penalty: see `Repetition`. Scores are
            log-probabilities after the penalty.

    Returns:
        a `Decoded`.

    Raises:
        ValueError: the model writes no text, or what `Constraint` and `Repetition`
            raise.
    """

    def choose(log_probs, hypotheses, place, state):
        tokens = largest(log_probs)
        return Choice(tokens, ended=ops.equal(tokens, eos_id))

    constraint = Constraint(eos_id, max_length, min_length, allowed)
    (tokens, scores, _), _ = decode(
        model,
        batch,
        max_length,
        choose,
        constraint=constraint,
        repetition=Repetition(no_repeat_ngram_size, repetition_penalty),
    )
    return Decoded(tokens[:, 0], scores[:, 0])
