"""Models: stacks of residual sublayers, and what is built of them."""

from remixer_tf.models.decoder_only import DecoderOnly
from remixer_tf.models.encoder_decoder import EncoderDecoder
from remixer_tf.models.encoder_only import EncoderOnly
from remixer_tf.models.heads import (
    ClassificationHead,
    MaskedLMHead,
    MeanPoolingHead,
    SpanHead,
)
from remixer_tf.models.stack import Block, TransformerStack

__all__ = [
    "Block",
    "ClassificationHead",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "MaskedLMHead",
    "MeanPoolingHead",
    "SpanHead",
    "TransformerStack",
]
