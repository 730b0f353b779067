"""Runs with frozen variables: no slots, no gradients, small checkpoints."""

import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.checkpoints.initial import InitialCheckpoint
from remixer_tf.checkpoints.reading import available_steps, named_variables
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.models import Lora
from remixer_tf.optimizers import Adafactor
from remixer_tf.run import Run
from tests.models.tiny import tiny_model
from tests.training import toy

LORA = Lora(2, dropout_rate=0.2)


def make():
    return tiny_model("remixer", num_layers=1)


def build(**options):
    engine = backend_engine()
    run = Run(make, **options)
    engine.build(run.make_model, lambda: Adafactor(1e-2), "float32")
    return engine


@pytest.mark.slower
def test_frozen_variables_have_no_slots_and_cost_no_gradient():
    batch = toy.stack(toy.make_batches(1))
    whole, engine = build(), build(adapters=LORA)
    trained = engine.model.trainable_variables
    assert {v.name for v in trained} == {"lora_kernel_a", "lora_kernel_b"}
    # Small variables have one slot each; the others are steps and learning rate.
    assert len(engine.optimizer.variables) == len(trained) + 2
    before = {v.path: v.numpy() for v in engine.model.variables}
    sums = engine.step(batch)
    assert float(sums["updates"]) == 1
    for variable in engine.model.variables:
        changed = np.any(variable.numpy() != before[variable.path])
        is_a = variable.name == "lora_kernel_a"  # whose gradient starts at zero
        moves = variable.name == "lora_kernel_b" or "seed_generator" in variable.path
        assert is_a or changed == moves, variable.path
    # A gradient of a kernel is one product of rows, inputs and outputs.
    rows = 8 * 6
    kernels = [v for v in whole.model.trainable_variables if v.name == "kernel"]
    gradients = sum(2 * rows * np.prod(v.shape) for v in kernels)
    adapters = sum(2 * rows * np.prod(v.shape) for v in trained)
    spared = whole.cost(batch).flops - engine.cost(batch).flops
    assert spared >= gradients - 3 * adapters


def fit(folder, steps, checkpoints=(), **options):
    options = {"adapters": LORA} | options
    settings = {"checkpoint_period": 2, "log_period": 2, "keep": 1}
    toy.train_toy(Run(make, **options), folder, steps, **settings, **dict(checkpoints))


def read(folder, step):
    reader = tf.train.load_checkpoint(f"{folder}/checkpoints/{step}/state")
    return {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}


@pytest.fixture
def run(tmp_path):
    fit(tmp_path / "run", 4)
    return tmp_path / "run"


@pytest.mark.slower
def test_checkpoints_hold_what_changes(run, tmp_path):
    assert available_steps(str(run / "checkpoints")) == [0, 4]
    start, last = read(run, 0), read(run, 4)
    models = [{k for k in x if k.startswith("model/")} for x in (start, last)]
    assert not any("lora" in k for k in models[0])
    assert all("lora" in k or "seed_generator" in k for k in models[1])
    fit(tmp_path / "again", 2)
    fit(tmp_path / "again", 4)  # It resumes from step 2.
    again = read(tmp_path / "again", 4)
    assert again.keys() == last.keys()
    for name, value in last.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    engine, step = Run(make, adapters=LORA).restore(str(run), merge=False)
    merged, _ = Run(make, adapters=LORA).restore(str(run))
    assert step == 4 and not any("lora" in v.path for v in merged.model.variables)
    batch = toy.make_batches(1)[0]
    expected, found = (np.array(x.model(batch)) for x in (engine, merged))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    first, step = Run(make, adapters=LORA).restore(str(run), step=0)
    assert step == 0 and np.max(np.abs(np.array(first.model(batch)) - found)) > 1e-3


@pytest.mark.slower
def test_a_base_that_is_missing_or_changed(run):
    base = run / "checkpoints" / "0"
    kept = shutil.copytree(base, run / "kept")
    with open(base / "state.index", "ab") as file:
        file.write(b"0")
    with pytest.raises(ValueError, match="checkpoints/0, which has changed since"):
        Run(make, adapters=LORA).restore(str(run))
    shutil.rmtree(base)
    with pytest.raises(FileNotFoundError, match="checkpoints/0, which is missing"):
        fit(run, 6)
    os.rename(kept, base)
    fit(run, 6)
    with pytest.raises(ValueError, match="written by another model"):
        Run(make).restore(str(run))


@pytest.mark.slower
def test_a_run_starts_with_adapters_or_says_that_it_lacks_them(run, tmp_path):
    initial = InitialCheckpoint(str(run))
    with pytest.raises(ValueError, match="adapters that this run lacks: .*lora_kernel"):
        initial(make())
    with pytest.raises(ValueError, match="adapters that this run lacks"):
        initial(Run(make, adapters=Lora(3)).make_model())
    model = Run(make, adapters=LORA).make_model()
    initial(model)
    engine, _ = Run(make, adapters=LORA).restore(str(run), merge=False)
    found = named_variables(model.variables)
    for path, variable in named_variables(engine.model.variables).items():
        if "seed_generator" not in path:
            np.testing.assert_array_equal(variable.numpy(), found[path].numpy())


@pytest.mark.slow
def test_frozen_by_expression(tmp_path):
    options = {"adapters": None, "frozen": "^encoder/"}
    fit(tmp_path, 2, **options)
    start, last = read(tmp_path, 0), read(tmp_path, 2)
    assert any("encoder.S" in k for k in start if k.startswith("model/"))
    encoder = [k for k in last if "_decoder.Sencoder.S" in k or "_encoder_" in k]
    assert not [k for k in encoder if "seed_generator" not in k]
    engine, _ = Run(make, frozen="^encoder/").restore(str(tmp_path))
    whole, _ = Run(make, frozen="^encoder/").restore(str(tmp_path), step=0)
    for one, other in zip(engine.model.variables, whole.model.variables, strict=True):
        if "/encoder/" in one.path:
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_nothing_left_to_train(tmp_path):
    with pytest.raises(ValueError, match="No variable of the model is left to train"):
        fit(tmp_path, 2, adapters=Lora(0))
    with pytest.raises(ValueError, match="adapters must be a Lora"):
        Run(make, adapters=Lora)


@pytest.mark.slower
def test_weights_by_optimizers_of_keras(tmp_path):
    fit(tmp_path, 2, [("optimizer", lambda: keras.optimizers.AdamW(1e-2))])
    slots = [k for k in read(tmp_path, 2) if k.startswith("optimizer/")]
    assert slots and all("lora" in k or "iteration" in k for k in slots)
