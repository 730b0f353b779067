"""Reads checkpoints. `remixer_tf.checkpoints.writing` describes their files."""

import contextlib
import hashlib
import os
import re
import tempfile

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints import checksums, sharded
from remixer_tf.checkpoints.damage import DamagedError, first_line, retried
from remixer_tf.checkpoints.versions import age_note
from remixer_tf.checkpoints.whole_folder import read_json
from remixer_tf.errors import MissingFileError, StorageError, UserError, shorten
from remixer_tf.models.adapters import is_frozen, of_adapter

BASE = "base/.ATTRIBUTES/VARIABLE_VALUE"  # the hash of the checkpoint of step 0
LEARNING_RATE = "learning_rate"  # an optimizer's variable, in older checkpoints too

_SMALL = 1 << 16  # bytes


def restore_model(model_dir, model, step=None):
    """Restores the model's variables only, for evaluation.

    Weights are their averages if the optimizer of training had `use_ema` and has
    updated them.

    Args:
        model_dir: folder of the run.
        model: a built `keras.Model`.
        step: int; None for the newest checkpoint, "best" for the step in best.json.

    Returns:
        int, the step.

    Raises:
        FileNotFoundError: there is no such checkpoint, or no best.json.
        OSError: the checkpoint cannot be read. `DamagedError` if a file is damaged.
        ValueError: the checkpoint has other variables than the model, or best.json is
            damaged.
    """
    step = choose_step(model_dir, step)
    folder = checkpoint_path(checkpoint_directory(model_dir), step)
    groups = model_groups(model)
    check_complete(folder)
    if sharded.is_sharded(folder):
        check_whole(folder)  # TensorFlow compares checksums whenever it reads.
    restore_variables(folder, groups)
    slots = saved_shapes(folder).get("optimizer", {})
    # Keras names a slot after its variable.
    weights = model.trainable_variables
    averages = {f"{w.path.replace('/', '_')}_average": w for w in weights}
    if averages.keys() <= slots.keys():
        updates = keras.Variable(0, dtype="int32", trainable=False)
        assign(folder, "optimizer", [("iteration", updates)])
        if keras.ops.convert_to_numpy(updates):  # else the averages are zeros
            assign(folder, "optimizer", averages.items())
    return step


def choose_step(model_dir, step=None):
    """Returns the step that `restore_model` reads. Raises as it does."""
    directory = checkpoint_directory(model_dir)
    steps = available_steps(directory)
    if not steps:
        raise MissingFileError(
            f"There is no checkpoint in {directory}. Train first, or set --model_dir "
            "to the folder of a run."
        )
    if step == "best":
        if not (best := best_steps(model_dir)):
            raise MissingFileError(
                f"There is no {os.path.join(model_dir, 'best.json')}: training writes "
                "it where Checkpointing.best = @Best(). Name a step."
            )
        step = best[-1]
    if step is not None and step not in steps:
        raise MissingFileError(
            f"There is no checkpoint of step {step} in {directory}. It holds those of "
            f"steps {shorten([*map(str, steps)])}."
        )
    return steps[-1] if step is None else step


def checkpoint_directory(model_dir):
    """Returns the folder of a run's checkpoints."""
    return os.path.join(model_dir, "checkpoints")


def checkpoint_path(directory, step):
    """Returns the folder of one checkpoint."""
    return os.path.join(directory, str(step))


def available_steps(directory):
    """Returns the sorted steps in a folder; raises OSError if it cannot be listed."""
    try:
        names = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    except tf.errors.OpError as error:
        raise StorageError(
            f"{directory} cannot be listed: {first_line(error)}. Run the same command "
            "again when it can be."
        ) from error
    names = (name.rstrip("/") for name in names)  # Object stores list "5/".
    return sorted(int(name) for name in names if name.isdecimal())


def restore_variables(folder, groups, random_states=True):
    """Sets {group: {path: `keras.Variable`}}; see `check_coverage` and `base_of`.

    A loss scale stays as it is if the checkpoint, of another precision, has none.
    """
    model, frozen = groups["model"], groups.get("frozen", {})
    base = base_of(folder) if frozen else None
    if base:
        assign(base, "model", frozen.items())
    else:
        model = model | frozen
    if frozen and os.path.basename(folder) == "0":
        model = {path: v for path, v in model.items() if not of_adapter(path)}
    groups = {name: x for name, x in groups.items() if name != "frozen"}
    groups["model"] = model
    if "loss_scale" in groups and "loss_scale" not in saved_shapes(folder):
        del groups["loss_scale"]
    check_coverage(folder, groups, random_states)
    for group, variables in groups.items():
        assign(folder, group, variables.items())


