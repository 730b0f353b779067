"""Questions in the places of a batch: one that has its answer leaves to the next."""

import collections
import dataclasses
from typing import Any

import keras
import numpy as np

# A turn ends when one row of so many has ended. Fewer turns move caches less often,
# and more let fewer places stay empty.
ENDED = 8


@dataclasses.dataclass(eq=False)
class Question:
    """A question that a search answers.

    Attributes:
        tokens: int32 array `[input_length]`, padded with 0; None before they are read.
        settings: dictionary of NumPy's numbers, the inputs of its search.
        length: int, how many tokens it has.
    """

    tokens: Any = None
    settings: dict = dataclasses.field(default_factory=dict)

    @property
    def length(self):
        return int(np.count_nonzero(self.tokens))


class Places:
    """The rows of one `State` of a `ContinuousSearch`, and whose answers they are.

    Args:
        search: the `ContinuousSearch`.
        sizes: tuple of ints, numbers of rows that are written together. They rise.
        xla: bool, whether XLA compiles the largest of them when it is written.

    Attributes:
        questions: list with the `Question` of each row, None where a row is free.
    """

    def __init__(self, search, sizes, xla=False):
        self.search, self._sizes, self._xla = search, sizes, xla
        self.clear()

    def clear(self):
        """Forgets all rows."""
        self._state, self.questions = None, []

    def arrange(self, writing, new):
        """Makes the rows of these questions, as few as there may be.

        Args:
            writing: list of questions that have a row; all others lose theirs.
            new: list of questions that are begun.
        """
        kept = [i for i, one in enumerate(self.questions) if one in writing]
        size = next(size for size in self._sizes if size >= len(writing + new))
        steps = self._state.steps[kept].tolist() if kept else []
        steps += [self._first(one) for one in new]
        most = max(one.length for one in writing + new)
        shape = self.search.shape(most, max(steps) + 1)
        parts = [self.search.fit(self._state, shape)] if kept else []
        if new:
            parts.append(self._begun(new, shape))
        index = kept + [len(self.questions) * bool(kept) + i for i in range(len(new))]
        left = any(one and one not in writing for one in self.questions)
        self._state = parts[0]
        if new or left or size != self._state.size:
            fill = size - len(index)
            live = [True] * len(index) + [False] * fill
            self._state = self.search.merge(parts, index + index[:1] * fill, live)
            self.questions = [self.questions[i] for i in kept] + new + [None] * fill

    def write(self, steps):
        """Writes at most so many tokens of each answer.

        It ends when one of `ENDED` rows has ended.

        Returns:
            the `Decoded` of all rows, NumPy arrays, and the list of those that ended.
            `leave` takes their questions out.
        """
        number = sum(one is not None for one in self.questions)
        rest = number - max(1, number // ENDED)
        xla = self._xla and self._state.size == self._sizes[-1]
        decoded, self._state = self.search.write(self._state, steps, rest, xla)
        running = self._state.running
        ended = [i for i, one in enumerate(self.questions) if one and not running[i]]
        return decoded, ended

    def leave(self, rows):
        """Takes the questions of these rows out: a list of them."""
        found = [self.questions[i] for i in rows]
        for i in rows:
            self.questions[i] = None
        return found

    def _begun(self, questions, shape):
        tokens = np.stack([one.tokens for one in questions])
        settings = keras.tree.map_structure(
            lambda *x: np.stack(x), *(one.settings for one in questions)
        )
        return self.search.begin(shape, tokens, settings)

    def _first(self, question):
        """The first position that is written of an answer."""
        return question.length * self.search.language_model


def answer_list(search, tokens, settings, size, xla):
    """Answers a list of questions, whose answers may end at different steps.

    Args:
        search: the `ContinuousSearch`.
        tokens: int32 array `[questions, input_length]`, padded with 0.
        settings: dictionary of inputs of the search, arrays `[questions, ..]`.
        size: int, rows that are written together.
        xla: bool, whether XLA compiles so many rows.

    Returns:
        a `Decoded` of all questions, NumPy arrays.

    Raises:
        ValueError: rows of the search, or of the model, keep in step.
    """
    waiting = collections.deque(
        Question(ids, {name: x[i] for name, x in settings.items()})
        for i, ids in enumerate(tokens)
    )
    order, found = [*waiting], {}
    search.trace_for([one.length for one in order])
    # Fewer rows take fewer places, when nothing waits.
    places = Places(search, sorted({-(-size // 4), -(-size // 2), size}), xla)
    while len(found) < len(order):
        writing = [one for one in places.questions if one]
        free = size - len(writing)
        places.arrange(
            writing, [waiting.popleft() for _ in range(min(free, len(waiting)))]
        )
        decoded, ended = places.write(2**30)
        for i, one in zip(ended, places.leave(ended), strict=True):
            found[one] = keras.tree.map_structure(lambda x, i=i: x[i], decoded)
    rows = [found[one] for one in order]
    return keras.tree.map_structure(lambda *x: np.stack(x), *rows)
