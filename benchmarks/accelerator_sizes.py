"""The models, batches, lengths and options of `benchmarks.accelerator`."""

from typing import NamedTuple

VOCAB_SIZE = 32100
# XLA's options for GPUs, on this version of JAX, that choose kernels and their order.
OPTIONS = [
    {},
    {"xla_gpu_enable_triton_gemm": False},
    {"xla_gpu_enable_latency_hiding_scheduler": True},
    {"xla_gpu_enable_cublaslt": True},
    {"xla_gpu_autotune_level": 0},
    {"xla_gpu_enable_command_buffer": ""},
    {"xla_allow_excess_precision": False},
]


class Sizes(NamedTuple):
    """The sizes to measure.

    Attributes:
        models: {name: gin file, bindings, batches}.
        parts, remat: names of models; "parts" has the batch `middle`.
        calls, options: one name, with the batch `middle`.
        inputs, targets: lengths; the default is T5's span corruption.
        scans: steps in a call.
        product, copy: the width of a matrix, and gigabytes.
        d_model, chunks: of the logits; 1 is whole.
        mixing: lengths, and `channels` of them.
    """

    models: dict
    parts: list
    calls: str
    options: str
    remat: list
    middle: int = 64
    inputs: int = 512
    targets: int = 114
    scans: tuple = (1, 8, 32)
    product: int = 8192
    copy: float = 4
    d_model: int = 768
    chunks: tuple = (1, 2, 6, 19)
    mixing: tuple = (256, 512, 1024, 2048, 4096, 8192)
    channels: int = 512


FULL = Sizes(
    models={
        "T5.1.1 small": ("t5_1_1_small", (), (64, 128, 256)),
        "Remixer small, equal parameters": (
            "remixer_small",
            ("D_FF = 853",),
            (128, 256),
        ),
        "T5.1.1 base": ("t5_1_1_base", (), (32, 64, 128)),
        "Remixer base": ("remixer_base", (), (64, 128)),
        "T5.1.1 large": ("t5_1_1_large", (), (32, 64)),
    },
    parts=["T5.1.1 base", "Remixer base"],
    calls="T5.1.1 small",
    options="T5.1.1 base",
    remat=["T5.1.1 base", "Remixer base", "T5.1.1 large"],
)
TINY = Sizes(
    models={
        "T5.1.1 tiny": ("t5_1_1_tiny", (), (2, 4)),
        "Remixer tiny": ("remixer_tiny", (), (2,)),
    },
    parts=["T5.1.1 tiny"],
    calls="T5.1.1 tiny",
    options="T5.1.1 tiny",
    remat=["T5.1.1 tiny"],
    middle=2,
    inputs=16,
    targets=6,
    scans=(1, 2),
    product=256,
    copy=0.01,
    d_model=32,
    chunks=(1, 2),
    mixing=(16, 32),
    channels=8,
)
