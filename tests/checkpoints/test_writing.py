"""Checkpoints hold everything, and refuse what does not fit."""

import concurrent.futures
import os
import pathlib
import resource
import shutil
import threading

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.checkpoints import damage as damages
from remixer_tf.checkpoints.damage import DamagedError
from remixer_tf.checkpoints.reading import (
    available_steps,
    check_whole,
    checkpoint_directory,
    named_variables,
    restore_model,
)
from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.engines import engine
from remixer_tf.engines.engine import Host
from tests.training import toy


def make_model(seed=0, **options):
    keras.utils.set_random_seed(seed)
    model = toy.ToyModel(dropout_rate=0.1, **options)
    model.build()
    return model


def make_checkpoints(model_dir, model, optimizer=None, **options):
    optimizer = optimizer or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    iterator = iter(toy.toy_dataset())
    checkpoints = toy.make_checkpoints(model_dir, model, optimizer, iterator, **options)
    return checkpoints, optimizer, iterator


@pytest.mark.parametrize("holds_the_rate", [False, True])
def test_restores_variables_slots_random_state_step_and_data(
    tmp_path, monkeypatch, holds_the_rate
):
    model = make_model()
    if holds_the_rate:  # As checkpoints did.
        monkeypatch.setattr(engine, "LEARNING_RATE", "")
    checkpoints, optimizer, iterator = make_checkpoints(tmp_path, model)
    for variable in [*model.variables, *optimizer.variables]:
        variable.assign(variable + 1)
    next(iterator)
    checkpoints.save(7)
    checkpoints.wait()
    following = next(iterator)

    monkeypatch.undo()
    optimizer.learning_rate.assign(0.001)  # Keras' own, as the other's.
    other = make_model(seed=1)
    checkpoints, other_optimizer, iterator = make_checkpoints(tmp_path, other)
    assert checkpoints.restore() == 7
    assert any("seed_generator" in v.path for v in other.variables)
    for one, two in (
        (model.variables, other.variables),
        (optimizer.variables, other_optimizer.variables),
    ):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    for key, value in next(iterator).items():
        np.testing.assert_array_equal(value, following[key])


def test_step_0_is_where_a_run_starts(tmp_path):
    model = make_model()
    write_weights(str(tmp_path), model)
    other = make_model(seed=1)
    states = [v.numpy() for v in other.variables if "seed_generator" in v.path]
    checkpoints, _, _ = make_checkpoints(tmp_path, other)
    assert checkpoints.has_start and checkpoints.restore() == 0
    for a, b in zip(model.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    after = [v.numpy() for v in other.variables if "seed_generator" in v.path]
    np.testing.assert_array_equal(states, after)
    assert restore_model(str(tmp_path), make_model(seed=2)) == 0

    wide = make_model(width=4)
    checkpoints, _, _ = make_checkpoints(tmp_path, wide)
    with pytest.raises(ValueError, match="of another shape") as error:
        checkpoints.restore()
    # One variable of several, and nothing of the slots, which follow from them.
    assert len(str(error.value)) < 400 and str(error.value).count("\n") < 5
    assert "more" in str(error.value) and "optimizer variables" not in str(error.value)


def test_a_run_may_be_called_like_a_pattern(tmp_path):
    folder, model = tmp_path / "lr[1e-3]*", make_model()
    checkpoints, _, iterator = make_checkpoints(folder, model)
    next(iterator)
    checkpoints.save(7)
    checkpoints.wait()
    following = next(iterator)
    other = make_model(seed=1)
    checkpoints, _, iterator = make_checkpoints(folder, other)
    assert checkpoints.restore() == 7
    for key, value in next(iterator).items():
        np.testing.assert_array_equal(value, following[key])
    evaluated = make_model(seed=2)
    assert restore_model(str(folder), evaluated) == 7
    for a, b, c in zip(
        model.variables, other.variables, evaluated.variables, strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_array_equal(a.numpy(), c.numpy())


def test_nothing_to_restore_is_step_0(tmp_path):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    assert checkpoints.restore() == 0


def test_keeps_the_newest(tmp_path):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model(), keep=2)
    for step in (2, 4, 100):
        checkpoints.save(step)
        checkpoints.wait()
    assert available_steps(checkpoint_directory(tmp_path)) == [4, 100]


def test_keeps_some_for_good_and_the_best(tmp_path):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model(), keep=1, keep_period=10)
    checkpoints.best_step = 4
    for step in (2, 4, 10, 12, 14):
        checkpoints.save(step)
    checkpoints.wait()
    assert available_steps(checkpoint_directory(tmp_path)) == [4, 10, 14]


