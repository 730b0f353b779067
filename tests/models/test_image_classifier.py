"""The image classifier against NumPy, its FLOPs, and what it refuses."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    BertFeedForward,
    BertSelfAttention,
    Context,
    GatedMLP,
    LayerNorm,
    PatchEmbedding,
    TokenMixingMLP,
)
from remixer_tf.models import ImageClassifier, TransformerStack, num_tokens
from tests.compiled import compiled, of_unknown_ranks, slow_on_jax
from tests.settings import part_of

SIZE, PATCH, WIDTH, CLASSES = 8, 4, 6, 5


def tiny_classifier(kind="gmlp", pool="cls", survival_probability=1.0, **kwargs):
    """A 2-layer classifier of 8 x 8 pixels, built."""
    sublayers = {
        "gmlp": {"gmlp": functools.partial(GatedMLP, d_ff=8)},
        "mixer": {
            "token_mixing": functools.partial(TokenMixingMLP, d_tokens=7),
            "feed_forward": functools.partial(BertFeedForward, d_ff=8),
        },
        "vit": {
            "self_attention": functools.partial(BertSelfAttention, num_heads=2, d_kv=3),
            "feed_forward": functools.partial(BertFeedForward, d_ff=8),
        },
    }[kind]
    stack = functools.partial(
        TransformerStack,
        sublayers,
        num_layers=2,
        norm=LayerNorm,
        survival_probability=survival_probability,
    )
    model = ImageClassifier(stack, SIZE, PATCH, WIDTH, CLASSES, pool, **kwargs)
    model.build()
    return model


def random_images(batch_size=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch_size, SIZE, SIZE, 3)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_patches_against_numpy(dtype):
    images = np.random.default_rng(1).normal(size=(2, 6, 9, 3)).astype("float32")
    layer = PatchEmbedding(3, 4, dtype=dtype)
    layer.build(images.shape)
    kernel, bias = (ops.convert_to_numpy(v) for v in layer.variables)
    assert kernel.shape == (27, 4)
    bias = bias + 1  # it starts at zero
    layer.projection.bias.assign(bias)
    tokens = np.array(ops.cast(layer(images), "float32"))
    expected = np.zeros((2, 6, 4))
    for b, row, column in np.ndindex(2, 2, 3):
        patch = images[b, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        expected[b, 3 * row + column] = patch.reshape(-1) @ kernel + bias
    tolerance = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(tokens, expected, atol=tolerance)


@pytest.mark.parametrize("pool", ["cls", "token", "gap"])
def test_logits_are_the_pooled_stack_through_the_head(pool):
    model = tiny_classifier(pool=pool)
    for variable in model.trainable_variables:  # what starts at zero too
        noise = np.random.default_rng(2).normal(0, 0.3, variable.shape)
        variable.assign(noise)
    images = random_images()
    x = np.array(model.patch_embedding(images))
    if pool != "gap":
        token = ops.convert_to_numpy(model.class_token)
        x = np.concatenate([np.repeat(token, 3, 0), x], 1)
    assert x.shape == (3, num_tokens(SIZE, PATCH, pool), WIDTH)
    y = np.array(compiled(model.stack)(x, context=Context())[0])
    weights = [ops.convert_to_numpy(v) for v in model.logits.variables]
    if pool == "cls":
        kernel, bias = (ops.convert_to_numpy(v) for v in model.pre_logits.variables)
        pooled = np.tanh(y[:, 0] @ kernel + bias)
    else:
        pooled = y[:, 0] if pool == "token" else y.mean(1)
    expected = pooled @ weights[0] + weights[1]
    logits = np.array(compiled(model)({"images": images}))
    assert logits.shape == (3, 1, CLASSES) and logits.dtype == np.float32
    np.testing.assert_allclose(logits[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", slow_on_jax(["gmlp", "mixer", "vit"], but=["gmlp"]))
@pytest.mark.parametrize("pool", ["cls", "gap"])
def test_every_body_runs_in_bfloat16(kind, pool):
    model = tiny_classifier(kind, pool, dtype="mixed_bfloat16")
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths)
    assert any("class_token" in path for path in paths) == (pool == "cls")
    logits = compiled(model)({"images": random_images()})
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    reference = tiny_classifier(kind, pool)
    reference.set_weights(model.get_weights())
    expected = np.array(compiled(reference)({"images": random_images()}))
    error = np.array(logits) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 0.05


def test_stochastic_depth_is_active_in_training_only():
    model = tiny_classifier(survival_probability=0.5)
    batch = {"images": random_images(16)}
    evaluate = compiled(model)
    train = compiled(functools.partial(model, training=True), model)
    evaluated = np.array(evaluate(batch))
    np.testing.assert_array_equal(np.array(evaluate(batch)), evaluated)
    trained = np.array(train(batch))
    assert (trained != evaluated).any()
    assert (trained != np.array(train(batch))).any()


def test_what_it_refuses():
    with pytest.raises(ValueError, match="cls, token, gap.*Received: pool='mean'"):
        tiny_classifier(pool="mean")
    with pytest.raises(ValueError, match="patch_size=3 for images of 8x8 pixels"):
        PatchEmbedding(3, 4).build((None, 8, 8, 3))
    with pytest.raises(ValueError, match=r"reads images \[batch, 8, 8, 3\]. Received"):
        tiny_classifier()({"images": np.zeros((2, 12, 12, 3), "float32")})


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="counts TensorFlow's operations"
)
def test_flops_of_gmlp_ti_by_hand():
    import tensorflow as tf

    from remixer_tf import configuration
    from remixer_tf.engines.tensorflow.flops import matmul_flops

    settings = configuration.read(["models/gmlp_ti.gin"], ["NUM_LAYERS = 2"])
    model = part_of(settings, "ImageClassifier")()
    model.build()
    function = tf.function(lambda images: model({"images": images}))
    function = function.get_concrete_function(tf.TensorSpec([1, 224, 224, 3]))
    d, f, n = 128, 768, 197
    layer = n * d * f + n * n * f // 2 + n * f // 2 * d
    rest = 196 * 768 * d + d * d + d * 1000
    assert matmul_flops(function) == 2 * (2 * layer + rest)
    # Specs 1.9: 2.68 GFLOP at the paper's 30 layers.
    assert round(2 * (30 * layer + rest) / 1e9, 2) == 2.68


@pytest.mark.parametrize("given", ["[batch]", "[batch, 1]", "shares", "in the batch"])
def test_keras_takes_a_class_and_a_weight_for_each_image(given):
    """As `SparseCategoricalCrossentropy` by itself, on logits `[batch, classes]`."""
    model = tiny_classifier()
    model.compile(metrics=[] if given == "shares" else ["accuracy"])
    logits = np.random.default_rng(0).normal(size=(3, 1, CLASSES)).astype("float32")
    labels, weights = np.array([0, 4, 2]), np.array([1.0, 0.5, 2.0], "float32")
    y, w = labels, weights
    if given == "[batch, 1]":
        y, w = y[:, None], w[:, None]
    elif given == "shares":
        y = np.eye(CLASSES, dtype="float32")[labels]

    def scores(y, w, x):
        x = ops.reshape(x, (-1, 1, CLASSES))
        data = {}, y, x, w
        if given == "in the batch":
            data = {"labels": y, "label_weights": w}, None, x
        return model.compute_loss(*data), model.compute_metrics(*data)

    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    expected = float(loss(labels, logits[:, 0], weights))
    right = np.mean(logits[:, 0].argmax(axis=1) == labels)
    for function in (scores, of_unknown_ranks(scores, y, w, logits)):
        model.reset_metrics()
        found, metrics = function(*map(ops.convert_to_tensor, (y, w, logits)))
        np.testing.assert_allclose(float(found), expected, rtol=1e-6)
        if given != "shares":
            np.testing.assert_allclose(float(metrics["accuracy"]), right)
