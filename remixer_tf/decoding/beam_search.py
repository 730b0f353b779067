"""The likeliest answers, by Mesh TensorFlow's or by Hugging Face's rules."""

import dataclasses
from typing import Annotated, Any, NamedTuple

from keras import ops

from remixer_tf.arguments import (
    NonNegativeFloat,
    Number,
    Tensor,
    check_fields,
    one_of,
)
from remixer_tf.decoding.constraints import IMPOSSIBLE, AnswerLimits
from remixer_tf.decoding.greedy import greedy_decode
from remixer_tf.decoding.row_settings import column, of_rows, pick, with_rows
from remixer_tf.decoding.search import Answers, Choice, Decoded, Search, decode
from remixer_tf.errors import UserError, check_integers

# The score of no answer inside the search. It is finite, since LiteRT makes -inf a
# finite number when it adds or divides.
NONE = -1e30
LOWEST_RANK = -1e19  # of an answer


def exists(scores):
    """Whether scores or ranks are those of an answer: none is as low as -1e20."""
    return scores > -1e20


@dataclasses.dataclass(frozen=True)
class T5Rules:
    """The preset `t5`: Mesh TensorFlow's beam search, that of T5 (`beam_search.py`).

    An answer y ranks by `log p(y) / ((5 + |y|) / 6) ** alpha` (Wu et al. 2016, equation
    14), where |y| counts EOS. A row ends when its likeliest beam, even if it ended now
    and were of full length, ranks below the worst answer found. Beams that reach the
    maximum length are answers only where no other was found.

    Args:
        alpha: float, at least 0; more favours longer answers. T5's is 0.6, with 4
            beams.

    Raises:
        ValueError: alpha is negative.
    """

    alpha: NonNegativeFloat = 0.6

    def __post_init__(self):
        check_fields(self)

    def rank(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """Ranks answers, float32 `[batch, answers]`, of lengths `[batch]`."""
        lengths = ops.cast(lengths, "float32")[:, None]
        return log_probs / ops.power((5.0 + lengths) / 6.0, column(self.alpha))

    def is_answer(self, ended: Tensor, cut: Tensor, beams: int) -> Tensor:
        """Which of the best continuations are answers: each that ends with EOS."""
        return ended

    def finished(
        self, ranks: Tensor, best: Tensor, lengths: Tensor, max_length: Tensor
    ) -> Tensor:
        """Whether rows have ended, bool `[batch]`.

        Args:
            ranks: float32 `[batch, beams]`, of the answers found, see `exists`.
            best: float32 `[batch]`, the likeliest beam's log-probability.
            lengths: int32 `[batch]`, its tokens.
            max_length: int, or int32 `[batch]`.
        """
        found = exists(ranks)
        worst = ops.min(ops.where(found, ranks, float("inf")), axis=1)
        bound = self.rank(best[:, None], lengths * 0 + max_length)[:, 0]
        return ops.logical_and(ops.any(found, axis=1), worst > bound)


@dataclasses.dataclass(frozen=True)
class HuggingFaceRules:
    """The preset `huggingface`: the beam search of Hugging Face's `generate`.

    An answer y ranks by `log p(y) / |y| ** length_penalty`, where |y| counts EOS: a
    penalty of the same size means more here than T5's alpha. EOS counts only among as
    many best continuations as there are beams. Beams that reach the maximum length are
    answers. (transformers 5, `generation/utils.py`, `_beam_search`.)

    Args:
        length_penalty: float; more favours longer answers. Hugging Face's is 1.
        early_stopping: when a row ends that has as many answers as beams: True, at
            once; False, when the likeliest beam ranks no better than the worst of
            them; "never", when it could not even at the maximum length.

    Raises:
        ValueError: another early_stopping, or length_penalty is no number.
    """

    length_penalty: Number = 1.0
    early_stopping: Annotated[bool | str, one_of((True, False, "never"))] = False

    def __post_init__(self):
        check_fields(self)

    def rank(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """Ranks answers, see `T5Rules`."""
        lengths = ops.cast(lengths, "float32")[:, None]
        return log_probs / ops.power(lengths, column(self.length_penalty))

    def is_answer(self, ended: Tensor, cut: Tensor, beams: int) -> Tensor:
        """Which of the best continuations, bool `[batch, continuations]`, are answers.

        Args:
            ended: bool `[batch, continuations]`, best first.
            cut: bool `[batch]`, whether they have reached the maximum length.
            beams: int.
        """
        among_beams = ops.arange(ended.shape[1]) < beams
        return ops.logical_and(ops.logical_or(ended, cut[:, None]), among_beams)

    def finished(
        self, ranks: Tensor, best: Tensor, lengths: Tensor, max_length: Tensor
    ) -> Tensor:
        """Whether rows have ended, see `T5Rules`."""
        worst = ops.min(ranks, axis=1)
        full = exists(worst)
        if self.early_stopping is True:
            return full
        if self.early_stopping == "never":
            grows = ops.cast(self.length_penalty > 0, "int32")
            lengths = lengths + grows * (max_length - lengths)
        return ops.logical_and(full, self.rank(best[:, None], lengths)[:, 0] <= worst)


def beam_search(
    model: Any,
    batch: Any,
    max_length: int,
    rules: T5Rules | HuggingFaceRules,
    beams: int = 4,
    n_best: int = 1,
    eos_id: int = 1,
    limits: AnswerLimits | None = None,
) -> Decoded:
    """Searches for the likeliest answers, keeping `beams` beginnings of each example.

    Each row ends by itself, as if it were alone. Scores are log-probabilities, whatever
    the rules ranked by: ranks follow from score and length.

    Args:
        model, batch, max_length, eos_id, limits: see `decode`. Scores are sums of
            log-probabilities after the penalty of repetition.
        rules: `T5Rules` or `HuggingFaceRules`. They differ in how they rank answers,
            so that there is no default.
        beams: int; 1 is `greedy_decode`, whatever the rules.
        n_best: int, answers of each example, at most `beams`. With several, `Decoded`
            has `answers`, best first. By T5's rules a row may end with fewer.

    Returns:
        a `Decoded`.

    Raises:
        ValueError: n_best is not in 1 .. beams, the rules are something else, or see
            `decode`.
    """
    check_integers(beams=beams, n_best=n_best)
    if n_best > beams:
        raise UserError(
            "n_best must be at least 1, and at most the number of beams. Received: "
            f"n_best={n_best}, beams={beams}."
        )
    if isinstance(rules, type) or not hasattr(rules, "is_answer"):
        raise UserError(
            "rules must be T5Rules() or HuggingFaceRules(), of remixer_tf.decoding. "
            f"Received: rules={rules!r:.200}"
        )
    if beams == 1:  # as both do: neither's rules are greedy with one beam
        return greedy_decode(model, batch, max_length, eos_id, limits)

    def search(batch):
        last = of_rows(batch, "max_length", max_length)
        keeping = _Beams(with_rows(rules, batch), beams, eos_id, max_length, last)
        # A sum, to have the batch size even if it is unknown while tracing.
        rows = ops.sum(model.prompt(batch), axis=1, keepdims=True) * 0
        return Search(keeping.choose, keeping.start(rows), beams, branches=True)

    cut, found = decode(model, batch, max_length, search, eos_id, limits)
    has_answer = exists(found.ranks[:, :1])
    scores = ops.where(found.open, cut.scores, NONE)
    scores = ops.where(has_answer, found.answers.scores, scores)[:, :n_best]
    tokens = ops.where(has_answer[..., None], found.answers.tokens, cut.tokens)
    tokens = ops.where(exists(scores)[..., None], tokens[:, :n_best], 0)
    scores = ops.where(exists(scores), scores, IMPOSSIBLE)
    answers = Answers(tokens, scores) if n_best > 1 else ()
    return Decoded(tokens[:, 0], scores[:, 0], answers)


class _Found(NamedTuple):
    """The search's state."""

    # bool [batch, beams], whether a place has a hypothesis. At first one has; a
    # constraint may leave places unused.
    open: Any
    answers: Any  # `Answers` [batch, beams, ..], those found, best first
    ranks: Any  # float32 [batch, beams], the order of answers, see `exists`


class _Beams(NamedTuple):
    """The choices of `beam_search`, see there."""

    rules: Any
    beams: int
    eos_id: int
    longest: int
    max_length: Any  # int, or int32 `[batch]`, at most the longest

    def start(self, rows):
        """The first `_Found`, of rows int32 `[batch, 1]` of zeros."""
        start = rows + ops.arange(self.beams, dtype="int32")
        none = ops.full_like(start, NONE, dtype="float32")
        places = ops.arange(self.longest, dtype="int32")
        answers = Answers(start[..., None] * 0 * places, none)
        return _Found(ops.equal(start, 0), answers, none)

    def choose(self, log_probs, hypotheses, place, found):
        """The `Choice` of continuations, see `Search`."""
        beams, rules = self.beams, self.rules
        running = ops.any(hypotheses.running, axis=1, keepdims=True)
        written = ops.maximum(place + 1, 1)  # less while a prompt is read
        goes_on = ops.logical_and(running, found.open)
        # Twice as many as beams: if all beams end here, others continue. The best of
        # an example lie among as many of each beam.
        number = min(2 * beams, log_probs.shape[-1])
        best, tokens = ops.top_k(log_probs, number)
        totals = ops.where(goes_on, hypotheses.scores, NONE)[..., None] + best
        totals = ops.reshape(totals, (-1, beams * number))
        totals, index = ops.top_k(totals, 2 * beams)
        index = ops.cast(index, "int32")
        parents = index // number
        tokens = pick(ops.reshape(tokens, (-1, beams * number)), index)
        tokens = ops.cast(tokens, "int32")
        ended = ops.equal(tokens, self.eos_id)

        is_answer = rules.is_answer(ended, place >= self.max_length - 1, beams)
        is_answer = ops.logical_and(is_answer, exists(totals))
        scores = ops.where(is_answer, totals, NONE)
        # A rule may divide by any power of the length: answers stay apart from none.
        ranks = ops.maximum(rules.rank(totals, written), LOWEST_RANK)
        ranks = ops.where(is_answer, ranks, NONE)
        here = ops.equal(ops.arange(self.longest, dtype="int32"), place[:, None])
        texts = pick(hypotheses.tokens, parents)
        texts = ops.where(here[:, None, :], tokens[..., None], texts)
        texts, scores, ranks = (
            ops.concatenate([old, new], axis=1)
            for old, new in zip(
                (*found.answers, found.ranks),
                (texts, scores, ranks),
                strict=True,
            )
        )
        ranks, best = ops.top_k(ranks, beams)
        answers = Answers(pick(texts, best), pick(scores, best))

        totals, best = ops.top_k(ops.where(ended, NONE, totals), beams)
        found = _Found(exists(totals), answers, ranks)
        stop = ops.logical_or(
            rules.finished(ranks, totals[:, 0], written, self.max_length),
            ops.logical_not(ops.any(found.open, axis=1)),
        )
        numbers = ops.arange(beams, dtype="int32")
        return Choice(
            pick(tokens, best),
            ended=ops.repeat(stop[:, None], beams, axis=1),
            state=found,
            parents=ops.where(running, pick(parents, best), numbers),
        )
