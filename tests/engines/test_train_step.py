"""The train step on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from remixer_tf.engines.backend_engine import engine_of
from remixer_tf.errors import UserError
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.summaries import summarize_steps
from remixer_tf.optimizers import Adafactor
from remixer_tf.optimizers.options import make_optimizer
from tests.engines import one_device
from tests.training import toy

NUM_STEPS = 4


ON_JAX = keras.backend.backend() == "jax"


def make_step(model=None, optimizer=None, **options):
    """Returns a model, and the step that trains it on this backend."""
    keras.utils.set_random_seed(0)
    model = model or toy.ToyModel()
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    return model, one_device.make_step(model, optimizer, **options)


def run(steps_per_call=1, **options):
    """Returns the added sums and final weights of NUM_STEPS steps."""
    model, train_step = make_step(**options)
    batches = toy.make_batches(NUM_STEPS)
    total = {}
    for i in range(0, NUM_STEPS, steps_per_call):
        for key, value in train_step(
            toy.stack(batches[i : i + steps_per_call])
        ).items():
            total[key] = total.get(key, 0.0) + float(value)
    return total, [v.numpy() for v in model.trainable_variables]


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batches": 2, "jit_compile": True, "steps_per_call": 2},
        {"steps_per_call": 4},
        {"jit_compile": True, "steps_per_call": 2},
        {"micro_batches": 4},
    ][: 1 if ON_JAX else None],
)
def test_several_steps_per_call_xla_and_micro_batches_change_nothing(options):
    expected, expected_weights = run()
    total, weights = run(**options)
    assert total.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(total[key], value, rtol=1e-5, err_msg=key)
    for one, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("any_rows", [False, True])
def test_evaluations_take_what_datasets_give(any_rows):
    engine = engine_of(toy.ToyModel())
    batch = toy.make_batches(1)[0]
    compute = engine.compile(lambda batch: {"logits": engine.model(batch)}, any_rows)
    (given,) = tf.data.Dataset.from_tensors(batch)
    np.testing.assert_array_equal(compute(given)["logits"], compute(batch)["logits"])


def test_sums_are_those_of_the_batch():
    model, train_step = make_step(loss_fn=CrossEntropy(z_loss=0.01))
    batch = toy.make_batches(1)[0]
    logits = np.array(model(batch))
    log_z = np.log(np.exp(logits).sum(-1))
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    sums = {k: float(v) for k, v in train_step(toy.stack([batch])).items()}
    np.testing.assert_allclose(sums["loss"], (weights * (log_z - chosen)).sum(), 1e-5)
    np.testing.assert_allclose(sums["z_loss"], 0.01 * (weights * log_z**2).sum(), 1e-5)
    assert sums["weight"] == weights.sum()
    assert sums["tokens"] == batch["encoder_input_tokens"].size + weights.sum()
    assert sums["steps"] == 1


def test_learning_rate_is_the_one_each_step_used():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    optimizer = keras.optimizers.SGD(schedule)
    _, train_step = make_step(optimizer=optimizer)
    sums = train_step(toy.stack(toy.make_batches(3)))
    learning_rate = summarize_steps(sums)["learning_rate"]
    assert learning_rate == pytest.approx((1.0 + 0.9 + 0.8) / 3)


@pytest.mark.parametrize(
    "option",
    [
        {"ema_overwrite_frequency": 2},
        {"loss_scale_factor": 2.0},
        {"gradient_accumulation_steps": 2},
    ],
)
def test_what_no_step_honours_is_refused(option):
    """They would change the result."""
    ((name, value),) = option.items()
    for optimizer in (keras.optimizers.AdamW, Adafactor):
        with pytest.raises(ValueError, match=f"Received: {name}={value}"):
            make_step(optimizer=optimizer(0.1, use_ema=True, **option))


@pytest.mark.parametrize("option", [{"beta_1": "a"}, {"weight_decay": -1}])
def test_numbers_that_keras_does_not_check(option):
    ((name, value),) = option.items()
    with pytest.raises(UserError, match=f"{name} must be .*Received: {name}={value!r}"):
        make_step(optimizer=keras.optimizers.AdamW(0.1, **option))


@pytest.mark.parametrize("option", [{"learning_rate": "a"}, {"lr": 1}, {"clipnorm": 1}])
def test_what_keras_refuses_is_one_line(option):
    def make():
        return keras.optimizers.SGD(**{"clipvalue": 1.0, **option})

    with pytest.raises(UserError, match="^The optimizer cannot be made: .*"):
        make_optimizer(make)


def test_an_optimizer_that_scales_losses_is_refused():
    """Gradients would be divided by a scale that no loss was multiplied with."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="Received: a LossScaleOptimizer of SGD"):
        make_step(optimizer=optimizer)


