"""A search whose rows come and go, in compiled graphs of TensorFlow's."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from remixer_tf.decoding import turns
from remixer_tf.serving.token_graph import searchable

_SHORTEST = 16  # tokens that questions are padded to, at least


class State(NamedTuple):
    """Rows that are written together.

    Attributes:
        rows: the `Rows` of `remixer_tf.decoding.turns`, tensors.
        shape: pair of ints: the width of questions, and the length of the cache.
    """

    rows: Any
    shape: tuple

    @property
    def size(self):
        """The number of rows."""
        return self.rows.now.step.shape[0]

    @property
    def steps(self):
        """The position that each row writes next, int32 `[batch]`."""
        return self.rows.now.step.numpy()

    @property
    def running(self):
        """Whether rows have not ended, bool `[batch]`."""
        return self.rows.now.hypotheses.running.numpy().any(axis=1)


class ContinuousSearch:
    """The search of a `TokenGraph`, with rows that come and go.

    There are graphs for some shapes, see `State`, and for any number of rows. `trace`
    makes those of the largest shape, the first of `shapes`, before `begin` is called.
    Another thread may then trace and `compile` others: they are used once they are
    there.

    Args:
        model: the model of the graph, on one device of TensorFlow's.
        tokens: the `TokenGraph`.
        widths: list of ints, what questions may be padded to, the least first.
        settings: dictionary of numbers of one row, its inputs, see `searchable`.

    Attributes:
        language_model: bool, whether prompt and answer share the positions.
        shapes: list of pairs of ints, the largest first.
        widths: list of ints, what questions are padded to before they are read.
    """

    def __init__(self, model, tokens, widths, settings):
        self._model, self._tokens, self._settings = model, tokens, settings
        self.language_model = tokens.language_model
        longest = tokens.max_length + self.language_model * tokens.input_length
        self._lengths = [turns.room(1, longest)]
        while self._lengths[-1] < longest:
            self._lengths.append(turns.room(self._lengths[-1] + 1, longest))
        # Steps read the whole width, and reading a question costs more than that.
        of_states = sorted({widths[0], widths[-1]}, reverse=True)
        self.shapes = [(w, n) for n in self._lengths[::-1] for w in of_states]
        self.widths, self._all_widths = widths[-1:], widths
        while len(widths) > 1 and (half := self.widths[0] // 2) >= _SHORTEST:
            self.widths = [half, *self.widths]
        self._graphs, self._programs = {}, {}
        self._made, self._reads = [], []

    def shape(self, tokens, positions):
        """The least shape for questions of so many tokens, and for so many positions.

        A prompt of a language model counts as tokens and as positions.
        """
        fitting = [x for x in self._made if x[0] >= tokens and x[1] >= positions]
        return min(fitting, key=lambda shape: shape[::-1])

    def begin(self, shape, tokens, settings):
        """Begins to answer ids, int32 `[batch, input_length]`: a `State` of a shape.

        `settings` are those of `searchable`, `[batch, ..]` each.
        """
        used = np.max(np.count_nonzero(tokens, axis=1), initial=0)
        width = min(n for n in self._reads if n >= used)
        return self.fit(self._begun(width, tokens, settings), shape)

    def _begun(self, width, tokens, settings):
        positions = width + 1 if self.language_model else 1
        length = next(n for n in self._lengths if n >= positions)
        batch = searchable(tf.constant(tokens[:, :width]), settings)
        return State(self._call("begin", (width, length), batch), (width, length))

    def fit(self, state, shape):
        """Pads or cuts a `State` to a shape."""
        if shape == state.shape:
            return state
        return State(self._call("fit", shape, state.rows), shape)

    def merge(self, states, index, live):
        """Makes one `State` of others of the same shape, see `turns.merge`."""
        rows = [state.rows for state in states]
        index, live = tf.constant(index, tf.int32), tf.constant(live, tf.bool)
        rows = self._call(f"merge {len(states)}", (), rows, index, live)
        return State(rows, states[0].shape)

    def write(self, state, steps, running, xla=False):
        """Writes tokens, see `turns.Turn`: a `Decoded` of NumPy arrays, the `State`.

        If `xla`, it is compiled first, unless it is already.
        """
        numbers = tf.constant(steps, tf.int32), tf.constant(running, tf.int32)
        key = state.size, state.shape
        if xla and key not in self._programs:
            self.compile(*key)
        program = self._programs.get(key)
        if program is not None:
            decoded, rows = program(state.rows, *numbers)
        else:
            decoded, rows = self._call("write", state.shape, state.rows, *numbers)
        decoded = tf.nest.map_structure(lambda x: x.numpy(), decoded)
        return decoded, State(rows, state.shape)

    def trace(self, shape):
        """Makes the graphs of a shape.

        Raises a ValueError if rows of this search or model keep in step.
        """
        if not self._reads:
            self._read(self.widths[-1])
        _, state = self.write(self._example(1, shape), 1, 0)
        self.merge([state], [0], [True])
        self.merge([state, state], [0, 1], [True, True])
        self._made.append(shape)

    def trace_others(self):
        """Makes the graphs of all other shapes and widths."""
        for width in self.widths[:-1]:
            self._read(width)
        for shape in self.shapes[1:]:
            self.trace(shape)

    def trace_for(self, lengths):
        """Makes the graphs that are missing for questions of so many tokens each."""
        for width in _fitting(self._all_widths, lengths):
            for n in self._lengths:
                if (width, n) not in self._made:
                    self.trace((width, n))
        for width in _fitting(self.widths, lengths):
            if width not in self._reads:
                self._read(width)

    def _read(self, width):
        """Makes the graph that reads questions of a width."""
        self._begun(width, *self._questions(1))
        self._reads.append(width)

    def compiled(self):
        """Returns for how many numbers of rows and shapes XLA has compiled."""
        return len(self._programs)

    def compile(self, size, shape):
        """Has XLA compile `write` of so many rows. Raises an `OpError` if it cannot."""
        rows, zero = self._example(size, shape).rows, tf.constant(0)
        plain = self._graphs["write", shape]

        @tf.function(jit_compile=True, autograph=False)
        def write(*arguments):
            return plain(*arguments)

        program = write.get_concrete_function(rows, zero, zero)
        program(rows, zero, zero)
        self._programs[size, shape] = program

    def _example(self, size, shape):
        state = self.begin(shape, *self._questions(size))
        # Also what has the shape already comes from this graph.
        return State(self._call("fit", shape, state.rows), shape)

    def _questions(self, size):
        tokens = np.zeros([size, self._tokens.input_length], np.int32)
        tokens[:, 0] = 2
        settings = {name: np.stack([x] * size) for name, x in self._settings.items()}
        return tokens, settings

    def _call(self, name, shape, *arguments):
        """Calls the graph of a function, which is made for any number of rows."""
        graph = self._graphs.get((name, shape))
        if graph is None:
            specs = {"fit": _of_any_lengths, "merge": _of_any_shape}.get(
                name.split()[0], _of_any_rows
            )(arguments)
            function = tf.function(self._function(name, shape), autograph=False)
            graph = self._graphs[name, shape] = function.get_concrete_function(*specs)
        return graph(*arguments)

    def _function(self, name, shape):
        search, longest = self._tokens.decode_fn, self._tokens.max_length
        model, (width, length) = self._model, shape or (0, 0)
        function = {
            "begin": lambda batch: turns.begin(search, model, batch, longest, length),
            "write": lambda rows, *numbers: turns.write(
                search, model, rows, longest, length, *numbers
            ),
            "fit": lambda rows: turns.fit(model, rows, width, length),
            "merge": turns.merge,
        }[name.split()[0]]

        def reading(*arguments):
            with self._tokens.weights.reading():
                return function(*arguments)

        return reading


def _fitting(sizes, numbers):
    """Returns the least of `sizes` for each number, without repeats; they rise."""
    return sorted({min(size for size in sizes if size >= n) for n in numbers})


def _of_any_rows(tensors, axes=1):
    """Specifications of tensors whose first `axes` axes may have any size."""

    def spec(x):
        free = min(axes, x.shape.rank)
        return tf.TensorSpec([None] * free + x.shape[free:], x.dtype)

    return tf.nest.map_structure(lambda x: x if x is None else spec(x), tensors)


def _of_any_shape(tensors):
    return _of_any_rows(tensors, 9)


def _of_any_lengths(arguments):
    """The same of `Rows`, of questions and caches of any length."""
    ((batch, context, now),) = arguments
    batch, context = _of_any_rows((batch, context), 2)
    cache = _of_any_shape(now.cache)
    return (turns.Rows(batch, context, _of_any_rows(now)._replace(cache=cache)),)
