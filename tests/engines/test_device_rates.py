"""Rates that makers state for their devices, and measured rates."""

import pytest

from remixer_tf.engines.device_rates import matmul_rate, peak_rate


@pytest.mark.parametrize(
    "kind, rate",
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA A10G", None),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("cpu", None),
    ],
)
def test_peaks_of_the_makers(kind, rate):
    assert peak_rate(kind, "bfloat16") == rate
    assert peak_rate(kind, "float32") is None


def test_a_rate_is_of_products_on_the_device():
    """A modern core does 1e9 to 1e12 FLOP/s."""
    for dtype in ("float32", "bfloat16"):
        assert 1e8 < matmul_rate(dtype, accelerator=False, seconds=0.1) < 1e14
