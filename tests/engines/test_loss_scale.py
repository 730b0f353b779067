"""Training in float16: the loss scale, and what it does to a step."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.checkpoints.reading import restore_model
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.engine import check_float16
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.errors import UserError
from remixer_tf.objectives.objective import Objective
from remixer_tf.objectives.summaries import summarize_steps
from remixer_tf.optimizers import Adafactor, Muon, ScheduleFreeAdamW
from remixer_tf.optimizers.loss_scale import LossScale
from tests.models.tiny import tiny_batch, tiny_model
from tests.training import toy

ON_JAX = keras.backend.backend() == "jax"
OPTIMIZERS = {
    "adafactor": functools.partial(Adafactor, 0.01),
    "averaged": functools.partial(keras.optimizers.Adam, 0.01, use_ema=True),
    "schedule_free": functools.partial(ScheduleFreeAdamW, 0.01),
    "lion": functools.partial(keras.optimizers.Lion, 0.01),
    "muon": functools.partial(Muon, 0.01),
}


def make_engine(model, optimizer, scale=8.0, growth_steps=2000, **options):
    """An engine that trains in float16, from a loss scale of `scale`."""
    engine = JaxEngine() if ON_JAX else TensorFlowEngine(jit_compile=False)
    keras.utils.set_random_seed(0)
    engine.build(model, optimizer, "mixed_float16", Objective(**options))
    engine.loss_scale.scale.assign(scale)
    engine.loss_scale.growth_steps = growth_steps
    return engine


def batches(*tokens):
    """A batch for each input token."""
    made = toy.make_batches(len(tokens))
    for batch, token in zip(made, tokens, strict=True):
        batch["encoder_input_tokens"] = np.full_like(
            batch["encoder_input_tokens"], token
        )
    return made


def state(engine):
    groups = engine.variables()
    return {
        path: np.array(engine.to_numpy(variable))
        for group in ("model", "optimizer")
        for path, variable in groups[group].items()
    }


def scale_of(engine):
    return [float(engine.to_numpy(v)) for v in engine.loss_scale.variables]


def test_the_scale_after_steps_by_hand():
    scale = LossScale(initial=8.0, growth_steps=3)
    values = [8.0, 0]
    expected = [  # finite, updated: scale, count, overflowed
        ((True, True), (8, 1, False)),
        ((True, True), (8, 2, False)),
        ((True, False), (8, 2, False)),  # a batch without weight
        ((True, True), (16, 0, False)),
        ((True, True), (16, 1, False)),
        ((False, False), (8, 0, True)),
        ((False, False), (4, 0, True)),
        ((False, False), (2, 0, True)),
        ((False, False), (1, 0, True)),
        ((False, False), (1, 0, False)),  # A scale below 1 would not help.
    ]
    for (finite, updated), (new, count, overflowed) in expected:
        values, over = scale.after(values, updated, finite, 0.5)
        assert (float(values[0]), int(values[1]), bool(over)) == (
            new,
            count,
            overflowed,
        )
    values, _ = scale.after([2.0**24, 2], True, True, 0.5)
    assert float(values[0]) == 2.0**24
    # If the loss itself is not finite, a scale is not the reason.
    values, over = scale.after([8.0, 2], False, False, np.float32("inf"))
    assert (float(values[0]), bool(over)) == (4.0, False)


@pytest.mark.slower
@pytest.mark.parametrize(
    ("optimizer", "micro_batches"),
    [
        ("adafactor", 2),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in OPTIMIZERS),
    ],
)
def test_a_step_that_overflows_changes_no_weight_and_halves_the_scale(
    optimizer, micro_batches
):
    """`optimizer.iterations`, and so the learning rate's schedule, stay too."""
    make = functools.partial(
        make_engine,
        toy.Overflowing,
        OPTIMIZERS[optimizer],
        growth_steps=2,
        micro_batches=micro_batches,
        clip_norm=0.1,
    )
    engine = make()
    good, bad = batches(3, toy.BAD_TOKEN)
    sums = engine.step(toy.stack([bad]))
    counts = ("steps", "updates", "skipped", "overflowed")
    assert [float(sums[name]) for name in counts] == [1, 0, 0, 1]
    assert scale_of(engine) == [4, 0]
    untouched = make()
    for path, value in state(untouched).items():
        np.testing.assert_array_equal(state(engine)[path], value, err_msg=path)
    # Several in a call: growth, growth, overflow, one more.
    sums = engine.step(toy.stack([good] * 4 + [bad, good]))
    assert [float(sums[name]) for name in counts] == [6, 5, 0, 1]
    assert scale_of(engine) == [8, 1]
    untouched.loss_scale.scale.assign(4.0)
    expected = untouched.step(toy.stack([good] * 5))
    for name in ("loss", "gradient_norm", "learning_rate"):
        one, two = summarize_steps(sums)[name], summarize_steps(expected)[name]
        assert one == pytest.approx(two, rel=1e-3), name
    assert int(engine.optimizer.iterations) == int(untouched.optimizer.iterations) == 5


