"""Models: stacks of residual sublayers, and what is built of them."""

from remixer_tf.models.encoder_decoder import EncoderDecoder
from remixer_tf.models.image_classifier import ImageClassifier, num_tokens
from remixer_tf.models.stack import Block, TransformerStack

__all__ = [
    "Block",
    "EncoderDecoder",
    "ImageClassifier",
    "TransformerStack",
    "num_tokens",
]
