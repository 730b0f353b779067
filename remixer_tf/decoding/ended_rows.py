"""Rows that have ended leave their batch, where that repays compiling.

A search computes all rows of a batch until the last has ended. With `halvings`, see
`decode`, it is another program, which takes about twice as long to compile.
"""

import collections

import numpy as np

from remixer_tf.decoding.search import HALVINGS, Decoded

TIMES = 2  # More gain little: 1.36 in place of 1.33 for 8 rows, 1.74 and 1.66 for 32.
# Parameters of the model times steps of one row: about what compiling costs (T5.1.1
# small on two cores: 8 s, and 0.5 ms a step).
WORTH = 10**12


def compile_search(compile, search, parameters, again=True):
    """Compiles a search, and once more when rows have waited for long.

    Args:
        compile: a function that compiles a function of a batch, see `Engine.compile`.
        search: a function of a batch, a dictionary of tensors `[rows, ..]`. Unless it
            returns a `Decoded`, it is compiled once.
        parameters: a function that returns how many parameters the model has.
        again: bool; False compiles it once.

    Returns:
        a function of a batch, which counts for each shape.
    """
    together = compile(search)
    if not again:
        return together
    apart = compile(lambda batch: search({**batch, HALVINGS: TIMES}))
    waited = collections.Counter()

    def call(batch):
        shape = tuple(next(iter(batch.values())).shape)
        if waited[shape] >= WORTH:
            return apart(batch)
        found = together(batch)
        if isinstance(found, Decoded):
            waited[shape] += steps_waited(found.tokens) * parameters()
        return found

    return call


def steps_waited(tokens):
    """The steps of rows that `halvings` would have saved, an int.

    `tokens` are int `[rows, max_length]`, 0 after an answer's end.

    Examples:
        >>> steps_waited(np.array([[5, 4, 1], [4, 1, 0], [1, 0, 0], [1, 0, 0]]))
        5
    """
    lengths = np.sort(np.count_nonzero(tokens, axis=1))[::-1]
    rows, steps = len(lengths), 0
    for _ in range(TIMES):
        half = -(-rows // 2)
        if half < rows:
            steps += int(lengths[0] - lengths[half]) * (rows - half)
        rows = half
    return steps
