"""Keras layers of T5, Remixer and their relatives; keras.ops only."""

from remixer_tf.layers.attention import CrossAttention, SelfAttention
from remixer_tf.layers.base import Context, Sublayer
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.feed_forward import FeedForward, GatedFeedForward
from remixer_tf.layers.length_mixing import LengthMixing, create_toeplitz_matrix
from remixer_tf.layers.normalization import RMSNorm
from remixer_tf.layers.position_bias import RelativePositionBias
from remixer_tf.layers.remixer import RemixerBlock
from remixer_tf.layers.watching import tell, watching

__all__ = [
    "Context",
    "CrossAttention",
    "Dropout",
    "FeedForward",
    "GatedFeedForward",
    "LengthMixing",
    "RMSNorm",
    "RelativePositionBias",
    "RemixerBlock",
    "SelfAttention",
    "Sublayer",
    "create_toeplitz_matrix",
    "tell",
    "watching",
]
