"""The value of a macro with which a model has the size of another."""

import math
from typing import NamedTuple

from remixer_tf.errors import UserError

QUANTITIES = ("parameters", "flops", "matmul_flops", "rest_flops")
TOLERANCE = 0.005  # of the size that is wanted
_LARGEST = 2**31


class Wanted(NamedTuple):
    """A size to look for, see `find_value`."""

    quantity: str  # of `QUANTITIES`
    number: float
    macro: str
    of: str | None = None  # the model whose number it is


class Match(NamedTuple):
    """The result of `find_value`."""

    wanted: Wanted
    value: int  # of the macro
    found: int  # of the quantity

    def gin(self, name):
        """Returns a line of gin, whose comment says what the value gives."""
        quantity, number, macro, of = self.wanted
        apart = 100 * (self.found / number - 1)
        return (
            f"{macro} = {self.value}  # {name}: {self.found:,} {quantity}, "
            f"{apart:+.3f}% from {of or f'{number:,.0f}'}"
        )


def find_value(count, start, wanted):
    """Finds the whole number for which a count is nearest to the wanted one.

    Values are multiples of the smallest divisor of `start` that can be added to it:
    of the number of heads, for a width that heads divide.

    Args:
        count: function of an int above 0, which only rises or only falls. It raises a
            ValueError if there is no such model.
        start: int above 0 that it takes.
        wanted: `Wanted`.

    Returns a `Match`. Raises a UserError if the nearest count is more than `TOLERANCE`
    away, or the macro does not change it.
    """
    known = {}

    def off(value):
        if value not in known:
            known[value] = count(value)
        return known[value] - wanted.number

    off(start)
    step = _step(off, start)
    slope = off(start + step) - off(start)
    if not slope:
        raise UserError(
            f"{wanted.macro} does not change {wanted.quantity}: {known[start]:,} with "
            f"{start} and with {start + step}."
        )
    low, high = _bracket(off, start // step, step, slope)
    sign = math.copysign(1, slope)
    below, above = sign * off(low * step), sign * off(high * step)
    while high - low > 1 and below < 0 < above:
        # The secant's zero. Halving the end that stays moves the next one past it.
        guess = low + round((high - low) * below / (below - above))
        guess = min(max(guess, low + 1), high - 1)
        middle = sign * off(guess * step)
        if middle < 0:
            low, below, above = guess, middle, above / 2
        else:
            high, above, below = guess, middle, below / 2
    value = min((low * step, high * step), key=lambda value: abs(off(value)))
    if abs(off(value)) > TOLERANCE * wanted.number:
        # Where none is less, or none is more, the nearest one says enough.
        nearest = [low * step, high * step] if below < 0 < above else [value]
        gives = ", ".join(
            f"{wanted.macro} = {value} gives {known[value]:,}" for value in nearest
        )
        raise UserError(
            f"no {wanted.macro} gives {wanted.number:,.0f} {wanted.quantity}"
            f"{f', those of {wanted.of},' if wanted.of else ''} to within "
            f"{TOLERANCE:.1%}: {gives}. Vary another macro, change other sizes of the "
            "model, or match another number."
        )
    return Match(wanted, value, known[value])


def _step(off, start):
    """Returns the least divisor of `start` that can be added to it."""
    for step in range(1, start + 1):
        if start % step == 0:
            try:
                off(start + step)
            except ValueError as error:
                reason = error
            else:
                return step
    raise reason


def _bracket(off, at, step, slope):
    """Returns two multiples of `step`, whose counts are below and above the wanted one.

    They are one if the least multiple, or the largest that has a count, is not enough.
    """
    sign = math.copysign(1, slope)
    low = high = at
    times = 1
    while sign * off(high * step) < 0 and high * step < _LARGEST:
        rise = times * math.ceil(-off(high * step) / slope)
        low, high, times = high, min(high + rise, 4 * high), 2 * times
    while sign * off(low * step) > 0 and low > 1:
        fall = times * math.ceil(off(low * step) / slope)
        low, high, times = max(low - fall, 1), low, 2 * times
    return low, high
