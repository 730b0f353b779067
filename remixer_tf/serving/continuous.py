"""A search whose rows come and go, in compiled graphs of TensorFlow's."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from remixer_tf.decoding import turns
from remixer_tf.serving.token_graph import searchable


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

    There are graphs for some shapes, see `State`, and for any number of rows. Before
    `begin`, `trace` makes those of the largest shape, the first of `shapes`. Another
    thread may then trace others and `compile` them: they are used once they are there.

    Args:
        model: the model of the graph, on one device of TensorFlow's.
        tokens: the `TokenGraph`.
        widths: list of ints, what questions are padded to, the least first.
        settings: dictionary of numbers of one row, its inputs, see `searchable`.

    Attributes:
        shapes: list of pairs of ints, the largest first.
    """

    def __init__(self, model, tokens, widths, settings):
        self._model, self._tokens, self._settings = model, tokens, settings
        longest = tokens.max_length + tokens.language_model * tokens.input_length
        lengths = [turns.room(1, longest)]
        while lengths[-1] < longest:
            lengths.append(turns.room(lengths[-1] + 1, longest))
        self.shapes = [(w, n) for n in lengths[::-1] for w in widths[::-1]]
        self._graphs, self._made = {}, []

    def shape(self, tokens, positions):
        """The least shape for questions of so many tokens, and for so many positions.

        A prompt of a language model counts as tokens and as positions.
        """
        fitting = [x for x in self._made if x[0] >= tokens and x[1] >= positions]
        return min(fitting, key=lambda shape: shape[::-1])

    def begin(self, shape, tokens, settings):
        """Begins to answer ids, int32 `[batch, input_length]`: a `State`.

        `settings` are those of `searchable`, `[batch, ..]` each.
        """
        batch = searchable(tf.constant(tokens[:, : shape[0]]), settings)
        return State(self._call("begin", shape, batch), shape)

    def fit(self, state, shape):
        """Pads or cuts a `State` to a shape."""
        if shape == state.shape:
            return state
        return State(self._call(f"fit {state.shape}", shape, state.rows), shape)

    def merge(self, states, index, live):
        """Makes one `State` of others of the same shape, see `turns.merge`."""
        rows = [state.rows for state in states]
        index, live = tf.constant(index, tf.int32), tf.constant(live, tf.bool)
        rows = self._call(f"merge {len(states)}", None, rows, index, live)
        return State(rows, states[0].shape)

    def write(self, state, steps, running):
        """Writes tokens, see `turns.Turn`: a `Decoded` of NumPy arrays, the `State`."""
        numbers = tf.constant(steps, tf.int32), tf.constant(running, tf.int32)
        graph = self._graphs.get((state.size, state.shape))
        if graph is not None:
            decoded, rows = graph(state.rows, *numbers)
        else:
            decoded, rows = self._call("write", state.shape, state.rows, *numbers)
        decoded = tf.nest.map_structure(lambda x: x.numpy(), decoded)
        return decoded, State(rows, state.shape)

    def trace(self, shape):
        """Makes the graphs of a shape.

        Raises a ValueError if rows of this search or model keep in step.
        """
        state = self._example(1, shape)
        for other in self._made:
            self.fit(self.fit(state, other), shape)
        _, state = self.write(state, 1, 0)
        self.merge([state], [0], [True])
        self.merge([state, state], [0, 1], [True, True])
        self._made.append(shape)

    def compile(self, size, shape):
        """Has XLA compile `write` of so many rows. Raises an `OpError` if it cannot."""
        rows, zero = self._example(size, shape).rows, tf.constant(0)
        plain = self._graphs["write", shape]

        @tf.function(jit_compile=True, autograph=False)
        def write(*arguments):
            return plain(*arguments)

        graph = write.get_concrete_function(rows, zero, zero)
        graph(rows, zero, zero)
        self._graphs[size, shape] = graph

    def _example(self, size, shape):
        tokens = np.zeros([size, self._tokens.input_length], np.int32)
        tokens[:, : shape[0]] = 2
        settings = {name: np.stack([x] * size) for name, x in self._settings.items()}
        return self.begin(shape, tokens, settings)

    def _call(self, name, shape, *arguments):
        """Calls the graph of a function, which is made for any number of rows."""
        graph = self._graphs.get((name, shape))
        if graph is None:
            specs = tf.nest.map_structure(_of_any_rows, arguments)
            if shape is None:
                specs = tf.nest.map_structure(_of_any_shape, specs)
            function = tf.function(self._function(name, shape), autograph=False)
            graph = self._graphs[name, shape] = function.get_concrete_function(*specs)
        return graph(*arguments)

    def _function(self, name, shape):
        search, longest = self._tokens.decode_fn, self._tokens.max_length
        model, (width, length) = self._model, shape or (None, None)
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


def _of_any_rows(x):
    if x is None:
        return None
    return tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype)


def _of_any_shape(x):
    return x and tf.TensorSpec([None] * x.shape.rank, x.dtype)
