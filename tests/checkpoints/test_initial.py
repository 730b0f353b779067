"""Weights out of another run's checkpoint."""

import re

import keras
import numpy as np
import pytest

from remixer_tf import configuration
from remixer_tf.checkpoints.initial import InitialCheckpoint
from remixer_tf.layers.routers import HashRouter
from tests.models.tiny import tiny_batch, tiny_model
from tests.settings import value_of
from tests.training import toy


def save(model, model_dir, step=1):
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    iterator = iter(toy.toy_dataset())
    checkpoints = toy.make_checkpoints(model_dir, model, optimizer, iterator)
    checkpoints.save(step)
    checkpoints.wait()


def of_the_gin_file(name):
    settings = configuration.read(
        ["runs/from_t5_1_1.gin"], ["INITIAL_CHECKPOINT = 'unused'"]
    )
    return value_of(settings, f"InitialCheckpoint.{name}")


def test_a_remixer_starts_from_a_t5(tmp_path):
    t5 = tiny_model("t5_1_1")
    save(t5, tmp_path)
    keras.utils.set_random_seed(5)
    remixer = tiny_model("remixer")
    fresh = {v.path: v.numpy() for v in remixer.trainable_variables}
    report = InitialCheckpoint(str(tmp_path), of_the_gin_file("rules"))(remixer)
    old = {v.path: v.numpy() for v in t5.trainable_variables}
    mixing = 0
    for variable in remixer.trainable_variables:
        path, value = variable.path, variable.numpy()
        if "/mixing/" in path or path.endswith("alpha"):
            np.testing.assert_array_equal(value, fresh[path])
            mixing += 1
            continue
        path = path.replace("_remixer/remixer/", "_feed_forward/feed_forward/")
        path = path.replace("_remixer/norm/", "_feed_forward/norm/")
        np.testing.assert_array_equal(value, old[path], err_msg=path)
    assert mixing
    assert f"{len(fresh) - mixing} variables taken" in report
    assert f"{mixing} fresh: " in report and "0 skipped" in report


@pytest.mark.parametrize(
    "toeplitz", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_remixer_starts_with_the_function_of_its_t5(tmp_path, toeplitz):
    t5 = tiny_model("t5_1_1")
    save(t5, tmp_path)
    rules, fresh = of_the_gin_file("rules"), of_the_gin_file("fresh")
    remixer = tiny_model(
        "remixer", remixer={"alpha": "learned_scalar", "toeplitz": toeplitz}
    )
    batch = tiny_batch()
    expected = np.array(t5(batch))

    def distance():
        return np.std(np.array(remixer(batch)) - expected) / np.std(expected)

    InitialCheckpoint(str(tmp_path), rules)(remixer)
    assert distance() > 0.1
    report = InitialCheckpoint(str(tmp_path), rules, fresh)(remixer)
    assert distance() < 0.01
    assert re.search(r"remixer/alpha_logit +<-  -6.0  \(2\)", report)
    assert re.search(r"mixing_matrix +<-  identity_mixing  \(2\)", report)
    assert re.search(r"layer_\*_remixer/norm/scale +<-  .*_feed_forward/norm", report)


def test_reports_shapes_that_differ_and_what_is_left_over(tmp_path):
    model = toy.ToyModel()
    model.build()
    save(model, tmp_path)

    class Other(toy.ToyModel):
        def build(self, input_shape=None):
            self.embedding.build((None, None))
            self.built = True

    other = Other(name="other")
    other.build()
    report = InitialCheckpoint(str(tmp_path / "checkpoints" / "1"))(other)
    np.testing.assert_array_equal(
        other.embedding.embeddings.numpy(), model.embedding.embeddings.numpy()
    )
    assert "1 variables taken" in report
    assert "2 skipped: toy/logits/bias, toy/logits/kernel" in report

    wide = toy.ToyModel(width=4)
    wide.build()
    report = InitialCheckpoint(str(tmp_path))(wide)  # the logits' bias fits
    assert "embeddings (checkpoint (16, 8), here (16, 4))" in report


def test_what_is_not_trained_comes_along_but_random_states(tmp_path):
    """Another table would give every token another expert's weights."""

    class Hashed(toy.ToyModel):
        def __init__(self, seed):
            super().__init__(dropout_rate=0.1)
            self.router = HashRouter(4, toy.VOCAB_SIZE, seed=seed, name="router")

        def build(self, input_shape=None):
            self.router.build((None, None, self.width))
            super().build()

    models = []
    for seed in (0, 1):
        keras.utils.set_random_seed(seed)
        models.append(Hashed(seed))
        models[-1].build()
    one, two = models
    save(one, tmp_path)
    state = two.dropout.seed_generator.state.numpy()
    assert np.any(one.router.table.numpy() != two.router.table.numpy())
    assert np.any(one.dropout.seed_generator.state.numpy() != state)
    assert "4 variables taken" in InitialCheckpoint(str(tmp_path))(two)
    np.testing.assert_array_equal(two.router.table.numpy(), one.router.table.numpy())
    np.testing.assert_array_equal(two.dropout.seed_generator.state.numpy(), state)


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        InitialCheckpoint(str(tmp_path))
    model = toy.ToyModel()
    model.build()
    save(model, tmp_path)
    none = [(".*", None)]
    with pytest.raises(ValueError, match="No variable of .* toy/embedding/embeddings"):
        InitialCheckpoint(str(tmp_path), none)(model)