def test_gradient_norm_and_update_by_sgd():
    model, train_step = make_step(optimizer=keras.optimizers.SGD(0.5))
    before = [v.numpy() for v in model.trainable_variables]
    sums = train_step(toy.stack(toy.make_batches(1)))
    after = [v.numpy() for v in model.trainable_variables]
    moved = np.sqrt(
        sum(((a - b) ** 2).sum() for a, b in zip(after, before, strict=True))
    )
    np.testing.assert_allclose(float(sums["gradient_norm"]), moved / 0.5, rtol=1e-4)


def test_clipping_scales_the_update_and_reports_the_norm_before():
    norms = []
    for clip_norm in (None, 0.01):
        model, train_step = make_step(
            optimizer=keras.optimizers.SGD(1.0), clip_norm=clip_norm
        )
        before = [v.numpy() for v in model.trainable_variables]
        sums = train_step(toy.stack(toy.make_batches(1)))
        moved = [
            v.numpy() - b
            for v, b in zip(model.trainable_variables, before, strict=True)
        ]
        norms.append(np.sqrt(sum((m**2).sum() for m in moved)))
        assert float(sums["gradient_norm"]) == pytest.approx(norms[0], rel=1e-4)
    assert norms[1] == pytest.approx(0.01, rel=1e-4)


def test_a_step_that_is_not_finite_changes_nothing():
    good, bad, good_again = toy.make_batches(3)

    class Explosive(toy.ToyModel):
        """Infinite logits wherever an input is token 2."""

        def call(self, batch, training=False):
            logits = super().call(batch, training=training)
            bomb = ops.any(batch["encoder_input_tokens"] == 2)
            return logits * ops.where(bomb, np.inf, 1.0)

    for batch, token in ((good, 3), (bad, 2), (good_again, 3)):
        batch["encoder_input_tokens"] = np.full_like(
            batch["encoder_input_tokens"], token
        )
    model, train_step = make_step(Explosive())
    sums = train_step(toy.stack([good, bad, good_again]))
    weights = [v.numpy() for v in model.trainable_variables]
    assert (float(sums["skipped"]), float(sums["steps"])) == (1, 3)
    other, train_step = make_step(Explosive())
    expected = train_step(toy.stack([good, good_again]))
    for one, two in zip(weights, other.trainable_variables, strict=True):
        np.testing.assert_allclose(one, two.numpy(), atol=1e-7)
    assert summarize_steps(sums) == pytest.approx(summarize_steps(expected))


class Table(keras.Model):
    """logits = table[previous token]: its gradient is easy to write down."""

    def build(self, input_shape=None):
        self.table = keras.layers.Embedding(toy.VOCAB_SIZE, toy.VOCAB_SIZE, name="t")
        self.table.build((None, None))
        self.built = True

    def call(self, batch, training=False):
        return self.table(batch["decoder_input_tokens"])


def table_gradient(table, batch):
    """Sums the gradient over all positions of an id, as a dense array."""
    weights = batch["decoder_loss_weights"]
    gradient = np.zeros_like(table)
    for b, t in np.argwhere(weights):
        token = batch["decoder_input_tokens"][b, t]
        row = np.exp(table[token]) / np.exp(table[token]).sum()
        row[batch["decoder_target_tokens"][b, t]] -= 1
        gradient[token] += row / weights.sum()
    return gradient


def adafactor_by_numpy(table, batches):
    second = np.zeros_like(table)
    for t, batch in enumerate(batches):
        gradient, decay = table_gradient(table, batch), 1 - (t + 1) ** -0.8
        second = decay * second + (1 - decay) * (gradient**2 + 1e-30)
        update = gradient / np.sqrt(second)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        table = table - 0.1 * max(1e-3, np.sqrt(np.mean(table**2))) * update
    return table


