"""Keeps what a loaded run makes for its questions, such as traced graphs."""

import dataclasses
import functools

MOST_KEPT = 8  # graphs, or rather what `kept` keeps


def kept(method):
    """Keeps what a method returns while the model has the same variables.

    Graphs are traced for these: `enable_lora` adds variables, `quantize` replaces them.
    It keeps `MOST_KEPT` results, those that were asked for last.
    """

    @functools.wraps(method)
    def found_or_made(self, *args):
        variables = [*map(id, self.model.variables)]
        if variables != self._traced_for:
            self._kept.clear()
            self._traced_for = variables
        key = method, *args
        found = self._kept.pop(key, None)
        if found is None:
            found = method(self, *args)
        self._kept[key] = found  # behind those that were asked for earlier
        if len(self._kept) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        return found

    return found_or_made


class Options(dict):
    """Options, by which `kept` keeps what was made of them."""

    def __hash__(self):
        return hash(repr(sorted(self.items())))

    def __eq__(self, other):
        pairs = ((x, other[name]) for name, x in self.items())
        return super().__eq__(other) and all(_hold_the_same(*pair) for pair in pairs)


def _hold_the_same(value, other):
    """Whether equal values are so in what a class adds to a dataclass.

    Its == compares the dataclass' fields alone.
    """
    kind = type(value)
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" in vars(kind):
        return True
    try:
        return value is other or vars(value) == vars(other)
    except ValueError:  # Arrays have no one truth.
        return False
