"""Keras layers of T5, Remixer and their relatives; keras.ops only."""

from remixer_tf.layers.attention import CrossAttention, SelfAttention
from remixer_tf.layers.base import Context, DecodeState, PositionWise, Sublayer
from remixer_tf.layers.bert import (
    BertFeedForward,
    BertSelfAttention,
    PositionalAttention,
)
from remixer_tf.layers.convolution import (
    DynamicConvolution,
    LightweightConvolution,
)
from remixer_tf.layers.convolutional_gate import ConvolutionalGate
from remixer_tf.layers.dense_synthesizer import DenseSynthesizer
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.feed_forward import FeedForward, GatedFeedForward
from remixer_tf.layers.fourier import FourierMixing
from remixer_tf.layers.gaussian_attention import GaussianAttention
from remixer_tf.layers.gmlp import GatedMLP, SpatialGatingUnit, TinyAttention
from remixer_tf.layers.hyper_mixing import HyperMixing
from remixer_tf.layers.learned_routers import GShardRouter, SwitchRouter
from remixer_tf.layers.length_mixing import LengthMixing
from remixer_tf.layers.masked_mixer import MaskedMixer
from remixer_tf.layers.mixture import MoE
from remixer_tf.layers.mlp_mixer import (
    BlockTokenMLP,
    SlidingTokenMLP,
    TokenMixingMLP,
)
from remixer_tf.layers.normalization import Affine, LayerNorm, RMSNorm
from remixer_tf.layers.patches import PatchEmbedding
from remixer_tf.layers.position_bias import RelativePositionBias
from remixer_tf.layers.position_embedding import PositionEmbedding
from remixer_tf.layers.projected_mixing import ProjectedMixing
from remixer_tf.layers.random_synthesizer import RandomSynthesizer
from remixer_tf.layers.remixer import RemixerBlock
from remixer_tf.layers.routers import (
    BaseRouter,
    HashRouter,
    Router,
    Routing,
)
from remixer_tf.layers.saving import register
from remixer_tf.layers.sowing import MixingFacts, capture, sow
from remixer_tf.layers.sparse_gate import SparseSpatialGate
from remixer_tf.layers.toeplitz import create_toeplitz_matrix
from remixer_tf.layers.toeplitz_unit import ToeplitzUnit
from remixer_tf.layers.triangular import TriangularMixing

__all__ = [
    "Affine",
    "BaseRouter",
    "BertFeedForward",
    "BertSelfAttention",
    "BlockTokenMLP",
    "Context",
    "ConvolutionalGate",
    "CrossAttention",
    "DecodeState",
    "DenseSynthesizer",
    "Dropout",
    "DynamicConvolution",
    "FeedForward",
    "FourierMixing",
    "GShardRouter",
    "GatedFeedForward",
    "GatedMLP",
    "GaussianAttention",
    "HashRouter",
    "HyperMixing",
    "LayerNorm",
    "LengthMixing",
    "LightweightConvolution",
    "MaskedMixer",
    "MixingFacts",
    "MoE",
    "PatchEmbedding",
    "PositionEmbedding",
    "PositionWise",
    "PositionalAttention",
    "ProjectedMixing",
    "RMSNorm",
    "RandomSynthesizer",
    "RelativePositionBias",
    "RemixerBlock",
    "Router",
    "Routing",
    "SelfAttention",
    "SlidingTokenMLP",
    "SparseSpatialGate",
    "SpatialGatingUnit",
    "Sublayer",
    "SwitchRouter",
    "TinyAttention",
    "ToeplitzUnit",
    "TokenMixingMLP",
    "TriangularMixing",
    "capture",
    "create_toeplitz_matrix",
    "sow",
]

register(globals()[name] for name in __all__)
