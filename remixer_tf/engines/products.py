"""FLOPs that the engines count in a program."""

from typing import NamedTuple


class Products(NamedTuple):
    """FLOPs of a program."""

    flops: int  # of matrix products and convolutions
    uncounted: tuple  # of str, operations on floats without a formula, and FFTs
    rest: int  # of other arithmetic on floats, and of Fourier transforms
