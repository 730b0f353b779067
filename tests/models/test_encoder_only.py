"""Encoders and their heads against NumPy; padding, packing, token types."""

import functools
import math

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.models import (
    ClassificationHead,
    MaskedLMHead,
    MeanPoolingHead,
    SpanHead,
)
from remixer_tf.models.heads import mean_of_tokens
from remixer_tf.objectives import losses
from tests.compiled import compiled, slow_on_jax
from tests.layers.harness import randomize
from tests.models.tiny import EACH_STACK, VOCAB_SIZE, tiny_batch, tiny_encoder

POLICIES = ["float32", "mixed_bfloat16"]


def encoder_output(model, batch):
    hidden = compiled(lambda batch: model.encode(batch)[0], model)(batch)
    return np.array(ops.cast(hidden, "float32"))


def randomized(kind, head, **kwargs):
    model = tiny_encoder(kind, head, **kwargs)
    randomize(model)
    return model, {
        v.path.partition("/")[2]: ops.convert_to_numpy(v) for v in model.weights
    }


@pytest.mark.parametrize("dtype", slow_on_jax(POLICIES, but=["float32"]))
@pytest.mark.parametrize("kind", EACH_STACK)
def test_masked_lm_logits_are_those_of_the_masked_positions(kind, dtype):
    model, weights = randomized(
        kind, functools.partial(MaskedLMHead, bias_size=VOCAB_SIZE), dtype=dtype
    )
    batch = {"encoder_input_tokens": tiny_batch()["encoder_input_tokens"]}
    positions = np.array([[3, 9], [0, 4], [7, 7]], "int32")
    logits = compiled(model)({**batch, "masked_positions": positions})
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    hidden = encoder_output(model, batch)
    table = weights["token_embedding/embeddings"]
    everywhere = hidden @ table.T + weights["head/bias"]
    expected = np.take_along_axis(everywhere, positions[:, :, None], axis=1)
    np.testing.assert_allclose(np.array(logits), expected, atol=1e-4)
    np.testing.assert_allclose(np.array(compiled(model)(batch)), everywhere, atol=1e-4)


def test_mlm_transform():
    head = functools.partial(MaskedLMHead, mlm_transform=True)
    model, weights = randomized("gmlp", head)
    batch = {"encoder_input_tokens": tiny_batch()["encoder_input_tokens"]}
    h = encoder_output(model, batch) @ weights["head/transform/kernel"]
    h += weights["head/transform/bias"]
    h *= 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    h -= h.mean(-1, keepdims=True)
    h /= np.sqrt((h**2).mean(-1, keepdims=True) + 1e-6)
    h = h * weights["head/norm/gamma"] + weights["head/norm/beta"]
    expected = h @ weights["token_embedding/embeddings"].T
    np.testing.assert_allclose(np.array(compiled(model)(batch)), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", POLICIES)
def test_classification_head(dtype):
    head = functools.partial(ClassificationHead, 3)
    model, w = randomized("amlp", head, dtype=dtype)
    batch = tiny_batch()
    first = encoder_output(model, batch)[:, 0]
    pooled = np.tanh(first @ w["head/pooler/kernel"] + w["head/pooler/bias"])
    expected = pooled @ w["head/classifier/kernel"] + w["head/classifier/bias"]
    logits = np.array(compiled(model)(batch))
    assert logits.shape == (3, 1, 3) and logits.dtype == np.float32
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-5)


def test_mean_pooling_head_is_a_bag_of_words():
    model, w = randomized("cbow", functools.partial(MeanPoolingHead, 3))
    batch = tiny_batch()
    tokens = batch["encoder_input_tokens"]
    hidden = encoder_output(model, batch)
    mean = np.stack([h[t > 0].mean(0) for h, t in zip(hidden, tokens, strict=True)])
    expected = mean @ w["head/classifier/kernel"] + w["head/classifier/bias"]
    call = compiled(model)
    logits = np.array(call(batch))
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-5)
    shuffled = {"encoder_input_tokens": tokens[:, ::-1]}  # order says nothing
    np.testing.assert_allclose(np.array(call(shuffled)), logits, atol=1e-5)


def test_span_head_never_points_at_padding():
    model, w = randomized("bert", SpanHead)
    batch = tiny_batch()
    logits = np.array(compiled(model)(batch))
    assert logits.shape == (3, 2, 10)
    hidden = encoder_output(model, batch)
    expected = hidden @ w["head/span/kernel"] + w["head/span/bias"]
    real = batch["encoder_input_tokens"] > 0
    for row in range(3):
        np.testing.assert_allclose(
            logits[row][:, real[row]], expected[row].T[:, real[row]], atol=1e-5
        )
        assert (logits[row][:, ~real[row]] < -1e8).all()


def test_the_mean_is_over_real_tokens():
    x = np.random.default_rng(0).normal(size=(3, 4, 6)).astype("float32")
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], "int32")
    y = np.array(mean_of_tokens(x, mask))
    np.testing.assert_allclose(y[0], x[0].mean(0), atol=1e-6)
    np.testing.assert_allclose(y[1], x[1, :2].mean(0), atol=1e-6)
    np.testing.assert_array_equal(y[2], 0)
    ones = np.full((1, 1000, 1), 1.01, "float32")  # summed in float32
    y = mean_of_tokens(ops.cast(ones, "bfloat16"), np.ones((1, 1000), "int32"))
    np.testing.assert_allclose(y, 1.0078125, atol=1e-5)  # 1 + 2**-7


