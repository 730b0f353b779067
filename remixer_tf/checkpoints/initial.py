"""Starts a run with weights from another run's checkpoint."""

import os
import re

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints import reading
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.errors import MissingFileError, UserError, check_paths, shorten
from remixer_tf.models.adapters import of_adapter


class InitialCheckpoint:
    """Sets weights from a checkpoint, and reports what was taken.

    Each variable takes the value that the checkpoint has under its path. If there is no
    such value, or its shape differs, the variable stays as initialised. So do the
    states of random generators.

    Args:
        path: folder of a run, for its newest checkpoint, or of one checkpoint
            (`.../checkpoints/1000`).
        rules: list of (pattern, replacement). The first regular expression `pattern`
            that matches a part of a variable's path replaces it, which gives the path
            in the checkpoint. A replacement of None leaves the variable fresh.
        fresh: list of (pattern, value) for variables that the checkpoint lacks. The
            first `pattern` that matches a part of a path sets the variable to `value`,
            a number or a function of the shape such as `identity_mixing`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: a newer version wrote the run.
    """

    def __init__(self, path: Located, rules=(), fresh=()):
        check_paths(path=path)
        path = locate(path).rstrip("/")
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
        check_run_version(os.path.dirname(os.path.dirname(path)))
        self._rules = [(re.compile(pattern), name) for pattern, name in rules]
        self._values = [(re.compile(pattern), value) for pattern, value in fresh]

    def __call__(self, model):
        """Sets the weights of a built `keras.Model`.

        Returns a str: the variables that were taken, fresh, and left over in the
        checkpoint. Raises a ValueError if none could be taken, or not all adapters.
        """
        saved = reading.saved_shapes(self._path)["model"]
        base = reading.base_of(self._path)
        frozen = reading.saved_shapes(base)["model"] if base else {}
        frozen = {k: shape for k, shape in frozen.items() if k not in saved}
        saved |= frozen
        # Also those that are not trained, such as the table of `HashRouter`.
        variables = {
            path: variable
            for path, variable in reading.named_variables(model.variables).items()
            if not reading.is_random_state(path)
        }
        # A model of another name may have the same layers.
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
                f"{shorten(sorted(saved))}; the model has "
                f"{shorten(sorted(variables))}. Map names with "
                "InitialCheckpoint.rules."
            )
        left = sorted(saved.keys() - set(taken.values()))
        left = [name for name in left if not reading.is_random_state(name)]
        self._check_adapters(left)
        pairs = [(name, variables[path]) for path, name in taken.items()]
        own = [pair for pair in pairs if pair[0] not in frozen]
        reading.assign(self._path, "model", own)
        if base:
            of_base = [pair for pair in pairs if pair[0] in frozen]
            reading.assign(base, "model", of_base)
        for path, variable in variables.items():
            origins[path] = taken.get(path) or self._set_fresh(path, variable)
        return "\n".join(
            [
                f"initial checkpoint {self._path}:",
                f"  {len(taken)} variables taken",
                f"  {len(fresh)} fresh: {shorten(fresh)}",
                f"  {len(left)} skipped: {shorten(left)}",
                name_table({path: o for path, o in origins.items() if path != o}),
            ]
        ).rstrip()

    def _check_adapters(self, left):
        """Raises ValueError if adapters are among the names that nothing takes."""
        if adapters := [*filter(of_adapter, left)]:
            raise UserError(
                f"{self._path} has adapters that this run lacks: "
                f"{shorten(adapters)}. Add them with the same Run.adapters and "
                "rank. Or export that run with --format=safetensors, which adds them "
                "to their kernels, and import that with `remixer_tf import_weights`."
            )

    def _set_fresh(self, path, variable):
        """Sets a variable that the checkpoint lacks, and returns the value's name."""
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


def name_table(names):
    """Returns lines `variable  <-  origin  (count)` of {variable: origin}.

    Names that differ in the first number, the layer's, share a line.
    """
    groups = {}
    for name, origin in names.items():
        key = tuple(
            re.sub(r"(?<=[_./])\d+(?=[_./])", "*", x, count=1) for x in (name, origin)
        )
        groups[key] = groups.get(key, 0) + 1
    width = max((len(name) for name, _ in groups), default=0)
    return "\n".join(
        f"  {name:{width}}  <-  {origin}" + (f"  ({count})" if count > 1 else "")
        for (name, origin), count in groups.items()
    )


def identity_mixing(shape, gain=12.0):
    """A mixing matrix H with which each token sees itself: softmax(H) is nearly 1.

    A Remixer block with alpha near 0 and `residual="hidden"` then computes T5.1.1's
    feed-forward layer: X_S = X', so X_C = 0 and Y = (X_C + X') W_3 = X' W_3. In
    "Remixers", section 2.1, the residual X' comes after W_3.

    Args:
        shape: the shape of `LengthMixing`'s weights, `[heads, n, n]` or
            `[heads, 2n - 1]`.
        gain: float, on the diagonal; other elements are 0. A token's weight for itself
            is e^gain / (e^gain + n - 1).

    Returns:
        float32 array of this shape.
    """
    columns = shape[-1]
    matrix = np.zeros(shape, "float32")
    if len(shape) == 2:
        matrix[:, columns // 2] = gain
    else:
        matrix[:] = gain * np.eye(columns)
    return matrix
