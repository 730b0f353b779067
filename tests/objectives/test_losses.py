"""The loss and its gradient against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers.base import MASKED
from remixer_tf.objectives import losses
from tests.compiled import of_unknown_ranks, slow_on_jax

B, L, V = 2, 5, 7


def make_batch(scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (B, L, V)).astype("float32")
    targets = rng.integers(0, V, (B, L)).astype("int32")
    weights = np.array([[1, 1, 1, 0, 0], [1, 0.5, 2, 1, 0]], "float32")
    return logits, targets, weights


def smooth(wanted, real, label_smoothing):
    """Takes a share of each row, and spreads it over the row's real classes."""
    uniform = real / real.sum(-1, keepdims=True)
    return (1 - label_smoothing) * wanted + label_smoothing * uniform


def reference(logits, targets, weights, z_loss=0.0, label_smoothing=0.0):
    """Returns (sums, gradient of loss + z_loss), in float64, position by position."""
    sums = dict.fromkeys(("loss", "z_loss", "correct", "weight"), 0.0)
    gradient = np.zeros(logits.shape)
    for index in np.ndindex(*targets.shape):
        row, weight = logits[index].astype("float64"), float(weights[index])
        log_z = np.log(np.sum(np.exp(row - row.max()))) + row.max()
        wanted = np.full(row.shape, label_smoothing / len(row))
        wanted[targets[index]] += 1 - label_smoothing
        probabilities = np.exp(row - log_z)
        sums["loss"] -= weight * np.sum(wanted * (row - log_z))
        sums["z_loss"] += weight * z_loss * log_z**2
        sums["correct"] += weight * (np.argmax(row) == targets[index])
        sums["weight"] += weight
        gradient[index] = weight * (
            probabilities - wanted + 2 * z_loss * log_z * probabilities
        )
    return sums, gradient


def gradient_of(function, logits):
    logits = ops.convert_to_tensor(logits)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = function(logits)
        return ops.convert_to_numpy(tape.gradient(value, logits))
    import jax

    return ops.convert_to_numpy(jax.grad(function)(logits))


