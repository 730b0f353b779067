"""Keras layers, models and gin commands for Remixer, gMLP, T5.1.1 and their kin.

Importing this package imports nothing else: ask for the part that you need,
for example `from remixer_tf.models import EncoderDecoder`.
"""

__version__ = "0.1.0"
