"""The likeliest token at every step."""

from keras import ops

from remixer_tf.decoding.search import Choice, Decoded, decode


def greedy_decode(model, batch, max_length, eos_id=1):
    """Takes the likeliest token at every step, until all rows have ended.

    Args:
        model, batch, max_length: see `decode`.
        eos_id: int, the token that ends a sequence.

    Returns:
        a `Decoded`.

    Raises:
        ValueError: the model writes no text.
    """

    def choose(logits, hypotheses, place, state):
        tokens = ops.cast(ops.argmax(logits, axis=-1), "int32")
        return Choice(tokens, ended=ops.equal(tokens, eos_id))

    (tokens, scores, _), _ = decode(model, batch, max_length, choose)
    return Decoded(tokens[:, 0], scores[:, 0])
