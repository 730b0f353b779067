"""Answers drawn from the model's distribution."""

import dataclasses
from typing import Annotated, Any

from keras import ops

from remixer_tf.arguments import NonNegativeFloat, PositiveInt, check_fields, within
from remixer_tf.decoding.constraints import IMPOSSIBLE, AnswerLimits
from remixer_tf.decoding.row_random import row_uniforms
from remixer_tf.decoding.row_settings import column, with_rows
from remixer_tf.decoding.search import Answers, Choice, Decoded, Search, decode
from remixer_tf.errors import check_integers
from remixer_tf.kernels.largest import largest
from remixer_tf.layers.base import softmax

# Below it the likeliest token is taken. Logits over it differ by no more than float32
# can tell, and XLA, which multiplies by the inverse, would round beyond what exp takes.
COLDEST = 1e-6
_FROZEN = 1e-30  # Logits over it are finite, and all but the largest have no chance.


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from.

    It is that of the logits divided by the temperature, then of the `top_k` likeliest
    tokens (Fan et al. 2018, section 5.4), then of the fewest likeliest that hold
    `top_p` of what is left (Holtzman et al. 2020, section 3.1).

    Args:
        temperature: float, at least 0; below 1e-6 the likeliest token is taken.
        top_k: int, at least 1; None for all tokens.
        top_p: float in (0, 1]; 1 for all tokens.

    Raises:
        ValueError: a number is out of its range.
    """

    temperature: NonNegativeFloat = 1.0
    top_k: PositiveInt | None = None
    top_p: Annotated[float, within("a number in (0, 1]", lambda x: 0 < x <= 1)] = 1.0

    def __post_init__(self):
        check_fields(self)

    def draw(self, logits, uniform, batch=()):
        """Draws tokens by the inverse of the cumulative distribution.

        Args:
            logits: float32 `[batch, beams, vocab_size]`.
            uniform: float32 `[batch, beams, 1]`, in [0, 1).
            batch: dictionary that may have `temperature`, `top_k` and `top_p` of each
                row, see `row_settings`; `top_k` is at most this distribution's, and 0
                for that.

        Returns:
            int32 `[batch, beams]`.
        """
        own = with_rows(self, batch)
        if "temperature" not in batch and self.temperature < COLDEST:
            return largest(logits)
        warmth, top_p = column(own.temperature, 2), column(own.top_p, 2)
        if "temperature" in batch:
            cold = warmth < COLDEST
            scaled = logits / ops.where(cold, _FROZEN, warmth)
            uniform = ops.where(cold, 0.0, uniform)  # the first of equal ones
        else:
            scaled = logits / warmth
        ids = None  # The vocabulary is sorted only if need be.
        if self.top_k is not None or "top_k" in batch or "top_p" in batch or top_p < 1:
            size = logits.shape[-1]
            scaled, ids = ops.top_k(scaled, min(self.top_k or size, size))
        if "top_k" in batch:
            ranks = ops.arange(scaled.shape[-1], dtype="int32")
            top_k = column(own.top_k, 2)
            kept = ops.logical_or(ranks < top_k, top_k == 0)
            scaled = ops.where(kept, scaled, IMPOSSIBLE)
        probs = softmax(scaled)
        if "top_p" in batch or top_p < 1:
            before = ops.cumsum(probs, axis=-1) - probs
            kept = before < top_p
            if "top_p" in batch:  # Rounding may have reached 1 before the last.
                kept = ops.logical_or(kept, top_p >= 1)
            probs = ops.where(kept, probs, 0.0)
        below = ops.cumsum(probs, axis=-1)
        # The first to pass; if rounding lets none, the first of all.
        passed = ops.cast(below > uniform * below[..., -1:], "int32")
        chosen = ops.argmax(passed, axis=-1)
        if ids is not None:
            chosen = ops.take_along_axis(ids, chosen[..., None], axis=-1)[..., 0]
        return ops.cast(chosen, "int32")


def sample(
    model: Any,
    batch: Any,
    max_length: int,
    sampling: Sampling | None = None,
    num_samples: int = 1,
    seed: int = 0,
    eos_id: int = 1,
    limits: AnswerLimits | None = None,
) -> Decoded:
    """Draws each token, and so answers from `p(y) = prod_t p(y_t | y_<t)`.

    The same seed draws the same samples: a row's random numbers come from the seed and
    its own input tokens, see `row_uniforms`. Neither the batch, nor the row's place in
    it, nor the backend changes them; the same question twice has the same answers.
    Another seed draws others.

    Args:
        model, batch, max_length, eos_id: see `decode`.
        sampling: a `Sampling`, p; None for `Sampling()`. Its numbers may be inputs,
            see `row_settings`.
        num_samples: int, answers of each example. With several, `Decoded` has
            `answers`, in the order drawn.
        seed: int. If the batch has `seeds`, uint32 `[batch, 2]` of `seed_words`, they
            prevail: one graph serves all seeds.
        limits: see `decode`. Other tokens are never drawn; those that are left
            have the proportions they had. Its penalty comes before the temperature.

    Returns:
        a `Decoded`. Scores are the model's log-probabilities of the tokens, as with
        `Sampling()`, and after the penalty of repetition.

    Raises:
        ValueError: num_samples is less than 1, or see `decode`.
    """
    check_integers(num_samples=num_samples)
    sampling = sampling or Sampling()

    def search(batch):
        prompts, seeds = batch["encoder_input_tokens"], batch.get("seeds", seed)
        uniforms = row_uniforms(prompts, seeds, (num_samples, max_length))

        def choose(log_probs, hypotheses, place, state):
            here = ops.clip(place, 0, max_length - 1)[:, None, None]
            uniform = ops.take_along_axis(uniforms, here, axis=-1)
            tokens = sampling.draw(log_probs, uniform, batch)
            return Choice(tokens, ended=ops.equal(tokens, eos_id))

        return Search(choose, beams=num_samples)

    (tokens, scores, _), _ = decode(model, batch, max_length, search, eos_id, limits)
    answers = Answers(tokens, scores) if num_samples > 1 else ()
    return Decoded(tokens[:, 0], scores[:, 0], answers)
