"""Random numbers of each row's own, from a seed and what the row says."""

import numbers

import numpy as np
from keras import ops

from remixer_tf.errors import UserError

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_MULTIPLIERS = 0x9E3779B1, 0x85EBCA77  # odd, so that no power of them vanishes


def row_uniforms(tokens, seed, shape):
    """Draws numbers that depend on a seed and on the row's own tokens alone.

    They are float32 `[batch, *shape]`, uniform in [0, 1), multiples of 2 ** -24.
    Whatever the batch, a row has the same numbers: its neighbours, its place among them
    and trailing padding count for nothing. Rows of the same tokens share them.

    Threefry-2x32 (Salmon et al. 2011), keyed by the seed, makes a row's key of a hash
    of its tokens; keyed by that, it counts. It takes integer operations alone, which
    give the same bits on every backend and device.

    Args:
        tokens: int32 `[batch, length]`, 0 on padding.
        seed: int, else a ValueError; or a tensor, uint32 `[batch, 2]`, the
            `seed_words` of each row.
        shape: pair of ints.
    """
    if not ops.is_tensor(seed):
        seed = ops.convert_to_tensor(seed_words(seed)[None])
    words = ops.cast(tokens, "uint32")
    # sum_i token_i m ** i for two m, modulo 2 ** 32: padding adds nothing.
    hashes = [
        ops.sum(words * _powers(base, tokens.shape[1]), axis=1)[:, None, None]
        for base in _MULTIPLIERS
    ]
    low, high = (seed[:, i, None, None] for i in (0, 1))
    key = threefry((low, high), hashes)
    row, column = np.indices(shape, dtype="uint32")
    bits, _ = threefry(key, (_word(row), _word(column)))
    upper = ops.cast(ops.bitwise_right_shift(bits, _word(8)), "float32")
    return upper * 2.0**-24


def seed_words(seed):
    """Returns any int modulo 2 ** 64, as uint32 `[2]`, low first; else a ValueError."""
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool):
        raise UserError(f"seed must be an integer. Received: seed={seed!r:.200}")
    return np.array([int(seed) >> shift & 0xFFFFFFFF for shift in (0, 32)], "uint32")


def threefry(key, counter):
    """Threefry-2x32 of 20 rounds: of two pairs of uint32 tensors, a third."""
    parity = ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _word(_PARITY))
    keys = (*key, parity)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ops.bitwise_or(
                ops.bitwise_left_shift(y, _word(rotation)),
                ops.bitwise_right_shift(y, _word(32 - rotation)),
            )
            y = ops.bitwise_xor(x, y)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + _word(group + 1)
    return x, y


def _word(value):
    """An int of any size and sign, or an array, as uint32: modulo 2 ** 32."""
    return ops.convert_to_tensor(np.asarray(value & 0xFFFFFFFF, "uint32"))


def _powers(base, length):
    """base ** 1 .. base ** length modulo 2 ** 32."""
    return _word(np.array([pow(base, i + 1, 2**32) for i in range(length)], "int64"))