def base_of(folder):
    """Returns the checkpoint of step 0 that has a checkpoint's frozen variables.

    None if the checkpoint in `folder` is whole. Raises a FileNotFoundError if that of
    step 0 is missing, and a ValueError if it has changed since.
    """
    written = _base_hash(folder)
    if written is None:
        return None
    base = os.path.join(os.path.dirname(folder), "0")
    needs = f"The checkpoint {folder} holds what was trained. Its frozen weights are in"
    if not tf.io.gfile.exists(os.path.join(base, "state.index")):
        raise MissingFileError(f"{needs} {base}, which is missing. Copy it there.")
    if hash_checkpoint(base) != written:
        raise UserError(
            f"{needs} {base}, which has changed since. Copy there the checkpoint of "
            "step 0 that the run started from."
        )
    return base


@retried
def _base_hash(folder):
    """Returns the hash of a checkpoint's base, or None."""
    with plain_path(folder) as place:
        reader = tf.train.load_checkpoint(os.path.join(place, "state"))
        if not reader.has_tensor(BASE):
            return None
        return reader.get_tensor(BASE).decode()


@retried
def assign(folder, group, pairs):
    """Sets variables of a group from a checkpoint that TensorFlow or orbax wrote.

    `pairs` are (path in the checkpoint, `keras.Variable`). Raises as `retried`.
    """
    if sharded.is_sharded(folder):
        sharded.assign(folder, group, pairs)
        return
    with plain_path(folder) as place:
        reader = tf.train.load_checkpoint(os.path.join(place, "state"))
        for name, variable in pairs:
            value = reader.get_tensor(tensor_name(group, name))
            # Only JAX's arrays have one.
            sharding = getattr(variable.value, "sharding", None)
            if sharding is not None:
                value = sharded.spread(value, sharding, variable.dtype)
            variable.assign(value)


@contextlib.contextmanager
def plain_path(folder):
    """Yields the folder, or a link to it if TensorFlow would read it as a pattern.

    TensorFlow finds no file in a folder called lr[1e-3].
    """
    if "://" in str(folder) or not {*str(folder)} & {*"*?[\\"}:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        link = os.path.join(place, "checkpoint")
        os.symlink(os.path.abspath(folder), link)
        yield link


def named_variables(variables):
    """Returns {path: `keras.Variable`}; raises a ValueError if two share a path."""
    by_path = {}
    for variable in variables:
        if variable.path in by_path:
            raise UserError(
                f"Two variables have the path {variable.path!r}. A checkpoint needs "
                "one path for each: give the layers that hold them different names."
            )
        by_path[variable.path] = variable
    return by_path


def model_groups(model):
    """Returns {"model" or "frozen": {path: `keras.Variable`}} of a built model."""
    groups = {"model": {}, "frozen": {}}
    for path, variable in named_variables(model.variables).items():
        groups["frozen" if is_frozen(variable) else "model"][path] = variable
    return groups


def saved_value(variable, to_numpy=keras.ops.convert_to_numpy):
    """Returns the value of a `keras.Variable` for a checkpoint. All hosts call it.

    On TensorFlow it is a `tf.Variable`. On JAX it is a copy, since the next step may
    take the memory. Its integers are int64, as on TensorFlow; a backend casts them when
    it reads.
    """
    if keras.backend.backend() == "tensorflow":
        return variable.value
    value = np.array(to_numpy(variable))
    return value.astype("int64") if np.issubdtype(value.dtype, np.integer) else value


@retried
def check_whole(folder):
    """Compares the checksums of every file of a checkpoint. Raises as `retried`.

    Before 2026-11-26 only orbax's arrays had some of ours. TensorFlow compares its own
    when it reads, but may end the process before.
    """
    check_complete(folder)
    try:
        written = checksums.written_checksums(folder)
        changed = checksums.changed_files(folder, written)
    except UserError:
        changed = [checksums.NAME]
    if changed:
        raise DamagedError(
            f"The checkpoint {folder} is damaged: missing or changed since it was "
            f"written: {shorten(changed)}. Use another step, or a good copy of it."
        )
    if "state.index" not in written:
        _read_tensors(folder)


def _read_tensors(folder):
    """Reads all that TensorFlow wrote to a checkpoint, which compares its checksums."""
    with plain_path(folder) as place:
        for name in tf.io.gfile.listdir(place):
            if name.endswith(".index"):
                prefix = os.path.join(place, name.removesuffix(".index"))
                types = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
                for tensor, dtype in types.items():
                    tf.raw_ops.RestoreV2(
                        prefix=prefix,
                        tensor_names=[tensor],
                        shape_and_slices=[""],
                        dtypes=[dtype],
                    )


@retried
def check_complete(folder):
    """Raises DamagedError if a file of the checkpoint is missing. See `retried`."""
    there = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    parts = num_parts(there)
    prefixes = ["state", *(f"data-{index}-of-{parts}" for index in range(parts))]
    wanted = {f"{prefix}.index" for prefix in prefixes}
    for prefix in prefixes:
        shards = [name for name in there if name.startswith(f"{prefix}.data-")]
        count = int(shards[0][-5:]) if shards else 1
        wanted |= {f"{prefix}.data-{i:05}-of-{count:05}" for i in range(count)}
    if "arrays" in there:
        wanted.add(checksums.NAME)
    if missing := sorted(wanted.difference(there)):
        raise DamagedError(
            f"The checkpoint {folder} is damaged: it lacks {shorten(missing)}. Use "
            "another step, or a good copy of it."
        )