@pytest.mark.parametrize("head", [ClassificationHead, MeanPoolingHead])
def test_a_classifier_refuses_packed_rows(head):
    model = tiny_encoder("bert", functools.partial(head, 3))
    tokens = np.ones((1, 4), "int32")
    batch = {f"encoder_{k}": tokens for k in ("input_tokens", "segment_ids")}
    with pytest.raises(ValueError, match="packing off"):
        model({**batch, "encoder_positions": np.array([[0, 1, 2, 3]], "int32")})


@pytest.mark.parametrize("kind", EACH_STACK)
def test_padding_does_not_matter_if_masked(kind):
    tokens = tiny_batch()["encoder_input_tokens"]
    batch = {"encoder_input_tokens": tokens}
    padded = {"encoder_input_tokens": np.pad(tokens, [(0, 0), (0, 4)])}
    model, _ = randomized(kind, MaskedLMHead)
    masked = compiled(model)
    np.testing.assert_allclose(
        np.array(masked(padded))[:, :10], np.array(masked(batch)), atol=1e-4
    )
    unmasked, _ = randomized(kind, MaskedLMHead, mask_padding=False)
    unmasked.set_weights(model.get_weights())
    unmasked = compiled(unmasked)
    difference = np.array(unmasked(padded))[0, :10] - np.array(unmasked(batch))[0]
    assert np.abs(difference).max() > 1e-3
    # A row without padding is the same either way.
    np.testing.assert_allclose(
        np.array(unmasked(batch))[0], np.array(masked(batch))[0], atol=1e-4
    )


@pytest.mark.parametrize("kind", EACH_STACK)
def test_packed_examples_give_what_they_give_alone(kind):
    model, _ = randomized(kind, MaskedLMHead)
    a, b = (
        np.random.default_rng(seed).integers(2, VOCAB_SIZE, (2, n)).astype("int32")
        for seed, n in ((1, 5), (2, 6))
    )
    packed = {
        "encoder_input_tokens": np.pad(np.concatenate([a, b], 1), [(0, 0), (0, 1)]),
        "encoder_segment_ids": np.array([[1] * 5 + [2] * 6 + [0]] * 2, "int32"),
        "encoder_positions": np.array([[*range(5), *range(6), 0]] * 2, "int32"),
    }
    call = compiled(model)
    logits = np.array(call(packed))
    for alone, part in ((a, logits[:, :5]), (b, logits[:, 5:11])):
        expected = np.array(call({"encoder_input_tokens": alone}))
        np.testing.assert_allclose(part, expected, atol=1e-4)


def test_token_types_are_added_to_the_tokens():
    model, weights = randomized("gmlp", MaskedLMHead)
    tokens = tiny_batch()["encoder_input_tokens"]
    batch = {"encoder_input_tokens": tokens}
    zeros = {**batch, "encoder_token_types": np.zeros_like(tokens)}
    call = compiled(model)
    np.testing.assert_array_equal(np.array(call(batch)), np.array(call(zeros)))
    ones = {**batch, "encoder_token_types": np.ones_like(tokens)}
    logits = np.array(call(ones))
    assert np.abs(logits - np.array(call(zeros))).max() > 1e-3
    # Type 1 everywhere is type 0 with S_1 - S_0 in every token's vector. The logits
    # are tied to the same table, so only the encoder's output is compared.
    hidden = encoder_output(model, ones)
    types = weights["type_embedding/embeddings"]
    shifted = weights["token_embedding/embeddings"] + types[1] - types[0]
    model.token_embedding.embeddings.assign(shifted)
    np.testing.assert_allclose(encoder_output(model, zeros), hidden, atol=1e-5)


def test_embeddings_start_truncated_normal_0_02():
    model = tiny_encoder("gmlp")
    values = ops.convert_to_numpy(model.token_embedding.embeddings)
    assert np.abs(values).max() <= 0.04 + 1e-6
    assert abs(values.std() / 0.0176 - 1) < 0.15
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths)
    assert not [path for path in paths if "/head/" in path]  # tied, without bias


def test_loss_counts_masked_positions_only():
    model, _ = randomized("amlp", MaskedLMHead)
    tokens = tiny_batch()["encoder_input_tokens"]
    positions = np.array([[3, 9], [2, 0], [5, 0]], "int32")
    targets = np.array([[7, 8], [9, 0], [4, 0]], "int32")
    weights = np.array([[1, 1], [1, 0], [1, 0]], "int32")
    batch = {"encoder_input_tokens": tokens, "masked_positions": positions}
    sums = losses.cross_entropy(compiled(model)(batch), targets, weights)
    logits = np.array(compiled(model)({"encoder_input_tokens": tokens}), "float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = [(0, 3, 7), (0, 9, 8), (1, 2, 9), (2, 5, 4)]
    expected = -sum(log_probs[place] for place in counted)
    np.testing.assert_allclose(float(sums["loss"]), expected, rtol=1e-4)
    assert float(sums["weight"]) == 4


@pytest.mark.parametrize(
    "head, targets",
    [
        (MaskedLMHead, "encoder_target_tokens"),
        (functools.partial(ClassificationHead, num_classes=5), "labels"),
        (SpanHead, "labels"),
    ],
)
def test_batch_spec_is_what_model_and_loss_read(head, targets):
    model = tiny_encoder("gmlp", head)
    spec = model.batch_spec(3, {"inputs": 10, "targets": 4})
    batch = {key: np.ones(value.shape, value.dtype) for key, value in spec.items()}
    assert compiled(model)(batch).shape[:-1] == spec[targets].shape
