"""What an answer may repeat, by the rules of Hugging Face's `generate`."""

from keras import ops

from remixer_tf.decoding.constraints import IMPOSSIBLE
from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers, check_numbers


class Repetition:
    """Keeps an answer from repeating what its decoder has read.

    That is the start id 0, the prompt of a language model, and the answer so far. The
    rules are those of transformers 5 (`generation/logits_process.py`,
    `RepetitionPenaltyLogitsProcessor` and `NoRepeatNGramLogitsProcessor`).

    Args:
        no_repeat_ngram_size: int, at least 0; n-grams of this size do not occur twice.
            0 allows all.
        penalty: float above 0. Scores of tokens that were read are divided by it where
            they are positive, and multiplied by it where they are negative (Keskar et
            al. 2019, section 4.1). 1 changes nothing.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, no_repeat_ngram_size=0, penalty=1.0):
        check_integers(0, no_repeat_ngram_size=no_repeat_ngram_size)
        check_numbers(repetition_penalty=penalty)
        if not penalty > 0:
            raise UserError(
                "repetition_penalty must be greater than 0. Received: "
                f"repetition_penalty={penalty}"
            )
        self.size = no_repeat_ngram_size
        self.penalty = penalty

    def __bool__(self):
        """Whether it changes anything."""
        return self.size > 0 or self.penalty != 1

    def penalize(self, scores, read, step):
        """Lowers the scores of tokens that were read.

        Args:
            scores: float32 `[batch, beams, vocab_size]`, of the next tokens.
            read: int32 `[batch, beams, length]`, from `tokens_read`.
            step: int32 scalar; tokens 0 to `step` of `read` are there.

        Returns:
            float32 `[batch, beams, vocab_size]`.
        """
        if self.penalty == 1:
            return scores
        positions = ops.arange(read.shape[-1], dtype="int32")
        there = ops.broadcast_to(positions <= step, ops.shape(read))
        lower = ops.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return ops.where(_mark(scores, read, there), lower, scores)

    def mask(self, log_probs, read, step):
        """Sets tokens that would complete an n-gram once more to `IMPOSSIBLE`.

        Args and returns: see `penalize`.
        """
        if not self.size:
            return log_probs
        starts = ops.arange(read.shape[-1] - self.size + 1, dtype="int32")
        again = ops.broadcast_to(
            starts <= step - self.size + 1, (*ops.shape(read)[:2], len(starts))
        )
        for place in range(self.size - 1):
            now = ops.take(read, ops.maximum(step - self.size + 2 + place, 0), axis=-1)
            then = read[..., place : place + len(starts)]
            again = ops.logical_and(again, ops.equal(then, now[..., None]))
        last = read[..., self.size - 1 :]
        return ops.where(_mark(log_probs, last, again), IMPOSSIBLE, log_probs)


def tokens_read(prompt, prompt_lengths, answers):
    """The tokens that a decoder reads: the start id 0, a prompt, an answer.

    Args:
        prompt: int32 `[batch, prompt_length]`, 0 after its end.
        prompt_lengths: int32 `[batch]`.
        answers: int32 `[batch, beams, max_length]`.

    Returns:
        int32 `[batch, beams, 1 + prompt_length + max_length]`, without gaps.
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


def _mark(like, tokens, where):
    """Which tokens of a vocabulary occur, bool of the shape of `like`.

    Args:
        like: `[batch, beams, vocab_size]`.
        tokens: int32 `[batch, beams, length]`.
        where: bool of the same shape: others do not count.
    """
    size = like.shape[-1]
    # One id more than there are, for what does not count.
    tokens = ops.reshape(ops.where(where, tokens, size), (-1, tokens.shape[-1]))
    flat = ops.pad(ops.zeros_like(ops.reshape(like, (-1, size))), [(0, 0), (0, 1)])
    rows = ops.arange(ops.shape(flat)[0], dtype="int32")[:, None]
    index = ops.stack([rows + ops.zeros_like(tokens), tokens], axis=-1)
    index = ops.reshape(index, (-1, 2))
    flat = ops.scatter_update(flat, index, ops.ones_like(index[:, 0], dtype="float32"))
    return ops.reshape(flat[:, :size] > 0, ops.shape(like))
