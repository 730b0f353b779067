"""`check_sublayer`: a layer keeps the rules that hold for all."""

import functools
from collections.abc import Callable
from typing import Any

from remixer_tf.models import TransformerStack
from remixer_tf.testing.parts import random_values
from remixer_tf.testing.programs import compiled
from remixer_tf.testing.trial import Trial

LENGTH = 7


def check_sublayer(
    factory: Callable[..., Any],
    causal: bool = False,
    max_length: int | None = None,
    d_model: int = 12,
    reads_encoder: bool = False,
    packs: bool = True,
    decodes: bool = True,
    tolerance: float = 2e-5,
) -> None:
    """Tests a sublayer, with random weights and inputs, on Keras' current backend.

    - It returns the shape it received, in float32 and in mixed_bfloat16.
    - Padding changes no output on real tokens, unless it says `depends_on_padding`.
    - Examples packed in a row give what they give alone.
    - In a decoder, no output depends on a later token, in evaluation and in training.
      Decoding step by step, reading a prompt in one call, and decoding two hypotheses
      whose caches a beam search moves, give what a call on the whole sequence gives.
    - A new layer with its weights, by their paths, gives the same outputs, but for the
      rounding of mixed_bfloat16.
    - Gradients reach all weights and are finite.

    ```python
    from remixer_tf.layers import PositionWise
    from remixer_tf.testing import check_sublayer


    class Scale(PositionWise):
        def build(self, input_shape):
            self.scale = self.add_weight(name="scale", shape=input_shape[-1:])

        def call(self, x, context, training=False):
            return x * self.scale


    check_sublayer(Scale, causal=True)
    ```

    Args:
        factory: a class or function of `name` and `dtype` that returns a new sublayer
            without dropout, as `TransformerStack.sublayers` has it.
        causal: bool, whether to test it as in a decoder.
        max_length: int, the stack's, see `TransformerStack`; at least 7, the length of
            the sequences.
        d_model: int, channels of the inputs.
        reads_encoder: bool, whether it reads `context.encoded`.
        packs: bool. False is for a layer that refuses packed rows, with a ValueError.
        decodes: bool. False is for a layer that is never asked to decode.
        tolerance: float, by how much outputs that are equal in theory may differ, times
            the largest of them or 1.

    Raises:
        ValueError: a rule does not hold. The message names the layer, and the position
            or weight.
    """

    def make(dtype):
        kwargs = {"causal": causal, "max_length": max_length, "dtype": dtype}
        stack = TransformerStack({"sublayer": factory}, num_layers=1, **kwargs)
        layer = stack.blocks[0].sublayer
        layer.build((None, None, d_model))
        return layer

    layer = make("float32")
    for weight, value in random_values([layer]):
        weight.assign(value)
    trial = Trial(layer, d_model, LENGTH, reads_encoder, tolerance=tolerance)
    trial.jit = functools.partial(compiled, quickly=True)
    trial.check_shape()
    if causal:
        trial.check_causal()
    if causal and decodes:
        trial.check_decoding()
    trial.check_padding()
    trial.check_packing(refused=not packs)
    trial.check_gradients()
    trial.check_copy(make("mixed_bfloat16"), tolerance=0.05)
