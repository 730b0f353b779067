"""Adafactor as T5 trained with it, and learning-rate schedules.

Keras' own optimizers and schedules (`keras.optimizers.AdamW` and the rest) serve as
well. Gradients are made dense first, see `remixer_tf.engines.tensorflow.step`.
"""

from remixer_tf.optimizers.adafactor import Adafactor
from remixer_tf.optimizers.adamw import bert_adamw
from remixer_tf.optimizers.muon import Muon
from remixer_tf.optimizers.schedule_free import ScheduleFreeAdamW
from remixer_tf.optimizers.schedules import (
    TruncatedRsqrt,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupLinearDecay,
    WarmupRsqrt,
)

__all__ = [
    "Adafactor",
    "Muon",
    "ScheduleFreeAdamW",
    "TruncatedRsqrt",
    "WarmupConstant",
    "WarmupCosineDecay",
    "WarmupLinearDecay",
    "WarmupRsqrt",
    "bert_adamw",
]
