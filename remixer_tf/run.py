"""A run: a model, its task and its engine. gin sets one `Run` for all commands."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from remixer_tf.arguments import TheRun
from remixer_tf.checkpoints import reading
from remixer_tf.checkpoints.export_folder import check_no_export
from remixer_tf.checkpoints.paths import Located
from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import converter_for
from remixer_tf.data.lengths import check_feature_lengths
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.errors import UserError, check_integers
from remixer_tf.models.adapters import Lora, adapt, has_lora
from remixer_tf.models.build import build_model, check_memory
from remixer_tf.weights import model_folder
from remixer_tf.weights.source import (
    check_model,
    merged_arrays,
    model_variables,
    take,
)


class Weights:
    """The weights of a run in memory: calling it gives the `Engine` and the step.

    Args:
        restore: a function without arguments, which returns them. It is called once,
            when they are first asked for.
    """

    def __init__(self, restore):
        self._restore, self._restored = restore, None
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            if self._restored is None:
                self._restored = self._restore()
        return self._restored


@dataclasses.dataclass(frozen=True)
class Run(TheRun):
    """The settings that training, evaluation, answering and analysis share.

    Attributes:
        model: a factory. `model()` returns a `keras.Model`, and `model().build()` makes
            all its variables.
        task: registered name, `seqio.Task` or `seqio.Mixture`. None for image models.
        feature_lengths: dictionary of ints, the tokens of each feature in training.
            None for image models.
        vocabulary: `seqio.Vocabulary` to use in place of the task's; None for none.
        cache_dir: folder of `python -m remixer_tf cache`, which training and evaluation
            read in place of the tasks' sources; None for none.
        without: names of tasks to leave out of a mixture.
        dtype_policy: "float32", "mixed_bfloat16" or "mixed_float16". Variables stay
            float32.
        engine: a factory of an `Engine`, which runs the model.
        seed: int, for initial weights, dropout and the order of data in training.
        adapters: a `Lora`, which adds adapters to the model and freezes the rest; None
            for none.
        trainable, frozen: str, regular expressions of paths of variables that train and
            that do not, see `remixer_tf.models.adapters.adapt`; None for none.
        weights: `Weights` that `restore` gives in place of a checkpoint; None for none.

    Raises:
        ValueError: the seed is not an integer of at least 0, a length no integer of at
            least 1, or the adapters are no `Lora`.
    """

    not_in_gin = ("weights",)

    model: Callable
    task: Any = None
    feature_lengths: dict | None = None
    vocabulary: Any = None
    cache_dir: Located | None = None
    without: Sequence = ()
    dtype_policy: str = "float32"
    engine: Callable = backend_engine
    seed: int = 0
    adapters: Lora | None = None
    trainable: str | None = None
    frozen: str | None = None
    weights: Weights | None = None

    def __post_init__(self):
        check_integers(0, seed=self.seed)
        if self.feature_lengths is not None:
            check_feature_lengths(self.feature_lengths)
        if not isinstance(self.adapters, Lora | None):
            raise UserError(
                "adapters must be a Lora (in gin: @Lora(), with its brackets) or None. "
                f"Received: adapters={self.adapters!r}"
            )

    def make_model(self):
        """Makes and builds the model, with the run's adapters and frozen variables.

        Raises:
            ValueError: these do not fit the model, see `adapt`.
        """
        model = self.model()
        if {self.adapters, self.trainable, self.frozen} != {None}:
            if not model.built:
                model.build()
            adapt(model, self.adapters, self.trainable, self.frozen)
        return model

    def get_task(self, cached=False):
        """Returns the `seqio.Task` or `seqio.Mixture`, with the run's vocabulary.

        If `cached`, it reads the run's cache, if the run has one.

        Raises:
            ValueError: the run has no task, or an unknown one, or the cache has another
                vocabulary.
            FileNotFoundError: there is no cache in the folder.
        """
        if self.task is None:
            raise UserError("the run has no task of text. Set Run.task (TASK in gin).")
        cache_dir = self.cache_dir if cached else None
        return get_task(self.task, self.vocabulary, cache_dir, self.without)

    def codec(self, model):
        """Returns the `Codec` of the run's task for a built model of the run."""
        return Codec(self.get_task(), self.feature_lengths, converter_for(model))

    def restore(self, model_dir=None, step=None, check=None, merge=True):
        """Builds the model in one process and restores a checkpoint.

        A run that has `weights` gives these, as they are, whatever is asked for.

        Args:
            model_dir: folder of the run.
            step: int; None for the newest checkpoint, "best" for the best one.
            check: a function of the built model that raises if the model does not fit;
                None for none.
            merge: bool, whether adapters are added to their kernels, see `merged`.

        Returns:
            the `Engine` that has the model, and the checkpoint's step, an int; 0 of a
            folder that `export --format=safetensors` wrote.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            ValueError: another model or vocabulary wrote the checkpoint, the task is
                unknown, or the engine has several processes.
        """
        if self.weights is not None:
            engine, step = self.weights()
            if check:
                check(engine.model)
            return engine, step
        check_run_version(model_dir)
        check_no_export(model_dir)
        if self.task is not None:
            check_vocabularies(model_dir, describe_vocabularies(self.get_task()))
        engine = self.engine()
        if engine.host.count > 1:
            raise UserError(
                "One process reads and writes texts. Its engine is of "
                f"{engine.host.count}: choose the devices of one."
            )
        source = None
        if model_folder.is_model_folder(model_dir):
            if step is not None:
                raise UserError(f"{model_dir} has one step. Leave step out.")
            source = model_folder.read_model_folder(model_dir)
            check_model(self.model, source)
        # The weights of a folder to publish include their adapters.
        parts = self.model if source else self.make_model, self.dtype_policy
        check_memory(lambda: build_model(*parts), engine.memory_limit())
        engine.build_model(*parts)
        if check:
            check(engine.model)
        if source:
            take(engine.model, source)
            return engine, 0
        step = reading.restore_model(model_dir, engine.model, step)
        return (self.merged(engine) if merge else engine), step

    def merged(self, engine):
        """Returns an `Engine` with the adapters of `engine` added to their kernels.

        `engine` has the run's model, and is returned itself if that has no adapters.
        """
        return self.copied(engine) if has_lora(engine.model) else engine

    def copied(self, engine):
        """Returns a new `Engine` with the run's model and the weights of `engine`.

        Adapters are added to their kernels.
        """
        arrays = merged_arrays(engine.model)
        engine = self.engine()
        engine.build_model(self.model, self.dtype_policy)
        for path, variable in model_variables(engine.model).items():
            variable.assign(arrays[path])
        return engine

    def in_float32(self):
        """Returns the run with float32 computation; itself, if it has that."""
        if self.dtype_policy == "float32":
            return self
        run = dataclasses.replace(self, dtype_policy="float32")
        return run if run.weights is None else run._with_weights(run.copied)

    def without_adapters(self):
        """Returns a run that has `weights`, with adapters added to their kernels.

        Later changes of the weights are not in it.
        """
        return self._with_weights(self.merged)

    def _with_weights(self, change):
        """Returns the run whose weights are those of another `Engine`, as now."""
        engine, step = self.weights()
        engine = change(engine)
        return dataclasses.replace(self, weights=Weights(lambda: (engine, step)))