def save_steps(model_dir, steps):
    model = make_model()
    checkpoints, _, _ = make_checkpoints(model_dir, model)
    for step in steps:
        model.embedding.embeddings.assign(np.full((16, 8), step))
        checkpoints.save(step)
    checkpoints.wait()
    return checkpoint_directory(model_dir)


@pytest.fixture(scope="module")
def run_of_two_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save_steps(folder, (1, 2))
    return folder


@pytest.mark.parametrize(
    "damage", ["state.data", "state.index", "data-0-of-1.data", "data-0-of-1.index"]
)
@pytest.mark.parametrize("how", ["cut", "gone", "changed"])
def test_a_damaged_checkpoint_is_left_aside_for_the_one_before(
    run_of_two_steps, tmp_path, damage, how
):
    shutil.copytree(run_of_two_steps, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    (path,) = (folder / "2").glob(f"{damage}*")
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:9])
    else:
        middle = len(content) // 2
        flipped = bytes(b ^ 255 for b in content[middle : middle + 4])
        path.write_bytes(content[:middle] + flipped + content[middle + 4 :])
    model = make_model(seed=1)
    checkpoints, _, _ = make_checkpoints(tmp_path, model)
    if damage.startswith("state") and (how, damage) != ("changed", "state.data"):
        with pytest.raises(DamagedError, match="checkpoints/2 is damaged: "):
            restore_model(tmp_path, model)
    assert checkpoints.restore(clean=False) == 1
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2"]
    assert checkpoints.restore() == 1
    assert (model.embedding.embeddings.numpy() == 1).all()
    assert sorted(p.name for p in folder.iterdir()) == ["1", "damaged-2"]
    checkpoints.save(2)
    checkpoints.wait()
    assert available_steps(folder) == [1, 2]


def test_one_flipped_bit_of_any_file_is_found_before_it_is_parsed(
    run_of_two_steps, monkeypatch
):
    """TensorFlow's parser of positions ends the process at some of them."""
    parsed = []
    for name in ("RestoreV2", "MergeV2Checkpoints"):
        monkeypatch.setattr(tf.raw_ops, name, lambda **_: parsed.append(1))
    folder = run_of_two_steps / "checkpoints" / "2"
    random, names = np.random.default_rng(0), sorted(p.name for p in folder.iterdir())
    assert len(names) == 6 and "checksums.json" in names
    check_whole(folder)
    for name in names * 20:
        content = bytearray((folder / name).read_bytes())
        place, bit = random.integers(len(content)), 1 << random.integers(8)
        content[place] ^= int(bit)
        (folder / name).write_bytes(content)
        with pytest.raises(DamagedError, match="checkpoints/2 is damaged: "):
            check_whole(folder)
        content[place] ^= int(bit)
        (folder / name).write_bytes(content)
    assert not parsed


