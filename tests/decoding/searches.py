"""Two searches on the frame, to test it with."""

from keras import ops

from remixer_tf.decoding import Choice, decode


def beam_search(model, batch, max_length, beams, eos_id=1):
    """Keeps the likeliest; those that have ended stay, and compete as they are."""

    def choose(logits, hypotheses, place, state):
        size = logits.shape[-1]
        padding = ops.where(ops.arange(size) == 0, 0.0, -1e9)
        log_probs = ops.log_softmax(logits)
        log_probs = ops.where(hypotheses.running[..., None], log_probs, padding)
        # At first all hypotheses of an example are the same: only one may go on.
        same = ops.logical_and(place[:, None] == 0, ops.arange(beams) > 0)
        scores = hypotheses.scores - ops.where(same, 1e9, 0.0)
        scores = ops.reshape(scores[..., None] + log_probs, (-1, beams * size))
        best = ops.cast(ops.top_k(scores, beams)[1], "int32")
        tokens = best % size
        return Choice(tokens, ops.equal(tokens, eos_id), parents=best // size)

    return decode(model, batch, max_length, choose, beams=beams)


def sample(model, batch, max_length, seeds, eos_id=1):
    """Draws each token; each row's generator is its own: `seeds`, int32 `[batch]`."""

    def choose(logits, hypotheses, place, state):
        state = (75 * state + 74) % 65537
        uniform = ops.cast(state, "float32")[:, None, None] / 65537.0
        below = ops.cumsum(ops.softmax(logits), axis=-1) < uniform
        tokens = ops.sum(ops.cast(below, "int32"), axis=-1)
        return Choice(tokens, ops.equal(tokens, eos_id), state)

    seeds = ops.convert_to_tensor(seeds, "int32")
    return decode(model, batch, max_length, choose, state=seeds)
