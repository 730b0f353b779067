"""Limits on answers: a minimum length, and strings to choose from."""

import dataclasses
import math
import operator

import numpy as np
from keras import ops

from remixer_tf.decoding.row_settings import with_rows
from remixer_tf.errors import UserError, check_integers

IMPOSSIBLE = -math.inf  # the log-probability of what cannot be


@dataclasses.dataclass(frozen=True)
class AnswerLimits:
    """Limits on answers, the same for all searches.

    Repetition is what a decoder has read: the start id 0, the prompt of a language
    model, and the answer so far. Its rules are those of transformers 5
    (`generation/logits_process.py`, `RepetitionPenaltyLogitsProcessor` and
    `NoRepeatNGramLogitsProcessor`).

    Args:
        min_length: int, tokens of an answer at least, EOS not included.
        allowed: None, or lists of token ids, without EOS: an answer is one of them.
        no_repeat_ngram_size: int, at least 0; n-grams of this size do not occur twice.
            0 allows all.
        repetition_penalty: float above 0. Scores of tokens that were read are divided
            by it where they are positive, and multiplied by it where they are negative
            (Keskar et al. 2019, section 4.1). 1 changes nothing.

    Searches raise a ValueError for numbers out of their range; if no answer, or not
    every allowed one, fits the lengths; and if allowed ones have the id of padding or
    of EOS.
    """

    min_length: int = 0
    allowed: list | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0


class Constraint:
    """Which tokens may come next in each hypothesis, by an `AnswerLimits`.

    The allowed answers are a trie over token ids. A hypothesis stands on a node of it;
    the trie's edges lie in one table, those of a node side by side, and edge `e` leads
    to node `e + 1`. `max_length` counts EOS, `eos_id`. The batch may have min_length of
    each row, see `row_settings`.
    """

    def __init__(self, eos_id, max_length, limits, batch=()):
        check_limits(limits, max_length, eos_id)
        self.eos_id = eos_id
        self.min_length = with_rows(limits, batch).min_length
        self.has_minimum = "min_length" in batch or limits.min_length > 0
        self.allowed = limits.allowed is not None
        if self.allowed:
            self._build(_token_ids(limits.allowed))

    def _build(self, answers):
        root = {}
        for answer in sorted(answers):
            node = root
            for token in (*answer, self.eos_id):
                node = node.setdefault(token, {})
        nodes, first, last, tokens = [root], [], [], []
        for number, node in enumerate(nodes):  # it grows: breadth first
            # After its end an answer stays where it is, on EOS.
            first.append(len(tokens) if node else number - 1)
            tokens.extend(node)
            last.append(len(tokens) - 1 if node else number - 1)
            nodes.extend(node.values())
        self._first, self._last = np.array(first, "int32"), np.array(last, "int32")
        self._tokens = np.array(tokens, "int32")
        self._width = int((self._last - self._first).max()) + 1

    def mask(self, log_probs, place, nodes):
        """Sets what may not come next to `IMPOSSIBLE`.

        Args:
            log_probs: float32 `[batch, beams, vocab_size]`, of the next tokens.
            place: int32 `[batch]`, how many tokens are written.
            nodes: int32 `[batch, beams]`, 0 at first.
        """
        size = log_probs.shape[-1]
        if self.allowed:
            if self._tokens.max() >= size:
                raise UserError(
                    f"Allowed answers have the id {self._tokens.max()}, and the model "
                    f"{size} ids. Encode them with the model's vocabulary."
                )
            _, children = self._children(nodes)
            log_probs = ops.where(mark(log_probs, children), log_probs, IMPOSSIBLE)
        if self.has_minimum:
            early = (place < self.min_length)[:, None, None]
            ends = ops.arange(size, dtype="int32") == self.eos_id
            too_early = ops.logical_and(early, ends)
            log_probs = ops.where(too_early, IMPOSSIBLE, log_probs)
        return log_probs

    def advance(self, nodes, tokens):
        """The nodes after these tokens, int32 `[batch, beams]`."""
        if not self.allowed:
            return nodes
        edges, children = self._children(nodes)
        taken = ops.cast(ops.equal(children, tokens[..., None]), "int32")
        which = ops.cast(ops.argmax(taken, axis=-1), "int32")
        return ops.take_along_axis(edges, which[..., None], axis=-1)[..., 0] + 1

    def _children(self, nodes):
        """Edges of nodes, and their tokens: int32 `[batch, beams, width]`."""
        # Where a node has fewer than others, its last edge is repeated.
        first = ops.take(self._first, nodes, axis=0)[..., None]
        last = ops.take(self._last, nodes, axis=0)[..., None]
        edges = ops.minimum(first + ops.arange(self._width, dtype="int32"), last)
        return edges, ops.take(self._tokens, edges, axis=0)


def check_limits(limits, max_length, eos_id=1):
    """Raises a ValueError unless answers of 1 to `max_length` tokens fit the limits."""
    min_length = limits.min_length
    check_integers(0, min_length=min_length)
    if min_length >= max_length:
        raise UserError(
            "min_length must be at least 0 and less than the tokens that are "
            f"decoded at most. Received: min_length={min_length}, "
            f"max_length={max_length}."
        )
    if limits.allowed is None:
        return
    answers = _token_ids(limits.allowed)
    lengths = {len(answer) for answer in answers}
    if not answers or min_length > min(lengths) or max(lengths) >= max_length:
        raise UserError(
            f"Allowed answers must have {min_length} to {max_length - 1} "
            f"tokens beside EOS. Received: {len(answers)} answers of "
            f"{min(lengths, default=0)} to {max(lengths, default=0)} tokens. Set "
            "min_length and max_length."
        )
    tokens = set().union(*answers)
    out = not all(0 < token < 2**31 for token in tokens)
    if out or eos_id in tokens:
        raise UserError(
            "Allowed answers are token ids, int32 above 0 (padding), without EOS "
            f"({eos_id}). Received: {sorted(tokens)[:3]}, .."
        )


def _token_ids(allowed):
    """Allowed answers as a set of tuples of int."""
    try:
        return {tuple(map(operator.index, answer)) for answer in allowed}
    except TypeError:
        raise UserError(
            "allowed must be a list of answers, each a list of token ids. Received: "
            f"allowed={allowed!r:.200}"
        ) from None


def mark(like, tokens):
    """Which tokens of a vocabulary occur, bool of the shape of `like`.

    `like` is `[batch, beams, vocab_size]`, `tokens` int32 `[batch, beams, length]`;
    tokens of `vocab_size` do not count.
    """
    size = like.shape[-1]
    tokens = ops.reshape(tokens, (-1, tokens.shape[-1]))
    flat = ops.pad(ops.zeros_like(ops.reshape(like, (-1, size))), [(0, 0), (0, 1)])
    rows = ops.arange(ops.shape(flat)[0], dtype="int32")[:, None]
    index = ops.stack([rows + ops.zeros_like(tokens), tokens], axis=-1)
    index = ops.reshape(index, (-1, 2))
    flat = ops.scatter_update(flat, index, ops.ones_like(index[:, 0], dtype="float32"))
    return ops.reshape(flat[:, :size] > 0, ops.shape(like))