def test_a_checkpoint_without_checksums_is_read_as_before(run_of_two_steps, tmp_path):
    """Earlier versions wrote none; TensorFlow compares its own."""
    shutil.copytree(run_of_two_steps, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints" / "2"
    (folder / "checksums.json").unlink()
    check_whole(folder)
    path = folder / "state.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="Use another step"):
        check_whole(folder)


def test_when_all_are_damaged_nothing_starts_from_scratch(tmp_path):
    folder = pathlib.Path(save_steps(tmp_path, (1, 2)))
    for path in folder.glob("*/state.data*"):
        path.write_bytes(b"")
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    with pytest.raises(OSError, match=r"All .* are damaged: 1, 2\. .*--model_dir"):
        checkpoints.restore()
    (folder / "1").rename(folder / "damaged-1")
    shutil.rmtree(folder / "2")
    with pytest.raises(OSError, match=r"All .* are damaged: damaged-1\. "):
        checkpoints.restore()
    assert [path.name for path in folder.iterdir()] == ["damaged-1"]


@pytest.mark.parametrize("file", ["state.data-00000-of-00001", "state.index"])
def test_an_error_while_reading_is_no_damage(
    run_of_two_steps, tmp_path, monkeypatch, file
):
    shutil.copytree(run_of_two_steps, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    path = folder / "2" / file
    path.rename(tmp_path / file)
    path.symlink_to(file)  # Opening it fails (ELOOP), though it is there.
    pauses = []
    monkeypatch.setattr(damages.time, "sleep", pauses.append)
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    for read in (checkpoints.restore, lambda: restore_model(tmp_path, make_model())):
        with pytest.raises(OSError, match="checkpoints/2 cannot be read: ") as error:
            read()
        assert not isinstance(error.value, DamagedError) and len(pauses) == 3
        pauses.clear()
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2"]

    def mend(seconds):
        path.unlink()
        (tmp_path / file).rename(path)

    monkeypatch.setattr(damages.time, "sleep", mend)
    assert checkpoints.restore() == 2


def test_an_error_while_reading_the_position_is_no_other_data(
    run_of_two_steps, monkeypatch
):
    checkpoints, _, _ = make_checkpoints(run_of_two_steps, make_model())

    def fail(*args):
        raise tf.errors.UnknownError(None, None, "Stale file handle")

    monkeypatch.setattr(tf.train.Checkpoint, "read", fail)
    with pytest.raises(OSError, match="cannot be read: Stale file handle. Run the s"):
        checkpoints.restore()
    monkeypatch.setattr(tf.io.gfile, "listdir", fail)
    with pytest.raises(OSError, match="cannot be listed: Stale file handle. Run the s"):
        available_steps(checkpoint_directory(run_of_two_steps))


def test_a_file_that_the_position_needs_is_named(tmp_path):
    """An iterator of `tf.data.TFRecordDataset`, as TFDS has, holds its path."""
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(9):
            writer.write(b"a")

    def checkpoints():
        dataset = tf.data.TFRecordDataset(path).map(lambda x: {"x": x}).repeat()
        model, optimizer = make_model(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        iterator = iter(dataset)
        next(iterator)
        return toy.make_checkpoints(tmp_path / "run", model, optimizer, iterator)

    saving = checkpoints()
    saving.save(1)
    saving.wait()
    other = checkpoints()
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=f"position in {path}, which is not th"):
        other.restore()


def test_the_first_host_chooses_the_step(run_of_two_steps):
    """Of two hosts that see two checkpoints, the first could read that of step 1."""
    host = Host(1, 2, gather=lambda number: [1, number])
    checkpoints, _, _ = make_checkpoints(run_of_two_steps, make_model(), host=host)
    assert checkpoints.restore() == 1
    host = Host(1, 2, gather=lambda number: [-1, number])
    checkpoints, _, _ = make_checkpoints(run_of_two_steps, make_model(), host=host)
    with pytest.raises(OSError, match="Process 0 could not choose"):
        checkpoints.restore()


def test_an_error_of_one_host_ends_the_save_of_all(tmp_path, monkeypatch):
    folder = pathlib.Path(save_steps(tmp_path, (1,)))
    meeting, numbers = threading.Barrier(2, timeout=60), [0, 0]

    def save(index):
        def gather(number):
            numbers[index] = number
            meeting.wait()
            answer = list(numbers)
            meeting.wait()
            return answer

        shard = seqio.ShardInfo(index, 2)
        host = Host(index, 2, meeting.wait, shard, gather=gather)
        checkpoints, _, _ = make_checkpoints(tmp_path, make_model(), keep=1, host=host)
        if index:
            monkeypatch.setattr(checkpoints, "_data", NoRoom())
        with pytest.raises(OSError) as error:
            checkpoints.save(2)
        return str(error.value)

    class NoRoom:
        def write(self, path):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(save, range(2))
    assert "Process 1 could not write its part" in first
    assert "No space left. The checkpoint of step 1 is good" in second
    assert available_steps(folder) == [1]


def test_an_incomplete_checkpoint_replaces_none(tmp_path):
    """The other host's position is missing."""
    folder = save_steps(tmp_path, (1,))
    host = Host(0, 2, shard_info=seqio.ShardInfo(0, 2))
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model(), keep=1, host=host)
    checkpoints.save(2)
    with pytest.raises(OSError, match="lacks data-1-of-2.* step 1 is good"):
        checkpoints.wait()
    assert available_steps(folder) == [1]


def test_a_checkpoint_that_another_process_reads_is_removed_later(
    tmp_path, monkeypatch
):
    remove, held = tf.io.gfile.rmtree, []

    def fail(path):
        if "removing-1" not in path:
            return remove(path)
        held.append(path)
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(tf.io.gfile, "rmtree", fail)
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model(), keep=1)
    for step in (1, 2, 3):
        checkpoints.save(step)
    checkpoints.wait()
    folder = tmp_path / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["3", "removing-1"] and held
    monkeypatch.undo()
    assert make_checkpoints(tmp_path, make_model())[0].restore() == 3
    assert [p.name for p in folder.iterdir()] == ["3"]


