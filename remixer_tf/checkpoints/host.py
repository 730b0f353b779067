"""Which process reads and writes what, when several train together."""

from collections.abc import Callable
from typing import NamedTuple

import seqio


class Host(NamedTuple):
    """One of the processes that train together.

    Attributes:
        index: int, 0 for the one that writes what all share.
        count: int.
        barrier: a function that returns when all hosts have called it.
        gather: a function of an int that returns the list of all hosts' ints, in the
            order of their indices. All hosts call it.
        shard_info: `seqio.ShardInfo`, the part of the data that it reads, which others
            may read too.
        saves_position: bool, whether it is the one that writes where its part is read.
    """

    index: int = 0
    count: int = 1
    barrier: Callable = lambda: None
    shard_info: seqio.ShardInfo = seqio.ShardInfo(0, 1)
    saves_position: bool = True
    gather: Callable = lambda number: [number]
