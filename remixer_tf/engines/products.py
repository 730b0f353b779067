"""FLOPs that the engines count in a program."""

from typing import NamedTuple


class Products(NamedTuple):
    """FLOPs of the matrix products and convolutions of a program."""

    flops: int
    uncounted: tuple  # of str, operations like these that `flops` leaves out