def adamw_by_numpy(table, batches):
    first = second = np.zeros_like(table)
    for t, batch in enumerate(batches, 1):
        gradient = table_gradient(table, batch)
        first, second = (
            0.9 * first + 0.1 * gradient,
            0.999 * second + 0.001 * gradient**2,
        )
        table = table * (1 - 0.01 * 0.1)
        rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        table = table - rate * first / (np.sqrt(second) + 1e-7)
    return table


@pytest.mark.parametrize("jit_compile", [True] if ON_JAX else [False, True])
@pytest.mark.parametrize(
    ("make_optimizer", "reference"),
    [
        (lambda: Adafactor(learning_rate=0.1), adafactor_by_numpy),
        (
            lambda: keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.1),
            adamw_by_numpy,
        ),
    ],
)
def test_embedding_with_repeated_ids(make_optimizer, reference, jit_compile):
    model, train_step = make_step(
        Table(name="table"), make_optimizer(), jit_compile=jit_compile
    )
    batches = toy.make_batches(NUM_STEPS)
    ids = batches[0]["decoder_input_tokens"]
    assert len(np.unique(ids)) < ids.size / 2, "ids must repeat"
    table = model.trainable_variables[0].numpy().astype("float64")
    for batch in batches:
        train_step(toy.stack([batch]))
    np.testing.assert_allclose(
        model.trainable_variables[0].numpy(), reference(table, batches), atol=2e-5
    )


def test_mixed_bfloat16_keeps_float32_variables():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, train_step = make_step(jit_compile=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.embedding.compute_dtype == "bfloat16"
    first = summarize_steps(train_step(toy.stack(toy.make_batches(2))))
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    expected = summarize_steps(make_step()[1](toy.stack(toy.make_batches(2))))
    assert first["loss"] == pytest.approx(expected["loss"], rel=0.01)


def test_loss_falls_on_a_toy_task():
    model, train_step = make_step(toy.ToyModel(width=32), keras.optimizers.Adam(0.01))
    superbatch = toy.stack(toy.make_batches(1) * 50)
    first = summarize_steps(train_step(superbatch))["loss"]
    assert summarize_steps(train_step(superbatch))["loss"] < 0.5 * first


def test_new_lengths_are_traced_anew_and_static():
    shapes = []

    class Recorder(toy.ToyModel):
        def call(self, batch, training=False):
            shapes.append(tuple(batch["decoder_input_tokens"].shape))
            return super().call(batch, training=training)

    _, train_step = make_step(Recorder())
    for length in (6, 4, 6):
        train_step(toy.stack(toy.make_batches(2, length=length)))
    assert set(shapes) == {(8, 6), (8, 4)}


def test_a_variable_without_gradient_is_named():
    class Idle(toy.ToyModel):
        def build(self, input_shape=None):
            super().build(input_shape)
            self.idle = self.add_weight(shape=(1,), name="idle")

    _, train_step = make_step(Idle())
    with pytest.raises(ValueError, match="toy/idle"):
        train_step(toy.stack(toy.make_batches(1)))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_positions_that_the_model_may_not_score_have_no_loss(micro_batches):
    (batch,) = toy.make_batches(1)
    later = np.arange(batch["decoder_loss_weights"].shape[1]) >= 4
    masked = {**batch, "decoder_loss_weights": batch["decoder_loss_weights"] * later}
    assert (
        0 < masked["decoder_loss_weights"].sum() < batch["decoder_loss_weights"].sum()
    )
    results = []
    for first, given in ((4, batch), (0, masked)):
        model = toy.ToyModel()
        model.first_scorable = first
        model, step = make_step(model, micro_batches=micro_batches)
        sums = {key: float(value) for key, value in step(toy.stack([given])).items()}
        weights = [ops.convert_to_numpy(v) for v in model.trainable_variables]
        results.append((sums, weights))
    (sums, weights), (expected, expected_weights) = results
    assert sums == expected and sums["weight"] == masked["decoder_loss_weights"].sum()
    for value, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(value, other)


def test_a_batch_without_weight_changes_nothing():
    optimizer = keras.optimizers.AdamW(0.1)
    model, train_step = make_step(toy.ReportingModel(), optimizer)
    (batch,) = toy.make_batches(1)
    train_step(toy.stack([batch]))  # momentum, which would go on moving the weights
    before = [v.numpy() for v in [*model.variables, *optimizer.variables]]
    empty = {k: v if "encoder" in k else np.zeros_like(v) for k, v in batch.items()}
    sums = train_step(toy.stack([empty]))
    after = [v.numpy() for v in [*model.variables, *optimizer.variables]]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(np.isfinite(value).all() for value in sums.values())
    counts = [float(sums[key]) for key in ("steps", "updates", "skipped")]
    assert counts == [1, 0, 0]


@pytest.mark.parametrize("scale", [0.01] if ON_JAX else [0.01, 10.0])
def test_the_mean_does_not_depend_on_the_scale_of_weights(scale):
    (batch,) = toy.make_batches(1)
    results = []
    for factor in (1.0, scale):
        optimizer = keras.optimizers.SGD(1.0)
        model, train_step = make_step(toy.ReportingModel(), optimizer)
        weights = factor * batch["decoder_loss_weights"].astype("float32")
        values = summarize_steps(
            train_step(toy.stack([batch | {"decoder_loss_weights": weights}]))
        )
        results.append((values, [v.numpy() for v in model.trainable_variables]))
    (expected, expected_weights), (values, weights) = results
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, err_msg=name)
    for one, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_loss_of_ones_own():
    def squares(outputs, batch):
        weights = ops.cast(batch["decoder_loss_weights"], "float32")
        largest = ops.sum(weights * ops.max(outputs, axis=-1))
        squares = ops.sum(weights * ops.sum(outputs**2, axis=-1))
        return {"objective": squares, "largest": largest}

    model, train_step = make_step(
        optimizer=keras.optimizers.SGD(1.0), loss_fn=squares, micro_batches=2
    )
    (batch,) = toy.make_batches(1)
    logits = np.array(model(batch))
    weights = batch["decoder_loss_weights"] / batch["decoder_loss_weights"].sum()
    bias = model.logits.bias.numpy() - 2 * (weights[..., None] * logits).sum((0, 1))
    values = summarize_steps(train_step(toy.stack([batch])))
    assert values["objective"] == pytest.approx((weights * (logits**2).sum(-1)).sum())
    assert values["largest"] == pytest.approx((weights * logits.max(-1)).sum())
    np.testing.assert_allclose(model.logits.bias.numpy(), bias, atol=1e-6)


