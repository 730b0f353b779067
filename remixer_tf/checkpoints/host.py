"""Which process writes what, when several train together."""

from collections.abc import Callable
from typing import NamedTuple


class Host(NamedTuple):
    """One of the processes that train together.

    Attributes:
        index: int, 0 for the one that writes what all share.
        count: int.
        barrier: a function that returns when all hosts have called it.
    """

    index: int = 0
    count: int = 1
    barrier: Callable = lambda: None