def num_parts(names):
    """Returns the number of parts in names such as 'data-0-of-2.index'."""
    parts = (re.match(r"data-\d+-of-(\d+)\.", name) for name in names)
    return next((int(match[1]) for match in parts if match), 0)


def tensor_name(group, name):
    """Returns the key in a checkpoint file of {group: {variable path: variable}}."""
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"{group}/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


@retried
def saved_shapes(folder):
    """Returns {group: {variable path: shape}} of a checkpoint. Raises as `retried`."""
    if sharded.is_sharded(folder):
        return sharded.saved_shapes(folder)
    shapes = {}
    with plain_path(folder) as place:
        reader = tf.train.load_checkpoint(os.path.join(place, "state"))
    for key, shape in reader.get_variable_to_shape_map().items():
        group, *rest = key.split("/")
        if len(rest) == 3 and rest[1:] == [".ATTRIBUTES", "VARIABLE_VALUE"]:
            # Names are written with "/" as ".S" and "." as "..".
            name = re.sub(r"\.(S|\.)", lambda m: "/" if m[1] == "S" else ".", rest[0])
            shapes.setdefault(group, {})[name] = tuple(shape)
    return shapes


def is_random_state(name):
    """Whether a path names the state of a random generator."""
    return "seed_generator" in name


def check_coverage(folder, groups, random_states=True):
    """Raises unless the checkpoint and {group: {path: variable}} have the same shapes.

    An optimizer's learning rate does not count: the configuration sets it. States of
    random generators count if `random_states` is true.
    """
    shapes = saved_shapes(folder)
    problems = []
    for group, variables in groups.items():
        saved = {
            name: shape
            for name, shape in shapes.get(group, {}).items()
            if (random_states or not is_random_state(name))
            and (group, name) != ("optimizer", LEARNING_RATE)
        }
        wanted = {name: tuple(value.shape) for name, value in variables.items()}
        missing = [f"{n} {wanted[n]}" for n in sorted(wanted.keys() - saved.keys())]
        extra = [f"{n} {saved[n]}" for n in sorted(saved.keys() - wanted.keys())]
        other = [
            f"{name} (checkpoint {saved[name]}, here {wanted[name]})"
            for name in sorted(wanted.keys() & saved.keys())
            if wanted[name] != saved[name]
        ]
        for label, names in (
            ("of another shape", other),
            ("only in the checkpoint", extra),
            ("missing from the checkpoint", missing),
        ):
            if names:
                more = f", and {len(names) - 1} more" * (len(names) > 1)
                problems.append(f"{group} variables {label}: {names[0]}{more}")
        if problems:  # The optimizer's problems follow from the model's.
            break
    if problems:
        model_dir = os.path.dirname(os.path.dirname(folder))
        raise UserError(
            f"The checkpoint {folder} was written by another model or optimizer ("
            f"{'; '.join(problems)}). Use the configuration it was trained "
            f"with, or another --model_dir.{age_note(model_dir)}"
        )


def hash_checkpoint(folder):
    """Returns a hash, a str of 16 digits, that differs between checkpoints.

    It hashes names and sizes of all files, and the contents of small files and indices.
    The indices of TensorFlow and orbax have checksums of the arrays.
    """
    digest = hashlib.sha256()
    for directory, _, names in sorted(tf.io.gfile.walk(folder)):
        for name in sorted(names):
            path = os.path.join(directory, name)
            size = tf.io.gfile.stat(path).length
            digest.update(f"{os.path.relpath(path, folder)} {size} ".encode())
            if size <= _SMALL or name.endswith((".index", ".json")):
                with tf.io.gfile.GFile(path, "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()[:16]


def best_steps(model_dir):
    """Returns the steps that <model_dir>/best.json names, a list of int, the best last.

    The others, of earlier configurations, keep their checkpoints. The list is empty
    without the file, which training writes. Raises a UserError if it is damaged.
    """
    path = os.path.join(model_dir, "best.json")
    if not tf.io.gfile.exists(path):
        return []
    best = read_json(path)
    if isinstance(best, dict) and isinstance(best.get("earlier_steps", []), list):
        *earlier, step = *best.get("earlier_steps", []), best.get("step")
        if all(type(step) is int for step in (*earlier, step)):
            return [*dict.fromkeys(x for x in earlier if x != step), step]
    raise UserError(
        f"{path} is damaged. It names the best step, and steps whose checkpoints stay. "
        "Restore it, or remove it: training then keeps the best step of its "
        "configuration alone. To read another step, name it, as --step=1000."
    )