def test_averages_begin_with_the_first_update(tmp_path):
    """Keras' slots are zeros until then: before it, and after steps that overflow."""
    engine = make_engine(toy.Overflowing, OPTIMIZERS["averaged"])
    start = [np.array(v) for v in engine.model.trainable_variables]
    bad, good = (toy.stack(batches(token)) for token in (toy.BAD_TOKEN, 3))
    for steps in (0, 1):
        if steps:
            assert float(engine.step(bad)["updates"]) == 0
        with engine.averaged():
            for weight, value in zip(
                engine.model.trainable_variables, start, strict=True
            ):
                np.testing.assert_array_equal(engine.to_numpy(weight), value)
    folder = str(tmp_path)
    with Checkpoints(folder, engine, iter(toy.toy_dataset())) as checkpoints:
        checkpoints.save(1)
        restored = toy.Overflowing()
        restored.build()
        checkpoints.wait()
        restore_model(folder, restored)
        for weight, value in zip(restored.trainable_variables, start, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), value)


def test_a_scale_keeps_small_gradients():
    """Without it, gradients below 6e-8 are 0 in float16."""
    norms = []
    for scale in (1.0, 2.0**15):
        engine = make_engine(toy.ToyModel, keras.optimizers.SGD, scale)
        engine.model.logits.kernel.assign(engine.model.logits.kernel * 1e-6)
        before = state(engine)["toy/embedding/embeddings"]
        engine.step(toy.stack(batches(3)))
        moved = state(engine)["toy/embedding/embeddings"] - before
        norms.append(np.abs(moved).sum())
    assert norms[0] < 0.9 * norms[1]


def test_a_loss_that_is_not_finite_is_skipped_as_in_float32():
    class Explosive(toy.ToyModel):
        def call(self, batch, training=False):
            return super().call(batch, training=training) * np.inf

    engine = make_engine(Explosive, keras.optimizers.SGD)
    sums = engine.step(toy.stack(batches(3)))
    assert (float(sums["skipped"]), float(sums["overflowed"])) == (1, 0)


def test_a_tpu_has_no_float16():
    check_float16("mixed_bfloat16", "TPU")
    check_float16("mixed_float16", "CPU")
    with pytest.raises(UserError, match="TPU.*mixed_bfloat16"):
        check_float16("mixed_float16", "TPU")


@pytest.mark.slower
@pytest.mark.parametrize("kind", ["t5_1_1", "remixer"])
def test_a_tiny_model_trains_as_in_float32(kind):
    losses = {}
    for policy in ("float32", "mixed_float16"):
        engine = JaxEngine() if ON_JAX else TensorFlowEngine(jit_compile=False)
        keras.utils.set_random_seed(0)
        model = functools.partial(tiny_model, kind, num_layers=1)
        optimizer = functools.partial(Adafactor, 3e-3)
        engine.build(model, optimizer, policy, Objective())
        assert {v.dtype for v in engine.model.trainable_variables} == {"float32"}
        superbatch = toy.stack([tiny_batch()] * 20)
        losses[policy] = [
            summarize_steps(engine.step(superbatch))["loss"] for _ in range(2)
        ]
    assert losses["float32"][1] < 0.9 * losses["float32"][0]
    np.testing.assert_allclose(losses["mixed_float16"], losses["float32"], rtol=0.01)
