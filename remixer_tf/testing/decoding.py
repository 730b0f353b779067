"""Decoding a layer step by step gives what a call on the whole sequence gives."""

import functools

import numpy as np
from keras import ops

from remixer_tf.layers import DecodeState
from remixer_tf.layers.base import (
    as_read,
    each_hypothesis,
    read_prompt,
    reads_at_once,
    reorder_cache,
    reorders_cache,
    rows_apart,
)
from remixer_tf.layers.position_bias import bias_of_step
from remixer_tf.testing.programs import to_array

BEAMS = 2


def check(trial):
    """Decodes a layer with its `Trial`: steps, a beam search, and after a prompt.

    Raises a ValueError if an output is not that of a call on the whole sequence.
    """
    y = trial.run(trial.x)
    steps = _Steps(trial)
    reorders = reorders_cache(trial.layer)
    # Where a search takes hypotheses for examples, it takes the steps of an example.
    found, expected = steps.in_search(y, reorders)
    if not reorders or not trial.same(found, expected).all():
        trial.require_same(
            steps.decode(),
            y,
            "decodes otherwise than it trains: at position {}, decode_step gives "
            "another output than a call on the whole sequence. Keep in the cache what "
            "an output needs of earlier positions, and leave out what "
            "context.encoded_mask says is padding.",
        )
    trial.require_same(
        found,
        expected,
        "decodes otherwise in a beam search: at position {}, a hypothesis that "
        "continues another one gets another output than a call on its whole "
        "sequence. Give each tensor of the cache as many entries for each row, along "
        "its first axis. A class with reorders_cache = False reads in decode_step what "
        "state.ancestry says of its rows.",
    )
    if rows_apart(trial.layer):
        trial.require_same(
            steps.apart(),
            y,
            "decodes otherwise where each row is at a position of its own: at position "
            "{}, a row gets another output. A class with rows_apart = True reads "
            "state.step as [batch], as by_row and update_cache of "
            "remixer_tf.layers.base do.",
        )
    if reads_at_once(trial.layer):  # Else a prompt is read step by step.
        steps.check_prompts(y)


class _Steps:
    """The steps of a trial's layer through its inputs."""

    def __init__(self, trial):
        self.trial = trial
        self.rows, self.length = trial.x.shape[:2]
        self._decode_step = trial.jit(trial.layer.decode_step, trial.layer)

    def decode(self, start=0, cache=None):
        """The outputs of the steps from `start` on, float32 array."""
        x, outputs = self.trial.x, []
        cache = self._empty() if cache is None else cache
        for t in range(start, self.length):
            y_t, cache = self._step(x[:, t : t + 1], cache, self._state(t))
            outputs.append(y_t)
        return np.concatenate(outputs, axis=1)

    def apart(self):
        """The outputs where each row begins a step later than the one before.

        Rows that wait or have ended repeat their first or last position.
        """
        cache, found = self._empty(), np.empty_like(self.trial.x)
        numbers = np.arange(self.rows)
        for t in range(self.length + self.rows - 1):
            steps = np.clip(t - numbers, 0, self.length - 1)
            x = self.trial.x[numbers, steps][:, None]
            y_t, cache = self._step(x, cache, self._state(steps))
            found[numbers, steps] = y_t[:, 0]
        return found

    def in_search(self, y, reorders):
        """Decodes two hypotheses that a beam search swaps, and then copies the first.

        `y` are the outputs of a call on the inputs x. The second hypothesis of an
        example begins with x, and the first with other inputs. They are swapped at the
        second position. At the third, the second continues the first. Four positions
        are enough for a layer whose single rows are decoded as well.

        Returns the outputs, and those of calls on the whole sequence.
        """
        trial, rows = self.trial, self.rows * BEAMS
        length = self.length if reorders else min(4, self.length)
        swapped, copied = 1, 2
        if trial.encoded is None:  # Without another call: another example's.
            others, y_others = trial.x[::-1], y[::-1]
        else:
            others, y_others = trial.others, trial.run(trial.others)

        def hypotheses(x, others):
            """Each position of both hypotheses: `[batch * hypotheses, length, ..]`."""
            first = [others[:, :swapped], x[:, swapped:]]
            second = [x[:, :swapped], others[:, swapped:copied], x[:, copied:]]
            both = [np.concatenate(a, axis=1)[:, :length] for a in (first, second)]
            return np.stack(both, axis=1).reshape(rows, length, -1)

        x, expected = hypotheses(trial.x, others), hypotheses(y, y_others)
        context = trial.context(trial.x)
        if reorders:
            context = each_hypothesis(context, rows)
        cache = trial.layer.init_cache(rows, length, context)
        writers = np.tile(np.arange(BEAMS)[:, None], (1, length))
        outputs = []
        for t in range(length):
            if parents := {swapped: [1, 0], copied: [0, 0]}.get(t):
                earlier = np.arange(length) < t
                writers = np.where(earlier, writers[parents], np.arange(BEAMS)[:, None])
                order = np.arange(self.rows)[:, None] * BEAMS + parents
                if reorders:
                    cache = reorder_cache(cache, np.ravel(order).astype("int32"))
            # [batch, writers, 1, hypotheses, length]
            ancestry = np.equal(writers, np.arange(BEAMS)[:, None, None])[:, None]
            ancestry = np.tile(ancestry[None], (self.rows, 1, 1, 1, 1))
            ancestry = ops.convert_to_tensor(ancestry.astype("float32"))
            state = self._state(t, length)._replace(ancestry=ancestry)
            y_t, cache = self._step(x[:, t : t + 1], cache, state)
            outputs.append(y_t)
        return np.concatenate(outputs, axis=1), expected

    def check_prompts(self, y):
        """Reads a prompt in one call, then decodes; `y` are the outputs of a call."""
        # The first prompt is shorter than the tensor it comes in.
        trial, whole = self.trial, self.length
        prefill = trial.jit(functools.partial(read_prompt, trial.layer), trial.layer)
        for length, width in ((whole // 2, whole - 1), (whole, whole)):
            parts = trial.x[:, :length], trial.others[:, length:width]
            x = np.concatenate(parts, axis=1)
            x, context = ops.convert_to_tensor(x), trial.context(x)
            y_x, cache = prefill(x, self._empty(), context, self._state(length))
            trial.require_same(
                to_array(y_x)[:, :length],
                y[:, :length],
                "reads a prompt otherwise than it trains: at position {}, prefill "
                "gives another output than a call on the whole sequence.",
            )
            if length < whole:
                trial.require_same(
                    self.decode(length, cache),
                    y[:, length:],
                    "decodes otherwise after a prompt: at position {}, decode_step "
                    "gives another output after prefill than a call on the whole "
                    "sequence. In prefill, put into the cache what decode_step reads "
                    "of positions before state.step, and nothing of later ones.",
                    length,
                )

    def _empty(self):
        x = self.trial.x
        return self.trial.layer.init_cache(*x.shape[:2], self.trial.context(x))

    def _step(self, x, cache, state):
        """The outputs of one position, float32 array, and the new cache."""
        trial = self.trial
        context = trial.context(x)
        if trial.position_bias is not None:
            bias = bias_of_step(trial.position_bias, state)
            context = context._replace(position_bias=bias)
        context, state = as_read(trial.layer, context, state, x.shape[0])
        x = ops.convert_to_tensor(x)
        y, cache = self._decode_step(x, cache, context, state)
        return to_array(y), cache

    def _state(self, step, length=None):
        keys = ops.arange(length or self.length, dtype="int32")
        return DecodeState(ops.convert_to_tensor(step, "int32"), keys)
