"""Models: stacks of residual sublayers, and what is built of them."""

from remixer_tf.layers.saving import register
from remixer_tf.models.adapters import Lora
from remixer_tf.models.decoder_only import DecoderOnly
from remixer_tf.models.encoder_decoder import EncoderDecoder
from remixer_tf.models.encoder_only import EncoderOnly
from remixer_tf.models.heads import (
    ClassificationHead,
    EmbeddingHead,
    MaskedLMHead,
    MeanPoolingHead,
    SpanHead,
)
from remixer_tf.models.image_classifier import ImageClassifier, num_tokens
from remixer_tf.models.layer_patterns import alternate, interleave
from remixer_tf.models.stack import (
    Block,
    LayerScaleBlock,
    PostNormBlock,
    TransformerStack,
)

__all__ = [
    "Block",
    "ClassificationHead",
    "DecoderOnly",
    "EmbeddingHead",
    "EncoderDecoder",
    "EncoderOnly",
    "ImageClassifier",
    "LayerScaleBlock",
    "Lora",
    "MaskedLMHead",
    "MeanPoolingHead",
    "PostNormBlock",
    "SpanHead",
    "TransformerStack",
    "alternate",
    "interleave",
    "num_tokens",
]

register(globals()[name] for name in __all__)
