"""Finds outputs that depend on later inputs, and the layer that lets them.

A batch has a row for each position. In it the inputs differ from that position on, so
every output before the position must stay as it was.
"""

import contextlib
import functools
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.testing.parts import calling
from remixer_tf.testing.programs import to_array

# How much outputs may change by rounding, relative to the largest: float32 rounds by
# 6e-8 in each operation. A layer of experts or an FFT adds in another order where later
# tokens are others; the outputs of most layers do not change by a bit.
ROUNDING = 1e-4


class Leak(NamedTuple):
    """The output at `position` changes with the inputs from position `start` on."""

    start: int
    position: int

    def error(self, name, length, training):
        """The `UserError` that names the layer."""
        where = "in training, " if training else ""
        return UserError(
            f"{name} sees later tokens: {where}its output at position {self.position} "
            f"changes with the tokens from position {self.start} on, of {length}. A "
            "decoder with it is trained on the answers. An output of a causal layer "
            "depends on its own and earlier positions alone."
        )


def find_leak(run, batch, changed, starts, first, name, training, run_one=None):
    """Looks for an output that changes with inputs after it, at several positions.

    One call tests all: each row has other inputs from its position on. Rows may also
    differ since they draw other random numbers, or depend on each other (a mean over
    the batch, places in an expert). Calls of one row each then decide.

    Args:
        run: function of a batch that returns outputs, float32 `[rows, length, ..]`.
        batch: dictionary of arrays of one row.
        changed: function of a position: the batch with other inputs from there on.
        starts: the positions, in increasing order.
        first: int, the first position of which no output may depend on a later one.
        name, training: what is tested, for a warning.
        run_one: as `run`, for calls of one row.

    Returns:
        a `Leak`, or None.

    Warns:
        UserWarning: calls of one row differ as well, so nothing can be said.
    """

    def change(y, other, start):
        return first_change(y[:, first:start], other[:, first:start])

    batches = {start: changed(start) for start in starts}
    y = run(joined([batch, *batches.values()]))
    rows = dict(zip(starts, np.split(y, len(y))[1:], strict=True))
    suspects = [t for t, row in rows.items() if change(y[:1], row, t) is not None]
    # Rows that depend on each other may all have the same leak.
    alike = run(joined([batch] * len(y)))
    if first_change(y[:1], alike[:1]) is not None:
        suspects = starts
    elif not suspects:
        return None
    run = run_one or run
    y = run(batch)
    if change(y, run(batch), y.shape[1]) is not None:
        warnings.warn(
            f"{name} is not tested for leaks in "
            f"{'training' if training else 'evaluation'}: two equal calls differ, or "
            "are not finite. Draw random numbers by keras.random with a SeedGenerator.",
            stacklevel=2,
        )
        return None
    for start in suspects:
        position = change(y, run(batches[start]), start)
        if position is not None:
            return Leak(start, first + position)
    return None


def joined(batches):
    """The rows of several batches in one."""
    return {
        name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
    }


def difference(y, expected):
    """The largest change at each position of `[1, positions, ..]`, relative.

    It is in units of the largest output; NaN differs from all, and so does each other
    integer. None without positions.
    """
    if not y.size:
        return None
    axes = (0, *range(2, y.ndim))
    if "int" in str(y.dtype):
        return np.where((y != expected).any(axis=axes), np.inf, 0.0)
    change = np.abs(y - expected).max(axis=axes)
    largest = np.abs(expected).max()
    return np.nan_to_num(change / (largest or 1.0), nan=np.inf)


def first_change(expected, y):
    """The first position where outputs differ by more than rounding, or None."""
    change = difference(y, expected)
    if change is None or not (change > ROUNDING).any():
        return None
    return int((change > ROUNDING).argmax())


class _Call(NamedTuple):
    """A layer's inputs and outputs in one call of the model, NumPy arrays."""

    layer: Any
    inputs: list
    outputs: list


def at_fault(model, runs, cut):
    """The innermost layer whose inputs agree in two runs, and its outputs do not.

    `runs` are two functions that call the model. `cut` takes an array of each run, and
    returns what must be the same of them, or None. The result is the layer and the
    position, or the model itself and None.
    """
    first, second = (_calls(model, run) for run in runs)

    def changes(arrays, others):
        pairs = [cut(a, b) for a, b in zip(arrays, others, strict=False)]
        found = [difference(*pair) for pair in pairs if pair is not None]
        return [change for change in found if change is not None]

    for one, other in zip(first, second, strict=False):
        if one.layer is not other.layer:
            break
        before = max((d.max() for d in changes(one.inputs, other.inputs)), default=0)
        if before > ROUNDING / 10:
            continue
        for change in changes(one.outputs, other.outputs):
            if (wrong := change > ROUNDING / 10).any():
                return one.layer, int(wrong.argmax())
    return model, None


def _calls(model, run):
    """The `_Call`s of all layers, in the order in which they return."""
    calls = []

    def noting(layer):
        call = layer.call

        @functools.wraps(call)
        def noted(*args, **kwargs):
            y = call(*args, **kwargs)
            calls.append(_Call(layer, _arrays((args, kwargs)), _arrays(y)))
            return y

        return noted

    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers(include_self=False):
            stack.enter_context(calling(layer, noting(layer)))
        run()
    return calls


def _arrays(values):
    """The tensors in nested values, as arrays."""
    tensors = [x for x in keras.tree.flatten(values) if keras.ops.is_tensor(x)]
    return [
        ops.convert_to_numpy(x) if "int" in str(x.dtype) else to_array(x)
        for x in tensors
    ]
