"""A run with its weights, to ask from Python."""

import dataclasses
import functools
import os
import types
import warnings
from typing import Any

import keras
import numpy as np

from remixer_tf.analysis.drawing import ImagePictures, Pictures
from remixer_tf.configuration import configuration_of_run
from remixer_tf.errors import UserError, check_flags, check_paths
from remixer_tf.evaluation.results import metrics_at, with_unit
from remixer_tf.exporting import check_export, export_run
from remixer_tf.loaded.encoders import EncoderMethods
from remixer_tf.loaded.fitting import TableMethods
from remixer_tf.loaded.text import TextMethods
from remixer_tf.models.keras_model import html_table
from remixer_tf.run import Run, Weights
from remixer_tf.tasks.folders import data_folders
from remixer_tf.weights.adapters import load_adapters
from remixer_tf.weights.source import check_model, take

Path = str | os.PathLike


def _restore(run, model_dir, step, source, adapters):
    """Returns the `Engine` with a run's weights, and their step.

    Args:
        run: the `Run`.
        model_dir, step: the checkpoint, see `Run.restore`.
        source: the `Source` of published weights in its place; None for a checkpoint.
        adapters: folder of adapters to load onto the weights; None for none.
    """
    if source is None:
        engine, step = run.restore(model_dir, step, merge=False)
    else:
        check_model(run.model, source)
        engine, step = run.engine(), 0
        engine.build_model(run.model, run.dtype_policy)
        take(engine.model, source)
    if adapters is not None:
        load_adapters(engine.model, adapters)
    return engine, step


