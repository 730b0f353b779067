"""Limits on repetition, by the rules of Hugging Face's `generate`."""

from keras import ops

from remixer_tf.decoding.constraints import IMPOSSIBLE, mark
from remixer_tf.decoding.row_settings import column, with_rows
from remixer_tf.errors import check_integers, check_range


class Repetition:
    """Keeps an answer from repeating what was read, see `AnswerLimits`.

    The batch may have repetition_penalty of each row, see `row_settings`.
    """

    def __init__(self, limits, batch=()):
        check_repetition(limits)
        self.size = limits.no_repeat_ngram_size
        self.penalizes = "repetition_penalty" in batch or limits.repetition_penalty != 1
        self.penalty = column(with_rows(limits, batch).repetition_penalty, 2)

    def __bool__(self):
        """Whether it changes anything."""
        return self.size > 0 or self.penalizes

    def penalize(self, scores, read, step):
        """Lowers the scores of tokens that were read.

        `scores` are float32 `[batch, beams, vocab_size]`, of the next tokens. `read`,
        see `tokens_read`, holds tokens 0 to `step`, int32, of all rows or `[batch]`.
        """
        if not self.penalizes:
            return scores
        positions = ops.arange(read.shape[-1], dtype="int32")
        read = ops.where(positions <= _of_rows(step), read, scores.shape[-1])
        lower = ops.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return ops.where(mark(scores, read), lower, scores)

    def mask(self, log_probs, read, step):
        """Sets tokens that would complete an n-gram once more to `IMPOSSIBLE`."""
        if not self.size:
            return log_probs
        number = read.shape[-1] - self.size + 1
        if number < 1:  # Rows are shorter than the n-gram.
            return log_probs
        starts = ops.arange(number, dtype="int32")
        start = _of_rows(step) - self.size + 2  # of the n-gram that is written
        again = ops.broadcast_to(starts < start, (*ops.shape(read)[:2], number))
        for place in range(self.size - 1):
            here = ops.broadcast_to(
                ops.maximum(start + place, 0), (*ops.shape(read)[:2], 1)
            )
            now = ops.take_along_axis(read, here, axis=-1)
            then = read[..., place : place + number]
            again = ops.logical_and(again, ops.equal(then, now))
        last = ops.where(again, read[..., self.size - 1 :], log_probs.shape[-1])
        return ops.where(mark(log_probs, last), IMPOSSIBLE, log_probs)


def _of_rows(step):
    """`step` as `[1, 1, 1]` or `[batch, 1, 1]`."""
    # Not step[..., None, None]: tf2onnx cannot convert that of a scalar.
    return ops.reshape(step, (-1, 1, 1))


def check_repetition(limits):
    """Raises a ValueError for numbers of `AnswerLimits` that are out of range."""
    check_integers(0, no_repeat_ngram_size=limits.no_repeat_ngram_size)
    penalty = limits.repetition_penalty
    check_range("repetition_penalty", penalty, "a number > 0", lambda x: x > 0)


def tokens_read(prompt, prompt_lengths, answers):
    """The tokens that a decoder reads: the start id 0, a prompt, an answer.

    `prompt` is int32 `[batch, prompt_length]`, 0 after its end, `prompt_lengths` int32
    `[batch]`, and `answers` int32 `[batch, beams, max_length]`. Returns int32 `[batch,
    beams, 1 + prompt_length + max_length]`, without gaps.
    """
    number, longest = prompt.shape[1], answers.shape[-1]
    if number:
        places = ops.arange(number + longest, dtype="int32") - prompt_lengths[:, None]
        answered = ops.clip(places, 0, longest - 1)[:, None]
        answered = ops.broadcast_to(
            answered, (*ops.shape(answers)[:2], number + longest)
        )
        answers = ops.where(
            (places < 0)[:, None],
            ops.pad(prompt, [(0, 0), (0, longest)])[:, None],
            ops.take_along_axis(answers, answered, axis=-1),
        )
    return ops.pad(answers, [(0, 0), (0, 0), (1, 0)])
