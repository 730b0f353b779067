"""Checkpoints: {path: variable}, with their coverage checked both ways.

`tf.train.Checkpoint(model=model)` leaves out layers held in Python lists and the
states of random generators without a word, so every variable is listed here by its
path, and the list is compared with the model and with the file.
"""

import os
import re

import tensorflow as tf

_NAME = "checkpoint"
_SHOWN = 10


class Checkpoints:
    """Saves and restores everything that a run needs to continue exactly.

    Files: `<model_dir>/checkpoints/checkpoint-<step>.{index,data-*}`, holding all
    model variables (random states too), all optimizer variables, the step and the
    position of the data iterator.

    Args:
      model_dir: folder of the run.
      model: a built `keras.Model`.
      optimizer: a built `keras.optimizers.Optimizer`.
      iterator: a `tf.data` iterator.
      keep: how many of the newest checkpoints stay.
    """

    def __init__(self, model_dir, model, optimizer, iterator, *, keep=3):
        self._model = model
        self._optimizer = optimizer
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._shapes = tf.Variable(_describe(iterator.element_spec), trainable=False)
        self._groups = self._collect()
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(
                step=self._step,
                iterator=iterator,
                data_shapes=self._shapes,
                **self._groups,
            ),
            checkpoint_directory(model_dir),
            max_to_keep=keep,
            checkpoint_name=_NAME,
        )

    def save(self, step):
        """Writes the checkpoint of `step` and returns its path.

        Raises:
          ValueError: the model or optimizer has made variables since, which the
            checkpoint would miss.
        """
        for group, now in self._collect().items():
            late = sorted(now.keys() ^ self._groups[group].keys())
            if late:
                raise ValueError(
                    f"The {group}'s variables are not those it had when training "
                    f"started. Changed: {_shorten(late)}. Make every variable in "
                    "build()."
                )
        self._step.assign(step)
        return self._manager.save(checkpoint_number=step)

    def restore(self):
        """Restores the newest checkpoint, if there is one, and returns its step.

        Returns:
          int, 0 if the folder holds no checkpoint.

        Raises:
          ValueError: the checkpoint holds other variables than this run, or the
            position in data of other shapes.
        """
        steps = available_steps(self._manager.directory)
        if not steps:
            return 0
        path = checkpoint_path(self._manager.directory, steps[-1])
        _check_coverage(path, self._groups)
        _check_data(path, self._shapes.numpy().decode())
        self._manager.checkpoint.restore(path).assert_consumed()
        return int(self._step)

    def _collect(self):
        """Returns {group: {path: tf.Variable}} as they are now."""
        slots = variables_by_path(self._optimizer.variables)
        # The first part is the optimizer's name, which counts up in a process.
        slots = {path.partition("/")[2]: slot for path, slot in slots.items()}
        return {"model": variables_by_path(self._model.variables), "optimizer": slots}


def restore_model(model_dir, model, step=None):
    """Restores only the model's variables, as evaluation needs them.

    Args:
      model_dir: folder of the run.
      model: a built `keras.Model`.
      step: int, the step wanted; None for the newest.

    Returns:
      int, the step restored.

    Raises:
      FileNotFoundError: there is no checkpoint, or none of that step.
      ValueError: the checkpoint holds other variables than the model.
    """
    directory = checkpoint_directory(model_dir)
    steps = available_steps(directory)
    if not steps:
        raise FileNotFoundError(
            f"There is no checkpoint in {directory}. Train first, or set --model_dir "
            "to the folder of a run."
        )
    if step is not None and step not in steps:
        raise FileNotFoundError(
            f"There is no checkpoint of step {step} in {directory}. It holds those of "
            f"steps {', '.join(map(str, steps))}."
        )
    path = checkpoint_path(directory, steps[-1] if step is None else step)
    groups = {"model": variables_by_path(model.variables)}
    _check_coverage(path, groups)
    tf.train.Checkpoint(**groups).restore(path).expect_partial()
    return steps[-1] if step is None else step


def checkpoint_directory(model_dir):
    """Returns the folder of a run's checkpoints."""
    return os.path.join(model_dir, "checkpoints")


def checkpoint_path(directory, step):
    """Returns the path, without suffix, of one checkpoint."""
    return os.path.join(directory, f"{_NAME}-{step}")


def available_steps(directory):
    """Returns the sorted steps of the complete checkpoints in `directory`."""
    names = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    matches = (re.fullmatch(rf"{_NAME}-(\d+)\.index", name) for name in names)
    return sorted(int(match.group(1)) for match in matches if match)


def variables_by_path(variables):
    """Returns {path: tf.Variable}.

    Raises:
      ValueError: two variables share a path, so that one would be lost.
    """
    by_path = {}
    for variable in variables:
        if variable.path in by_path:
            raise ValueError(
                f"Two variables have the path {variable.path!r}. A checkpoint needs "
                "one path for each: give the layers that hold them different names."
            )
        by_path[variable.path] = variable.value
    return by_path


def _check_coverage(path, groups):
    """Raises unless the file at `path` and `groups` hold the same names and shapes."""
    saved_shapes = _saved_shapes(path)
    problems = []
    for group, variables in groups.items():
        saved = saved_shapes.get(group, {})
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
                problems.append(f"  {group} variables {label}: {_shorten(names)}")
    if problems:
        raise ValueError(
            f"The checkpoint {path} was written by another model or optimizer:\n"
            + "\n".join(problems)
            + "\nUse the configuration it was trained with, or another --model_dir."
        )


def _check_data(path, shapes):
    """Raises if the file at `path` has the position in data of other shapes."""
    reader = tf.train.load_checkpoint(path)
    saved = reader.get_tensor("data_shapes/.ATTRIBUTES/VARIABLE_VALUE").decode()
    if saved != shapes:
        raise ValueError(
            f"The checkpoint {path} holds a position in other data.\n"
            f"  saved: {saved}\n  here: {shapes}\n"
            "Continue with the batch size, lengths and steps_per_call it was trained "
            "with, or use another --model_dir."
        )


def _describe(element_spec):
    """Returns the names and shapes of the data's elements."""
    return ", ".join(f"{k} {list(v.shape)}" for k, v in sorted(element_spec.items()))


def _saved_shapes(path):
    """Returns {group: {variable path: shape}} of a checkpoint file."""
    shapes = {}
    reader = tf.train.load_checkpoint(path)
    for key, shape in reader.get_variable_to_shape_map().items():
        group, *rest = key.split("/")
        if len(rest) == 3 and rest[1:] == [".ATTRIBUTES", "VARIABLE_VALUE"]:
            # Names are written with "/" as ".S" and "." as "..".
            name = re.sub(r"\.(S|\.)", lambda m: "/" if m[1] == "S" else ".", rest[0])
            shapes.setdefault(group, {})[name] = tuple(shape)
    return shapes


def _shorten(names):
    """Joins names, at most the first few."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f", and {rest} more" if rest > 0 else "")