class LoadedRun(TextMethods, EncoderMethods, TableMethods):
    """A run with its weights, from `remixer_tf.load`.

    A method that takes texts takes one str and returns one answer, or a list of str
    and returns a list of answers in its order. Answers are those of `remixer_tf infer`
    and `score`, and of an export.

    Attributes:
        run: the `Run`: task, lengths, precision, engine.
        configuration: its `Configuration`.
        model_dir: str, folder of the run; None for published weights, in memory.
        modules, trust: see `load`; `fit` hands them on.
        drawn_seed: int, the seed of the last answers that `generate` or `stream` drew
            without one; None before. Given as `seed` it draws them again.
    """

    drawn_seed = None

    def __init__(
        self, configuration, model_dir=None, step=None, source=None, **allowed
    ):
        self.configuration, self.model_dir = configuration, model_dir
        self.modules = allowed.get("modules", ())
        self.trust = allowed.get("trust", False)
        run = configuration.call(Run)
        given = run, model_dir, step, source, allowed.get("adapters")
        self._restored = Weights(functools.partial(_restore, *given))
        self.run = dataclasses.replace(run, weights=self._restored)
        self._origin = model_dir or f"{source.format}, in memory"
        self._kept, self._traced_for = {}, None  # See `kept`.
        self._searches = 0  # that were made

    @classmethod
    def of_folder(cls, model_dir, step=None, bindings=(), **allowed):
        """Loads a run's folder, on devices of this process; see `load`."""
        options = types.SimpleNamespace(
            model_dir=model_dir,
            gin_file=[],
            gin_bindings=[*bindings],
            gin_search_paths=[],
            module_import=list(allowed.get("modules", ())),
            trust=allowed.get("trust", False),
        )
        configuration = configuration_of_run(options, devices="asked")
        if called := configuration.of_called_parts():
            warnings.warn(
                f"{model_dir} sets {', '.join(called)}. Commands give it to a function "
                "that is called without a @reference, through gin's own configuration. "
                "Here such a function has what this process gave gin: "
                "gin.bind_parameter.",
                stacklevel=4,
            )
        return cls(configuration, model_dir, step, **allowed)

    @property
    def model(self) -> keras.Model:
        """The built and restored `keras.Model`."""
        return self._restored()[0].model

    @property
    def step(self) -> int:
        """The step of the checkpoint, an int; 0 for published weights."""
        return self._restored()[1]

    @functools.cached_property
    def task(self):
        """The `seqio.Task` or `seqio.Mixture`; None for a model of images."""
        if self.run.task is None:
            return None
        return self.run.get_task()

    def _rows(self):
        rows = {
            "run": self._origin,
            "model": f"{self.model.name}, {self.model.count_params():,} parameters",
            "step": self.step,
            "precision": self.run.dtype_policy,
        }
        if self.task is not None:
            lengths = self.run.feature_lengths.items()
            rows["task"] = self.task.name
            rows["lengths"] = ", ".join(f"{name} {n}" for name, n in lengths)
        found = metrics_at(self.model_dir, self.step) if self.model_dir else {}
        numbers = {k: v for k, v in found.items() if not isinstance(v, str)}
        if numbers:
            rows["metrics"] = ", ".join(
                f"{with_unit(name, value)} {value:.4g}"
                for name, value in numbers.items()
            )
        return rows

    def __reduce_ex__(self, protocol):
        raise UserError(
            "A loaded run holds graphs and devices: it can be neither pickled nor "
            "copied. Call remixer_tf.load in each process, or again for a second one."
        )

    def __repr__(self):
        rows = self._rows().items()
        return "\n".join(f"{name:>9}  {value}" for name, value in rows)

    def _repr_html_(self):
        """The same as a table, for notebooks."""
        return html_table(self._rows())

    def export(
        self,
        folder: Path,
        format: str = "saved_model",
        *,
        weights: str = "float32",
        **options: Any,
    ) -> str:
        """Exports the model with its tokenizer, as `remixer_tf export` does.

        Args:
            folder: str, of the export. It appears when it is whole.
            format, weights, **options: see `remixer_tf.exporting.export_run`.

        Returns:
            str, the folder.

        Raises:
            FileExistsError: the folder is there.
            ImportError: an extra is not installed.
            OSError: the folder cannot be written.
            ValueError: the format cannot hold the model, or an option does not fit.

        Examples:
            >>> run.export("EXPORT", weights="bfloat16")
            'EXPORT'
            >>> loaded = tf.saved_model.load("EXPORT").signatures["serving_default"]
            >>> answer = loaded(inputs=tf.constant(["the cat slept"]))["outputs"]
        """
        check_export(format, weights, **options)
        check_paths(folder=folder)
        if "warm_up" in options:
            check_flags(warm_up=options["warm_up"])
        folder = os.path.expanduser(os.fspath(folder))
        run = self.run if format == "adapters" else self.run.without_adapters()
        self._restored()  # Before `apart`: the text has the defaults of the model.
        export_run(
            self.configuration.apart(),
            run,
            self.model_dir,
            folder,
            step=self.step,
            format=format,
            weights=weights,
            **options,
        )
        return folder

    def pictures(self) -> dict[str, Any]:
        """Draws mixing matrices, mean attention and alpha, on examples of the task.

        Returns:
            dictionary from a name to a matplotlib figure.

        Raises:
            FileNotFoundError: the task's files are missing.
            ValueError: no layer of the model mixes, attends or has an alpha.

        Examples:
            >>> figures = run.pictures()
            >>> len(figures) > 0
            True
        """
        kind = ImagePictures if self.task is None else Pictures
        engine, step = self._restored()
        configuration = self.configuration.apart()
        with data_folders(configuration.data_folders()):
            return configuration.call(kind, period=1).draw(engine.model, step)

    def mixing(self) -> dict[str, np.ndarray]:
        """The mixing matrices that do not depend on the input.

        Returns:
            dictionary from a layer's path to float32 `[heads, target, source]`, as its
            layer multiplies with it.

        Raises:
            ValueError: no layer of the model has any.

        Examples:
            >>> [matrix.shape for matrix in lm.mixing().values()]
            [(1, 64, 64)]
        """
        from remixer_tf.analysis.observe import observe

        lengths = self.run.feature_lengths
        spec = self.model.batch_spec(1, lengths) if lengths else {}
        batch = {name: np.ones(x.shape, x.dtype) for name, x in spec.items()}
        if not lengths:
            size = self.model.image_size
            batch["images"] = np.zeros([1, size, size, 3], np.float32)
        found = observe(self.model, batch)
        matrices = {o.layer.path: o.value for o in found if o.name == "mixing"}
        if not matrices:
            raise UserError(f"{self.model.name} has no static mixing to show.")
        return matrices
