"""Toeplitz matrices of weights."""

from typing import Any

from keras import ops


def create_toeplitz_matrix(w: Any) -> Any:
    """Lays `2n-1` weights out as an `n x n` Toeplitz matrix: `t[i, j] = w[n-1+j-i]`.

    The listing of gMLP's appendix: pad, tile, reshape, so that each row is the padded
    vector turned by one more place, then cut. Two things differ. The printed listing
    lacks the line that drops the last elements before the reshape, without which the
    sizes do not match. It pads by n elements, where one is enough.

    Args:
        w: float `[..., 2n - 1]`; `w[n-1]` is the diagonal, smaller indices look back,
            larger ones look ahead.

    Returns:
        float `[..., n, n]`.
    """
    lead, size = w.shape[:-1], w.shape[-1]
    n = (size + 1) // 2
    no_pad = [[0, 0]] * len(lead)
    t = ops.pad(w, no_pad + [[0, 1]])  # [..., 2n]
    t = ops.tile(t, [1] * len(lead) + [n])  # [..., n * 2n]
    t = t[..., : n * size]  # the missing line
    t = ops.reshape(t, (*lead, n, size))
    return t[..., n - 1 :]
