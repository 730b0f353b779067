"""Limits on answers: a minimum length, and strings to choose from."""

import dataclasses
import math
import operator
from typing import NamedTuple

import numpy as np
from keras import ops

from remixer_tf.decoding.row_settings import pick, with_rows
from remixer_tf.errors import UserError, check_integers

IMPOSSIBLE = -math.inf  # the log-probability of what cannot be


class TableRoom(NamedTuple):
    """The size of a padded `allowed_table`.

    Attributes:
        entries: int.
        children: int, of an entry at most.
    """

    entries: int
    children: int


@dataclasses.dataclass(frozen=True)
class AnswerLimits:
    """Limits on answers, the same for all searches.

    Repetition is what a decoder has read: the start id 0, the prompt of a language
    model, and the answer so far. Its rules are those of transformers 5
    (`generation/logits_process.py`, `RepetitionPenaltyLogitsProcessor` and
    `NoRepeatNGramLogitsProcessor`).

    Args:
        min_length: int, tokens of an answer at least, EOS not included.
        allowed: None, or lists of token ids, without EOS: an answer is one of them. A
            `TableRoom`: the batch has an `allowed_table` of each row.
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
    allowed: list | TableRoom | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0


def allowed_table(allowed):
    """Makes the table of the trie of allowed answers, int32 `[entries, 3]`.

    An entry is a token, and the first and the last entry of those that may follow it.
    Entry 0 is the start. Where an answer ends the token is -1 for EOS, which follows
    itself.

    Raises a ValueError for what are no lists of token ids.
    """
    root = {}
    for answer in sorted(_token_ids(allowed)):
        node = root
        for token in (*answer, -1):
            node = node.setdefault(token, {})
    entries, table = [(0, root)], []
    for number, (token, node) in enumerate(entries):  # it grows: breadth first
        first = len(entries) if node else number
        entries.extend(node.items())
        table.append((token, first, len(entries) - 1 if node else number))
    return np.array(table, "int32")


def most_children(table):
    """The most tokens that may follow an entry of an `allowed_table`, an int."""
    return int((table[:, 2] - table[:, 1]).max()) + 1


class Constraint:
    """Which tokens may come next in each hypothesis, by an `AnswerLimits`.

    A hypothesis stands on an entry of the `allowed_table`. `max_length` counts EOS,
    `eos_id`. The batch may have min_length and the table of each row, see
    `row_settings`.
    """

    def __init__(self, eos_id, max_length, limits, batch=()):
        check_limits(limits, max_length, eos_id)
        self.eos_id = eos_id
        rows = with_rows(limits, batch)
        self.min_length = rows.min_length
        self.has_minimum = "min_length" in batch or limits.min_length > 0
        self._table = None
        if isinstance(limits.allowed, TableRoom):
            self._table, self._of_rows = rows.allowed, True
            self._width = limits.allowed.children
        elif limits.allowed is not None:
            self._table, self._of_rows = allowed_table(limits.allowed), False
            self._width = most_children(self._table)

    def mask(self, log_probs, place, nodes):
        """Sets what may not come next to `IMPOSSIBLE`.

        Args:
            log_probs: float32 `[batch, beams, vocab_size]`, of the next tokens.
            place: int32 `[batch]`, how many tokens are written.
            nodes: int32 `[batch, beams]`, 0 at first.
        """
        size = log_probs.shape[-1]
        if self._table is not None:
            if not self._of_rows:
                check_in_vocabulary(self._table, size)
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
        if self._table is None:
            return nodes
        entries, children = self._children(nodes)
        taken = ops.cast(ops.equal(children, tokens[..., None]), "int32")
        which = ops.cast(ops.argmax(taken, axis=-1), "int32")
        return ops.take_along_axis(entries, which[..., None], axis=-1)[..., 0]

    def _children(self, nodes):
        """Entries that may follow, and their tokens: int32 `[batch, beams, width]`."""
        beams = nodes.shape[1]
        bounds = self._at(nodes)
        first, last = bounds[..., 1, None], bounds[..., 2, None]
        # Where an entry has fewer than others, its last one is repeated.
        numbers = ops.arange(self._width, dtype="int32")
        entries = ops.minimum(first + numbers, last)
        tokens = self._at(ops.reshape(entries, (-1, beams * self._width)))[..., 0]
        tokens = ops.reshape(tokens, (-1, beams, self._width))
        return entries, ops.where(tokens < 0, self.eos_id, tokens)

    def _at(self, index):
        """Entries of the table, int32 `[batch, n, 3]`, by an index `[batch, n]`."""
        if self._of_rows:
            return pick(self._table, index)
        return ops.take(self._table, index, axis=0)


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
    if limits.allowed is None or isinstance(limits.allowed, TableRoom):
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
    if eos_id in tokens:
        raise UserError(
            f"Allowed answers are token ids without EOS ({eos_id}). Received: "
            f"{sorted(tokens)[:3]}, .."
        )


def check_in_vocabulary(table, size):
    """Raises a ValueError if an `allowed_table` has an id that a model lacks."""
    if (most := int(table[:, 0].max())) >= size:
        raise UserError(
            f"Allowed answers have the id {most}, and the model {size} ids. Encode "
            "them with the model's vocabulary."
        )


def _token_ids(allowed):
    """Allowed answers as a set of tuples of int."""
    try:
        answers = {tuple(map(operator.index, answer)) for answer in allowed}
    except TypeError:
        raise UserError(
            "allowed must be a list of answers, each a list of token ids. Received: "
            f"allowed={allowed!r:.200}"
        ) from None
    tokens = set().union(*answers)
    if not all(0 < token < 2**31 for token in tokens):
        raise UserError(
            "Allowed answers are token ids, int32 above 0 (padding). Received: "
            f"{sorted(tokens)[:3]}, .."
        )
    return answers


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
