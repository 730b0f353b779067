"""Weights to start from, out of another run's checkpoint."""

import os
import re

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints import reading
from remixer_tf.checkpoints.name_table import name_table
from remixer_tf.checkpoints.paths import locate
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.layers.checks import check_paths


class InitialCheckpoint:
    """Sets weights from a checkpoint, and reports what was taken.

    All variables count but the states of random generators. One is taken from the
    variable of its own path, after the rules; where no such variable exists, or its
    shape differs, it stays as it was initialised.

    Args:
        path: folder of a run, whose newest checkpoint is meant, or of one checkpoint
            (`.../checkpoints/1000`).
        rules: list of (pattern, replacement): a variable's path here, of which the
            regular expression `pattern` matches a part, has that part replaced to give
            the path in the checkpoint. The first rule that matches counts. A
            replacement of None leaves the variable fresh.
        fresh: list of (pattern, value), for variables that are not taken: one whose
            path `pattern` matches a part of is set to `value`, a number, or a function
            of the shape such as `identity_mixing`.

    Raises:
        FileNotFoundError: there is no checkpoint.
    """

    def __init__(self, path, rules=(), fresh=()):
        check_paths(path=path)
        path = locate(path)
        directory = reading.checkpoint_directory(path)
        steps = reading.available_steps(directory)
        if steps:
            path = reading.checkpoint_path(directory, steps[-1])
        self._path = path
        if not tf.io.gfile.exists(os.path.join(path, "state.index")):
            raise MissingFileError(
                f"There is no checkpoint in {path}. Name the folder of a run, or of "
                "one of its checkpoints, such as RUN/checkpoints/1000."
            )
        self._rules = [(re.compile(pattern), name) for pattern, name in rules]
        self._values = [(re.compile(pattern), value) for pattern, value in fresh]

    def __call__(self, model):
        """Sets the model's weights.

        Args:
            model: a built `keras.Model`.

        Returns:
            str, which variables were taken, fresh, and left over in the checkpoint.

        Raises:
            ValueError: no variable could be taken.
        """
        saved = reading.saved_shapes(self._path)["model"]
        # Those too that are not trained, such as the table of `HashRouter`.
        variables = {
            path: variable
            for path, variable in reading.named_variables(model.variables).items()
            if not reading.is_random_state(path)
        }
        # A model of another name has the same layers.
        prefix = os.path.commonpath(
            [name for name in saved if not reading.is_random_state(name)]
        ).partition("/")[0]
        taken, fresh, origins = {}, [], {}
        for path, variable in variables.items():
            name = self._name(f"{prefix}/{path.partition('/')[2]}")
            if name not in saved:
                fresh.append(path)
            elif saved[name] != tuple(variable.shape):
                fresh.append(
                    f"{path} (checkpoint {saved[name]}, here {tuple(variable.shape)})"
                )
            else:
                taken[path] = name
        if not taken:
            raise UserError(
                f"No variable of {self._path} fits this model. It holds "
                f"{reading.shorten(sorted(saved))}; the model has "
                f"{reading.shorten(sorted(variables))}. Map names with "
                "InitialCheckpoint.rules."
            )
        pairs = [(name, variables[path]) for path, name in taken.items()]
        reading.assign(self._path, "model", pairs)
        for path, variable in variables.items():
            origins[path] = taken.get(path) or self._set_fresh(path, variable)
        left = [
            name
            for name in sorted(saved.keys() - set(taken.values()))
            if not reading.is_random_state(name)
        ]
        return "\n".join(
            [
                f"initial checkpoint {self._path}:",
                f"  {len(taken)} variables taken",
                f"  {len(fresh)} fresh: {reading.shorten(fresh)}",
                f"  {len(left)} skipped: {reading.shorten(left)}",
                name_table({path: o for path, o in origins.items() if path != o}),
            ]
        ).rstrip()

    def _set_fresh(self, path, variable):
        """Sets a variable that the checkpoint lacks; returns to what."""
        for pattern, value in self._values:
            if pattern.search(path):
                if callable(value):
                    variable.assign(value(tuple(variable.shape)))
                    return getattr(value, "__name__", str(value))
                variable.assign(np.full(variable.shape, value))
                return str(value)
        return "fresh"

    def _name(self, path):
        """Returns the path in the checkpoint, or None."""
        for pattern, name in self._rules:
            if pattern.search(path):
                return None if name is None else pattern.sub(name, path)
        return path


def identity_mixing(shape, gain=12.0):
    """A mixing matrix H of which each token sees itself: softmax(H) is nearly 1.

    With alpha near 0 a Remixer block then computes what T5.1.1's feed-forward layer of
    the same matrices does: X_S = X', so that X_C = 0 and Y = X' W_3, where the residual
    X' is added before W_3 (the equations of "Remixers", section 2.1, add it after).

    Args:
        shape: of `LengthMixing`'s weights, `[heads, n, n]` or `[heads, 2n - 1]`.
        gain: float, on the diagonal; zeros elsewhere. A token's weight for itself is
            e^gain / (e^gain + n - 1).

    Returns:
        float32, of that shape.
    """
    columns = shape[-1]
    matrix = np.zeros(shape, "float32")
    if len(shape) == 2:
        matrix[:, columns // 2] = gain
    else:
        matrix[:] = gain * np.eye(columns)
    return matrix
