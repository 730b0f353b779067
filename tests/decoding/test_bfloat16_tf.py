"""Decoding in bfloat16 against the full pass."""

import numpy as np
import pytest

from remixer_tf.layers import DecodeState
from tests.layers.harness import randomize
from tests.models.tiny import KINDS, STACKS, tiny_batch, tiny_decoder, tiny_model


def logits_step_by_step(model, batch):
    """The logits of `decoder_input_tokens`, one token after the other."""
    tokens = batch["decoder_input_tokens"]
    context, cache = model.start_decoding(batch, tokens.shape[1])
    keys, steps = np.arange(tokens.shape[1], dtype="int32"), []
    for step in range(tokens.shape[1]):
        state = DecodeState(np.int32(step), keys)
        logits, cache = model.decode_step(tokens[:, step], cache, context, state)
        steps.append(np.array(logits))
    return np.stack(steps, axis=1)


QUICK = ["t5_1_1", "remixer"]
OTHERS = [k for k in [*KINDS, *(f"lm_{stack}" for stack in STACKS)] if k not in QUICK]


@pytest.mark.slower
@pytest.mark.parametrize(
    "kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]
)
def test_steps_equal_the_full_pass(kind):
    """Steps are as near to float32, and to each other, as bfloat16 is to float32."""

    def make(dtype):
        if kind.startswith("lm_"):
            return tiny_decoder(kind[3:], dtype=dtype)
        return tiny_model(kind, dtype=dtype)

    model, exact_model = make("mixed_bfloat16"), make("float32")
    randomize(model)
    for weight, other in zip(model.weights, exact_model.weights, strict=True):
        other.assign(weight)
    batch = tiny_batch()
    whole = batch
    if kind.startswith("lm_"):  # inputs are for decoding: their prompt
        whole = {k: v for k, v in batch.items() if not k.startswith("encoder_")}
    exact, full = np.array(exact_model(whole)), np.array(model(whole))
    steps = logits_step_by_step(model, batch)
    rounding = np.abs(full - exact)
    assert 0 < rounding.mean() < 0.02 * exact.std()
    assert np.abs(steps - exact).mean() < 1.5 * rounding.mean()
    assert np.abs(steps - full).mean() < 1.5 * rounding.mean()
    assert np.abs(steps - full).max() < 2 * rounding.max()
