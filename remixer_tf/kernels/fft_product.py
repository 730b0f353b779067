"""The product with a Toeplitz matrix, as a convolution by the FFT."""

from keras import ops

from remixer_tf.kernels import on_cpu

FROM_LENGTH = 1024


def is_chosen(length):
    """Whether the FFT is the faster way here, for `length` positions."""
    return length >= FROM_LENGTH and on_cpu()


def reference(w, x):
    """See `fft_product`: it makes the matrix, `T[t, s] = w[n-1+s-t]`."""
    n = x.shape[-1]
    positions = ops.arange(n)
    index = (n - 1) + positions[None, :] - positions[:, None]
    return ops.einsum("hts,h...s->h...t", ops.take(w, index, axis=-1), x)


def fft_product(w, x):
    """`Y[t] = sum_s w[n-1+s-t] X[s]`, the Toeplitz product as a convolution.

    It takes n log n operations for n^2. The transforms have length 2n, so that the
    convolution wraps around into zeros only.

    Chosen for: CPUs, from 1,024 positions on. No accelerator was measured.
    Gain: 11% of `LengthMixing` forward and backward at 1,024 positions, 47% at 2,048
    and 73% at 4,096 (`python -m benchmarks.mixing_fft`, float32, batch 4, 512 channels,
    2 cores of an AMD EPYC, 2026-11-21).

    w is float32 `[heads, 2n - 1]`, see `create_toeplitz_matrix`, and x is float
    `[heads, ..., n]`. Returns float32 of the shape of x.
    """
    shape, n = ops.shape(x), x.shape[-1]
    x = ops.reshape(x, (shape[0], -1, n))
    # The weight of lag t - s stands at t - s modulo 2n; lag n meets zeros only.
    lags = ops.flip(w, axis=-1)  # from -(n-1) to n-1
    lags = ops.concatenate(
        [lags[:, n - 1 :], ops.zeros_like(w[:, :1]), lags[:, : n - 1]], axis=-1
    )
    x = ops.pad(ops.cast(x, "float32"), [[0, 0], [0, 0], [0, n]])
    real, imaginary = ops.rfft(x, fft_length=2 * n)  # [heads, rows, n+1]
    lag_real, lag_imaginary = (
        part[:, None, :] for part in ops.rfft(lags, fft_length=2 * n)
    )
    product = (
        real * lag_real - imaginary * lag_imaginary,
        real * lag_imaginary + imaginary * lag_real,
    )
    return ops.reshape(ops.irfft(product, fft_length=2 * n)[..., :n], shape)