def test_files_are_on_the_disk_before_they_replace_others(tmp_path, monkeypatch):
    sync, rename, events = os.fsync, tf.io.gfile.rename, []

    def note_sync(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def note_rename(old, new):
        events.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(tf.io.gfile, "rename", note_rename)
    folder = save_steps(tmp_path, (1,))
    at = events.index("rename")
    names = {path.name for path in pathlib.Path(folder, "1").iterdir()}
    assert {os.path.basename(path) for path in events[:at]} == names | {"writing-1"}
    assert events[at + 1 :] == [folder]


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    folder = pathlib.Path(save_steps(tmp_path, (1,)))
    (folder / "1").rename(folder / "writing-2")
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    assert checkpoints.restore() == 0
    assert not list(folder.iterdir())


def test_a_failed_save_names_the_last_good_one(tmp_path, monkeypatch):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    checkpoints.save(1)
    checkpoints.wait()

    def fail(*unused):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io.gfile, "rename", fail)
    with pytest.raises(OSError, match="No space left on device.* step 1 is good"):
        checkpoints.save(2)  # This raises, if writing fails soon enough.
        checkpoints.wait()
    monkeypatch.undo()
    assert make_checkpoints(tmp_path, make_model())[0].restore() == 1


def test_a_full_disk_leaves_the_last_checkpoint_good(tmp_path):
    model = make_model(width=4000)  # 0.5 MB, and its slots twice that
    checkpoints, _, _ = make_checkpoints(tmp_path, model)
    checkpoints.save(1)
    checkpoints.wait()
    # A file over the limit fails as a write to a full disk does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(OSError, match="could not be written.* step 1 is good"):
            checkpoints.save(2)  # This raises, if writing fails soon enough.
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(checkpoints.directory) == ["1"]  # Else the disk stays full.
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model(width=4000))
    assert checkpoints.restore() == 1


def test_the_variables_may_change_while_they_are_written(tmp_path, monkeypatch):
    model = make_model()
    checkpoints, _, _ = make_checkpoints(tmp_path, model)
    model.embedding.embeddings.assign(np.full((16, 8), 3.0))
    started, changed = threading.Event(), threading.Event()
    write = tf.train.Checkpoint.write

    def slow_write(self, path):
        if path.endswith("state"):
            started.set()
            changed.wait(60)
        return write(self, path)

    monkeypatch.setattr(tf.train.Checkpoint, "write", slow_write)
    checkpoints.save(1)
    assert started.wait(60)  # `save` has returned, and nothing is written yet
    model.embedding.embeddings.assign(np.full((16, 8), 4.0))
    changed.set()
    checkpoints.wait()
    assert restore_model(tmp_path, model) == 1
    assert (model.embedding.embeddings.numpy() == 3).all()