def compiled(function):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    import jax

    return jax.jit(function)


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.3])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_sums_and_gradient_equal_numpy(z_loss, label_smoothing, wrap):
    logits, targets, weights = make_batch()
    options = {"z_loss": z_loss, "label_smoothing": label_smoothing}
    expected, expected_gradient = reference(logits, targets, weights, **options)

    @wrap
    def sums_of(logits):
        return losses.cross_entropy(logits, targets, weights, **options)

    sums = sums_of(ops.convert_to_tensor(logits))
    assert set(sums) == set(expected)
    for key, value in sums.items():
        value = ops.convert_to_numpy(value)
        assert value.dtype == np.float32 and value.shape == ()
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, err_msg=key)

    @wrap
    def objective(logits):
        sums = losses.cross_entropy(logits, targets, weights, **options)
        return sums["loss"] + sums["z_loss"]

    np.testing.assert_allclose(
        gradient_of(objective, logits), expected_gradient, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_targets_that_give_each_class_a_share_equal_numpy(dtype, label_smoothing):
    logits, _, weights = make_batch()
    shares = np.random.default_rng(1).dirichlet(np.full(V, 0.3), (B, L))
    low = ops.cast(logits, dtype)
    rows = ops.convert_to_numpy(ops.cast(low, "float32")).astype("float64")
    log_z = np.log(np.exp(rows).sum(-1))
    wanted = (1 - label_smoothing) * shares + label_smoothing / V
    expected = {
        "loss": np.sum(weights * (log_z - (wanted * rows).sum(-1))),
        "z_loss": 0.3 * np.sum(weights * log_z**2),
        "correct": np.sum(weights * (rows.argmax(-1) == shares.argmax(-1))),
        "weight": weights.sum(),
    }
    assert 0 < expected["correct"] < expected["weight"]
    options = {"z_loss": 0.3, "label_smoothing": label_smoothing}
    shares = shares.astype("float32")
    sums = losses.cross_entropy(low, shares, weights, **options)
    for key, value in sums.items():
        assert ops.convert_to_numpy(value).dtype == np.float32
        np.testing.assert_allclose(float(value), expected[key], rtol=1e-5, err_msg=key)

    def objective(x):
        sums = losses.cross_entropy(x, shares, weights, **options)
        return sums["loss"] + sums["z_loss"]

    probabilities = np.exp(rows - log_z[..., None])
    gradient = probabilities - wanted + 0.6 * log_z[..., None] * probabilities
    np.testing.assert_allclose(
        gradient_of(objective, rows.astype("float32")),
        weights[..., None] * gradient,
        rtol=1e-4,
        atol=1e-6,
    )


def test_shares_of_one_class_are_that_class():
    logits, targets, weights = make_batch()
    options = {"z_loss": 1e-4, "label_smoothing": 0.1}
    expected = losses.cross_entropy(logits, targets, weights, **options)
    shares = np.eye(V, dtype="float32")[targets]
    sums = losses.cross_entropy(logits, shares, weights, **options)
    for key, value in sums.items():
        np.testing.assert_allclose(float(value), float(expected[key]), rtol=1e-6)


@pytest.mark.parametrize("soft", [False, True], ids=["classes", "shares"])
def test_masked_classes_take_no_part_in_smoothing(soft):
    """Padding has no share of an answer's start, as `SpanHead` masks it."""
    logits, targets, weights = make_batch()
    lengths = np.array([3, 6])
    targets %= lengths[:, None]
    real = np.arange(V) < lengths[:, None, None] + np.zeros((B, L, 1))
    masked = np.where(real, logits, logits + MASKED).astype("float32")
    wanted = smooth(np.eye(V)[targets], real, 0.1)
    exps = np.where(real, np.exp(logits), 0.0)
    probabilities = exps / exps.sum(-1, keepdims=True)
    logs = np.log(np.where(real, probabilities, 1.0))
    given = np.eye(V, dtype="float32")[targets] if soft else targets

    def loss(x):
        return losses.cross_entropy(x, given, weights, label_smoothing=0.1)["loss"]

    expected = -np.sum(weights * (wanted * logs).sum(-1))
    assert float(loss(masked)) == pytest.approx(expected, rel=1e-5)
    gradient = weights[..., None] * (probabilities - wanted)
    np.testing.assert_allclose(gradient_of(loss, masked), gradient, atol=1e-6)


def test_a_row_of_padding_without_weight_gives_no_nan():
    logits, targets, weights = make_batch()
    logits[1], weights[1] = MASKED, 0
    options = {"label_smoothing": 0.1}
    sums = losses.cross_entropy(logits, targets, weights, **options)
    expected = losses.cross_entropy(logits[:1], targets[:1], weights[:1], **options)
    assert float(sums["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)


@pytest.mark.parametrize("tokens_at_once", slow_on_jax([1, 4, 6, 100], but=[4]))
def test_logits_in_parts(tokens_at_once):
    """Of two rows of five: a position at once, two, three, and all."""
    rng = np.random.default_rng(0)
    x, kernel, bias = (
        rng.normal(size=shape).astype("float32") for shape in ((B, L, 4), (4, V), V)
    )
    _, targets, weights = make_batch()
    options = {"z_loss": 0.3, "label_smoothing": 0.1}
    expected, gradient = reference(x @ kernel + bias, targets, weights, **options)
    expected["objective"] = expected["loss"] + expected["z_loss"]

    def sums(*hidden):
        hidden = losses.Hidden(*map(ops.convert_to_tensor, hidden))
        return losses.cross_entropy_in_parts(
            hidden, targets, weights, tokens_at_once, **options
        )

    found = {key: float(value) for key, value in sums(x, kernel, bias).items()}
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match=r"^Expected targets \[\d, \d\], an id"):
        sums(x[:, 1:], kernel, bias)
    arguments = [x, kernel, bias]
    gradients = [
        gradient @ kernel.T,
        np.einsum("bld,blv->dv", x, gradient),
        gradient.sum((0, 1)),
    ]
    for i, wanted in enumerate(gradients):

        def twice(value, i=i):
            with_value = [*arguments[:i], value, *arguments[i + 1 :]]
            return 2.0 * sums(*with_value)["objective"]

        ours = gradient_of(twice, arguments[i])
        np.testing.assert_allclose(ours, 2 * wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="a tape")
def test_logits_in_parts_of_variables_in_a_loop_of_ones_own():
    """d(sum of x W)/dW without a graph; W and b are variables, as in a model."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(B, L, 4)), rng.normal(size=(4, V))
    _, targets, weights = make_batch()
    _, gradient = reference(x @ kernel, targets, weights)
    weight, bias = (keras.Variable(w, dtype="float32") for w in (kernel, np.zeros(V)))
    with tf.GradientTape() as tape:
        hidden = losses.Hidden(ops.cast(x, "float32"), weight, bias)
        loss = losses.cross_entropy_in_parts(hidden, targets, weights, 4)["objective"]
    found = tape.gradient(loss, [weight.value, bias.value])
    wanted = np.einsum("bld,blv->dv", x, gradient), gradient.sum((0, 1))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"z_loss": "a"},
            "z_loss must be a number.*Received: z_loss='a'",
        ),
        ({"z_loss": float("nan")}, "z_loss must be a number of at least 0"),
        ({"label_smoothing": None}, "label_smoothing must be a number"),
        ({"label_smoothing": 1}, r"label_smoothing must be a number in \[0, 1\)"),
    ],
)
def test_wrong_numbers_are_refused_when_the_loss_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        losses.CrossEntropy(**arguments)


def test_keras_and_the_trainer_see_one_loss():
    logits, targets, weights = make_batch()
    options = {"z_loss": 0.3, "label_smoothing": 0.1}
    loss = losses.CrossEntropy(**options)
    batch = {"decoder_target_tokens": targets, "decoder_loss_weights": weights}
    sums = loss.sums(logits, batch)
    expected, _ = reference(logits, targets, weights, **options)
    objective = expected["loss"] + expected["z_loss"]
    np.testing.assert_allclose(float(sums["objective"]), objective, rtol=1e-5)
    found = loss(targets, logits, weights)
    np.testing.assert_allclose(found, objective / weights.sum(), rtol=1e-5)
    shares = np.eye(V, dtype="float32")[targets]
    np.testing.assert_allclose(loss(shares, logits, weights), found, rtol=1e-5)
    np.testing.assert_allclose(float(loss(targets, logits, 0 * weights)), 0.0)
    expected, _ = reference(logits, targets, np.ones((B, L)), **options)
    expected = (expected["loss"] + expected["z_loss"]) / (B * L)
    np.testing.assert_allclose(loss(targets, logits), expected, rtol=1e-5)
    expected, _ = reference(logits, targets, weights)
    found = losses.CrossEntropy()(targets, logits, weights)
    np.testing.assert_allclose(found, expected["loss"] / weights.sum(), rtol=1e-5)
    with pytest.raises(ValueError, match=r"CrossEntropy\(\).sums\(outputs, batch\)"):
        loss(logits, batch)
    with pytest.raises(ValueError, match=r"^Expected targets .*targets \[2, 4\]$"):
        loss(targets[:, 1:], logits)


@pytest.mark.parametrize("options", [{}, {"z_loss": 0.3}])
def test_a_weight_of_a_row_counts_for_all_its_targets(options):
    logits, targets, _ = make_batch()
    loss = losses.CrossEntropy(**options)
    flat = losses.CrossEntropy()(np.zeros((2, 3), int), np.zeros((2, 3, 4)), [[1], [1]])
    np.testing.assert_allclose(flat, np.log(4), rtol=1e-6)
    rows = np.array([2.0, 0.5])
    sums, _ = reference(logits, targets, rows[:, None] * np.ones((B, L)), **options)
    expected = (sums["loss"] + sums["z_loss"]) / sums["weight"]
    for weights in (rows, rows[:, None]):
        np.testing.assert_allclose(loss(targets, logits, weights), expected, rtol=1e-5)
    whole = loss(targets, logits)
    for weights in (3.0, np.full((1,), 3.0), np.full((B, 1), 3)):
        np.testing.assert_allclose(loss(targets, logits, weights), whole, rtol=1e-5)
    np.testing.assert_allclose(loss(targets[..., None], logits), whole, rtol=1e-6)
    for wrong in (np.ones(3), np.ones((3, 1)), np.ones((B, L, 1))):
        with pytest.raises(ValueError, match=r"^Expected weights \[2, 5\], .* weights"):
            loss(targets, logits, wrong)


@pytest.mark.parametrize("options", [{}, {"z_loss": 0.3}, {"label_smoothing": 0.1}])
def test_targets_that_are_no_class(options):
    logits, targets, _ = make_batch()
    loss = losses.CrossEntropy(**options)
    weights = np.ones((B, L))
    weights[0, 0] = 0
    expected = float(loss(targets, logits, weights))
    for wrong in (-1, V, -100):
        targets[0, 0] = wrong
        assert float(loss(targets, logits, weights)) == expected
        assert np.isnan(loss(targets, logits))
    targets[0, 0] = 0
    for other in (targets + 0.5, targets > 0, np.eye(V, dtype="int8")[targets]):
        with pytest.raises(ValueError, match="^targets must be integers, or floats"):
            loss(other, logits)


def test_plain_keras_weighs_rows():
    keras.utils.set_random_seed(0)
    embedding = keras.layers.Embedding(V, V)
    model = keras.Sequential([keras.Input((3,)), embedding])
    model.compile("sgd", losses.CrossEntropy())
    tokens, rows = np.array([[0, 1, 2], [3, 4, 0]]), np.array([3.0, 1.0])
    logits, each = model.predict(tokens, verbose=0), np.outer(rows, np.ones(3))
    sums, _ = reference(logits, tokens, each)
    for weights in (rows, rows[:, None]):
        found = model.evaluate(tokens, tokens, sample_weight=weights, verbose=0)
        np.testing.assert_allclose(found, sums["loss"] / sums["weight"], rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX knows the shapes of all arrays"
)
def test_targets_of_no_known_rank_are_one_line():
    logits, targets, _ = make_batch()

    def loss(targets):
        return losses.CrossEntropy()(targets, logits)

    with pytest.raises(ValueError, match="^Expected targets .*, of one rank at all"):
        of_unknown_ranks(loss, targets)(targets)


def test_tokens_at_once_is_for_the_trainer():
    with pytest.raises(ValueError, match="at least 1. Received: tokens_at_once=0"):
        losses.CrossEntropy(tokens_at_once=0)
    logits, targets, _ = make_batch()
    loss = losses.CrossEntropy(tokens_at_once=8)
    assert losses.CrossEntropy.from_config(loss.get_config()).tokens_at_once == 8
    with pytest.raises(ValueError, match="Keras' fit computes all logits at once"):
        loss(targets, logits)


@pytest.mark.parametrize("key", ["loss", "z_loss"])
def test_each_sum_has_its_own_gradient(key):
    logits, targets, weights = make_batch()
    _, whole = reference(logits, targets, weights, z_loss=0.3)
    _, without = reference(logits, targets, weights)
    expected = without if key == "loss" else whole - without
    gradient = gradient_of(
        lambda x: losses.cross_entropy(x, targets, weights, z_loss=0.3)[key], logits
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_large_logits_neither_overflow_nor_lose_digits(label_smoothing):
    logits, targets, weights = make_batch()
    options = {"label_smoothing": label_smoothing}
    for shift, scale in ((10_000.0, 1.0), (-10_000.0, 1.0), (0.0, 500.0)):
        moved = np.round(logits * 64) / 64 * np.float32(scale) + np.float32(shift)
        expected, expected_gradient = reference(moved, targets, weights, **options)
        loss = losses.cross_entropy(moved, targets, weights, **options)["loss"]
        np.testing.assert_allclose(float(loss), expected["loss"], rtol=1e-5)
        gradient = gradient_of(
            lambda x: losses.cross_entropy(x, targets, weights, **options)["loss"],
            moved,
        )
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_logits_are_computed_in_float32(dtype):
    logits, targets, weights = make_batch()
    low = ops.cast(ops.convert_to_tensor(logits), dtype)
    rounded = ops.convert_to_numpy(ops.cast(low, "float32"))
    expected, expected_gradient = reference(rounded, targets, weights, z_loss=1e-4)
    sums = losses.cross_entropy(low, targets, weights, z_loss=1e-4)
    for key, value in sums.items():
        assert ops.convert_to_numpy(value).dtype == np.float32
        np.testing.assert_allclose(float(value), expected[key], rtol=1e-5)
    gradient = gradient_of(
        lambda x: losses.cross_entropy(ops.cast(x, dtype), targets, weights)["loss"],
        rounded,
    )
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", ["int32", "bool", "float32", "bfloat16"])
def test_weights_of_any_dtype(dtype):
    logits, targets, _ = make_batch()
    weights = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]])
    expected, _ = reference(logits, targets, weights)
    sums = losses.cross_entropy(logits, targets, ops.cast(weights, dtype))
    for key, value in sums.items():
        np.testing.assert_allclose(float(value), expected[key], rtol=1e-5)


def test_positions_of_weight_0_have_no_effect():
    logits, targets, weights = make_batch()
    before = losses.cross_entropy(logits, targets, weights, z_loss=1.0)
    logits[weights == 0] += 5.0
    targets[weights == 0] = 0
    after = losses.cross_entropy(logits, targets, weights, z_loss=1.0)
    assert {k: float(v) for k, v in before.items()} == {
        k: float(v) for k, v in after.items()
    }


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="JAX has static shapes only."
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_shapes_known_only_when_run(label_smoothing):
    import tensorflow as tf

    logits, targets, weights = make_batch()
    expected, expected_gradient = reference(
        logits, targets, weights, label_smoothing=label_smoothing
    )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, V]),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None]),
        ]
    )
    def loss_and_gradient(logits, targets, weights):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            sums = losses.cross_entropy(
                logits, targets, weights, label_smoothing=label_smoothing
            )
        return sums, tape.gradient(sums["loss"], logits)

    sums, gradient = loss_and_gradient(logits, targets, weights)
    for key, value in sums.items():
        np.testing.assert_allclose(float(value), expected[key], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_of_equal_logits_the_first_is_the_argmax():
    logits = np.zeros((1, V, V), "float32")
    logits[0, 4, 2:] = 1.0
    targets = np.array([[0, 1, 0, 6, 2, 3, 5]])
    correct = losses.cross_entropy(logits, targets, np.ones((1, V)))["correct"]
    assert float(correct) == np.sum(np.argmax(logits, -1) == targets) == 3


def test_nan_logits_are_not_correct():
    logits = np.full((1, 2, V), np.nan, "float32")
    sums = losses.cross_entropy(logits, np.zeros((1, 2), int), np.ones((1, 2)))
    assert float(sums["correct"]) == 0
    assert np.isnan(float(sums["loss"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": np.zeros((B, L + 1), int)}, r"ets \[2, 5\], .*: targets \[2, 6"),
        ({"targets": np.zeros((B, L, 1), int)}, r"or \[2, 5, 7\], the share"),
        ({"weights": np.ones((B, 1))}, r"weights \[2, 1\]"),
        ({"targets": np.zeros((B, L))}, "targets must be integers.*Received: float64"),
        ({"targets": np.zeros((B, L, V), int)}, "or floats for each class"),
        ({"targets": np.zeros((B, L, V + 1))}, r"targets \[2, 5, 8\]"),
        ({"targets": np.full((B, L), V)}, "classes from 0 to 6, .* Received: 7. Give"),
        ({"targets": np.full((B, L), -1)}, "classes from 0 to 6, .* Received: -1"),
        ({"z_loss": -1.0}, "z_loss must be .* at least 0. Received: z_loss=-1.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be a number in \[0, 1\)"),
    ],
)
def test_bad_arguments(change, message):
    logits, targets, weights = make_batch()
    arguments = {"logits": logits, "targets": targets, "weights": weights, **change}
    with pytest.raises(ValueError, match=message):
        losses.cross_entropy(**arguments)
