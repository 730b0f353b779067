"""Answers drawn from the model's distribution."""

from keras import ops

from remixer_tf.decoding.constraints import Constraint
from remixer_tf.decoding.repetition import Repetition
from remixer_tf.decoding.row_random import row_uniforms
from remixer_tf.decoding.search import Answers, Choice, Decoded, decode
from remixer_tf.errors import UserError
from remixer_tf.kernels.largest import largest
from remixer_tf.layers.checks import check_integers, check_numbers


def sample(
    model,
    batch,
    max_length,
    temperature=1.0,
    top_k=None,
    top_p=1.0,
    num_samples=1,
    seed=0,
    eos_id=1,
    min_length=0,
    allowed=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
):
    """Draws each token, and so answers from `p(y) = prod_t p(y_t | y_<t)`.

    p is that of the logits divided by the temperature, then of the `top_k` likeliest
    tokens (Fan et al. 2018, section 5.4), then of the fewest likeliest that hold
    `top_p` of what is left (Holtzman et al. 2020, section 3.1).

    The same seed draws the same samples: a row's random numbers come from the seed and
    its own input tokens, see `row_uniforms`. Neither the batch, nor the row's place in
    it, nor the backend changes them; the same question twice has the same answers.
    Another seed draws others.

    Args:
        model, batch, max_length: see `decode`.
        temperature: float, at least 0; at 0 the likeliest token is taken.
        top_k: int, at least 1; None for all tokens.
        top_p: float in (0, 1]; 1 for all tokens.
        num_samples: int, answers of each example. With several, `Decoded` has
            `answers`, in the order drawn.
        seed: int.
        eos_id: int, the token that ends a sequence.
        min_length, allowed: see `Constraint`. Other tokens are never drawn; those that
            are left have the proportions they had.
        no_repeat_ngram_size, repetition_penalty: see `Repetition`, before temperature.

    Returns:
        a `Decoded`. Scores are the model's log-probabilities of the tokens, as without
        temperature, `top_k` and `top_p`, and after the penalty of repetition.

    Raises:
        ValueError: the model writes no text, a number is out of its range, or what
            `Constraint` and `Repetition` raise.
    """
    check_numbers(temperature=temperature)
    check_integers(top_k=1 if top_k is None else top_k, num_samples=num_samples)
    if not 0 < top_p <= 1:
        raise UserError(
            f"top_p must be greater than 0 and at most 1. Received: top_p={top_p}"
        )
    prompts = batch["encoder_input_tokens"]
    uniforms = row_uniforms(prompts, seed, (num_samples, max_length))

    def choose(log_probs, hypotheses, place, state):
        if temperature == 0:
            tokens = largest(log_probs)
        else:
            here = ops.clip(place, 0, max_length - 1)[:, None, None]
            uniform = ops.take_along_axis(uniforms, here, axis=-1)
            tokens = draw(log_probs / temperature, uniform, top_k, top_p)
        return Choice(tokens, ended=ops.equal(tokens, eos_id))

    (tokens, scores, _), _ = decode(
        model,
        batch,
        max_length,
        choose,
        beams=num_samples,
        constraint=Constraint(eos_id, max_length, min_length, allowed),
        repetition=Repetition(no_repeat_ngram_size, repetition_penalty),
    )
    answers = Answers(tokens, scores) if num_samples > 1 else ()
    return Decoded(tokens[:, 0], scores[:, 0], answers)


def draw(logits, uniform, top_k=None, top_p=1.0):
    """Draws tokens by the inverse of the cumulative distribution.

    Args:
        logits: float32 `[batch, beams, vocab_size]`.
        uniform: float32 `[batch, beams, 1]` in [0, 1).
        top_k, top_p: see `sample`.

    Returns:
        int32 `[batch, beams]`.
    """
    ids = None  # The vocabulary is sorted only if need be.
    if top_k is not None or top_p < 1:
        size = logits.shape[-1]
        logits, ids = ops.top_k(logits, min(top_k or size, size))
    probs = ops.softmax(logits, axis=-1)
    if top_p < 1:
        before = ops.cumsum(probs, axis=-1) - probs
        probs = ops.where(before < top_p, probs, 0.0)
    below = ops.cumsum(probs, axis=-1)
    # The first to pass; if rounding lets none, the first of all.
    passed = ops.cast(below > uniform * below[..., -1:], "int32")
    chosen = ops.argmax(passed, axis=-1)
    if ids is not None:
        chosen = ops.take_along_axis(ids, chosen[..., None], axis=-1)[..., 0]
    return ops.cast(chosen, "int32")
