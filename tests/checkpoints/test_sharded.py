"""Checkpoints that orbax wrote are whole, and are read on TensorFlow."""

import pathlib
import resource
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from remixer_tf.checkpoints.damage import DamagedError
from remixer_tf.checkpoints.initial import InitialCheckpoint
from remixer_tf.checkpoints.reading import (
    available_steps,
    named_variables,
    restore_model,
)
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.engine import Host
from remixer_tf.engines.jax.engine import JaxEngine
from tests.training import toy


class OnJax:
    """What `Checkpoints` needs of a Keras variable, with an array of JAX's."""

    def __init__(self, value):
        self.assign(value)

    def assign(self, value):
        self.value = jnp.asarray(value)
        self.shape, self.dtype = self.value.shape, self.value.dtype


def make_model(**options):
    model = toy.ToyModel(dropout_rate=0.1, **options)
    model.build()
    return model


def make_groups(seed=0, **options):
    """{group: {path: variable}} of a toy model."""
    draw = np.random.default_rng(seed).integers
    model = {
        path: OnJax(draw(2**32, size=variable.shape).astype("uint32"))
        if "seed_generator" in path
        else OnJax(draw(1000, size=variable.shape).astype("float32"))
        for path, variable in named_variables(make_model(**options).variables).items()
    }
    return {"model": model, "optimizer": {"iteration": OnJax(jnp.int32(seed))}}


def make_checkpoints(model_dir, groups):
    engine = SimpleNamespace(
        variables=lambda: groups, host=Host(), checkpoint_format="orbax"
    )
    return Checkpoints(str(model_dir), engine, iter(toy.toy_dataset()))


def save(model_dir, groups, *steps):
    checkpoints = make_checkpoints(model_dir, groups)
    for step in steps:
        checkpoints.save(step)
    checkpoints.wait()
    return pathlib.Path(checkpoints.directory)


def assert_equal(groups, others):
    for group, variables in groups.items():
        for path, variable in variables.items():
            np.testing.assert_array_equal(
                np.asarray(variable.value), np.asarray(others[group][path].value)
            )


@pytest.mark.slow
def test_everything_reads_it(tmp_path):
    groups = make_groups(seed=3)
    folder = save(tmp_path, groups, 5, 7)
    assert sorted(p.name for p in folder.iterdir()) == ["5", "7"]
    others = make_groups(seed=4)
    assert make_checkpoints(tmp_path, others).restore() == 7
    assert_equal(groups, others)

    model = make_model()
    assert restore_model(str(tmp_path), model, step=5) == 5
    assert_equal({"model": named_variables(model.variables)}, groups)
    model = make_model()
    assert "3 variables taken" in InitialCheckpoint(str(tmp_path))(model)
    assert_equal({"model": named_variables(model.trainable_variables)}, groups)
    with pytest.raises(ValueError, match=r"embeddings \(checkpoint \(16, 8\), here"):
        restore_model(str(tmp_path), make_model(width=4))


@pytest.fixture(scope="module")
def run_of_two_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(folder, make_groups(), 1, 2)
    return folder


@pytest.mark.parametrize("how", ["cut", "gone", "changed"])
def test_a_damaged_one_is_left_aside_for_the_one_before(
    run_of_two_steps, tmp_path, how
):
    shutil.copytree(run_of_two_steps, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    path = max((folder / "2/arrays").rglob("d/*"), key=lambda p: p.stat().st_size)
    content = path.read_bytes()
    middle = len(content) // 2
    if how == "gone":
        path.unlink()
    else:
        rest = bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(content[:middle] + (rest if how == "changed" else b""))
    with pytest.raises(DamagedError, match="checkpoints/2 is damaged: "):
        restore_model(tmp_path, make_model())
    assert make_checkpoints(tmp_path, make_groups()).restore() == 1
    assert sorted(p.name for p in folder.iterdir()) == ["1", "damaged-2"]


def test_a_step_may_take_the_memory_while_it_is_written(tmp_path):
    groups = make_groups(width=40_000)
    before = jax.tree.map(np.array, [v.value for v in groups["model"].values()])
    checkpoints = make_checkpoints(tmp_path, groups)
    checkpoints.save(1)
    step = jax.jit(lambda xs: [x + 1 for x in xs], donate_argnums=0)
    step([v.value for v in groups["model"].values()])
    checkpoints.wait()
    others = make_groups(seed=1, width=40_000)
    assert make_checkpoints(tmp_path, others).restore() == 1
    for value, other in zip(before, others["model"].values(), strict=True):
        np.testing.assert_array_equal(value, other.value)


# Threads of orbax's find its event loop closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_leaves_the_last_one_good(tmp_path):
    groups = make_groups(width=40_000)
    folder = save(tmp_path, groups, 1)
    checkpoints = make_checkpoints(tmp_path, groups)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="could not be written.* step 1 is good"):
            checkpoints.save(2)
            checkpoints.save(3)  # At the latest.
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert available_steps(folder) == [1]


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="one of .*orbax. Received: .*'pickle'"):
        JaxEngine(checkpoint_format="pickle")