def test_a_weight_of_an_auxiliary_loss_that_is_not_there():
    _, train_step = make_step(
        toy.ReportingModel(), auxiliary_loss_weights={"spread": 1.0, "balance": 0.1}
    )
    with pytest.raises(ValueError, match="'balance'.*add_loss, toy/logits/kernel/reg"):
        train_step(toy.stack(toy.make_batches(1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"micro_batches": 2, "jit_compile": True}, {}][: 1 if ON_JAX else 2]
)
@pytest.mark.parametrize("steps_per_call", [3] if ON_JAX else [1, 3])
def test_statistics_are_means_over_the_steps_that_counted(steps_per_call, options):
    one, skipped, two = batches = toy.make_batches(3)
    skipped["decoder_loss_weights"] = np.zeros_like(skipped["decoder_loss_weights"])
    _, train_step = make_step(toy.ReportingModel(), **options)
    total = {}
    for i in range(0, 3, steps_per_call):
        sums = train_step(toy.stack(batches[i : i + steps_per_call]))
        total = {key: total.get(key, 0.0) + value for key, value in sums.items()}
    values = summarize_steps(total)
    for name, value in toy.statistics([one, two]).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}])
def test_the_model_is_traced_once(options):
    traces = []

    class Traced(toy.ToyModel):
        def call(self, batch, training=False):
            traces.append(1)
            return super().call(batch, training=training)

    _, train_step = make_step(Traced(), **options)
    for _ in range(2):
        train_step(toy.stack(toy.make_batches(3)))
    assert len(traces) == 1


@pytest.mark.skipif(ON_JAX, reason="JAX traces each variable's update")
def test_adafactor_is_traced_once_for_equal_shapes():
    class Twins(toy.ToyModel):
        def build(self, input_shape=None):
            super().build(input_shape)
            self.twins = [self.add_weight(shape=(3,)) for _ in range(2)]

        def call(self, batch, training=False):
            factor = ops.sum(self.twins[0] * self.twins[1])
            return super().call(batch, training=training) * (1 + factor)

    model, train_step = make_step(Twins(), optimizer := Adafactor(0.01))
    train_step(toy.stack(toy.make_batches(1)))
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    assert len(set(shapes)) < len(shapes)
    assert optimizer.compute_update.experimental_get_tracing_count() == len(set(shapes))