def test_restore_model_takes_the_step_asked_for(tmp_path):
    model = make_model()
    checkpoints, _, _ = make_checkpoints(tmp_path, model)
    checkpoints.save(1)
    checkpoints.wait()
    first = model.embedding.embeddings.numpy()
    model.embedding.embeddings.assign(first + 1)
    checkpoints.save(2)
    checkpoints.wait()

    other = make_model(seed=1)
    assert restore_model(tmp_path, other) == 2
    np.testing.assert_array_equal(other.embedding.embeddings.numpy(), first + 1)
    assert restore_model(tmp_path, other, step=1) == 1
    np.testing.assert_array_equal(other.embedding.embeddings.numpy(), first)
    with pytest.raises(FileNotFoundError, match="step 3 .* steps 1, 2"):
        restore_model(tmp_path, other, step=3)


def test_restore_model_without_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        restore_model(tmp_path, make_model())


def test_another_architecture_is_refused_with_names_and_shapes(tmp_path):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    checkpoints.save(1)
    checkpoints.wait()

    class Larger(toy.ToyModel):
        def build(self, input_shape=None):
            super().build(input_shape)
            self.scale = self.add_weight(shape=(3,), name="scale")

    other = Larger(width=4)  # and no dropout: its random state is gone
    other.build()
    for restore in (
        lambda: restore_model(tmp_path, other),
        lambda: make_checkpoints(tmp_path, other)[0].restore(),
    ):
        with pytest.raises(ValueError) as error:
            restore()
        message = str(error.value)
        assert "toy/embedding/embeddings (checkpoint (16, 8), here (16, 4))" in message
        assert "only in the checkpoint: toy/dropout/seed_generator" in message
        assert "missing from the checkpoint: toy/scale (3,)" in message


def test_another_optimizer_is_refused(tmp_path):
    checkpoints, _, _ = make_checkpoints(tmp_path, make_model())
    checkpoints.save(1)
    checkpoints.wait()
    checkpoints, _, _ = make_checkpoints(
        tmp_path, make_model(), optimizer=keras.optimizers.SGD()
    )
    with pytest.raises(ValueError, match="optimizer variables only in the checkpoint"):
        checkpoints.restore()


def test_variables_made_late_are_not_lost_silently(tmp_path):
    class Lazy(toy.ToyModel):
        def __init__(self):
            super().__init__()
            self.late = keras.layers.Dense(1, name="late")  # build() forgets it

    model = Lazy()
    model.build()
    checkpoints, _, _ = make_checkpoints(tmp_path, model)
    model.late.build((None, 2))
    with pytest.raises(ValueError, match="late/kernel"):
        checkpoints.save(1)


def test_paths_are_unique():
    class Twins(keras.Model):
        def build(self, input_shape=None):
            self.one = keras.layers.Dense(2, name="twin")
            self.two = keras.layers.Dense(2, name="twin")
            self.one.build((None, 2))
            self.two.build((None, 2))

    model = Twins()
    model.build()
    with pytest.raises(ValueError, match="twin/kernel"):
        named_variables(model.variables)


def test_names_survive_the_way_tensorflow_writes_them(tmp_path):
    class Odd(keras.Model):
        def build(self, input_shape=None):
            self.child = keras.layers.Dense(2, name="a.b_1..S")
            self.child.build((None, 2))

    for _ in range(2):
        model = Odd(name="odd")
        model.build()
        checkpoints, _, _ = make_checkpoints(tmp_path, model)
        step = checkpoints.restore()
        checkpoints.save(step + 1)
        checkpoints.wait()
    assert available_steps(checkpoint_directory(tmp_path)) == [1, 2]
