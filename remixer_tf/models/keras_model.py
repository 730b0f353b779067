"""`fit`, `save` and `get_config` of models, by Keras' own means."""

import functools
import html
import inspect

import keras
from keras import ops

from remixer_tf.errors import UserError, quoted_errors
from remixer_tf.layers.saving import SavesParts
from remixer_tf.models import streams
from remixer_tf.models.adapters import Lora, adapt
from remixer_tf.objectives.batches import (
    check_known_ids,
    check_known_targets,
    first_scorable,
    targets_and_weights,
    weights_of_targets,
)
from remixer_tf.objectives.losses import CrossEntropy, check_targets


def _reads_batches(method):
    """Keras' `fit`, `evaluate` or `train_on_batch`, of a batch alone too.

    Keras itself leaves out `sample_weight` where there are no targets. A mistake is an
    error before Keras makes its iterators.
    """
    signature = inspect.signature(method)
    step = "test_step" if method is keras.Model.evaluate else "train_step"

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if kwargs.get("_use_cached_eval_dataset"):  # by `fit`, which has checked it
            return method(self, *args, **kwargs)
        ours = {"compute_loss": KerasModel, step: keras.Model}
        ours = all(getattr(type(self), k) is getattr(v, k) for k, v in ours.items())
        if ours:
            self._check_loss()
        of_ids = ours and self.compiled and _reads_ids(self.loss)
        given = signature.bind(self, *args, **kwargs)
        values = given.arguments
        names = "x", "y", "sample_weight"
        data = [values.get(name) for name in names]
        if values.get("class_weight") == {}:  # It weighs nothing.
            values["class_weight"] = None
        if values.get("class_weight") is not None:
            self._check_class_weight(*streams.first_batch(*data)[:2])
        values.update(zip(names, self._checked(*data, of_ids), strict=True))
        if (validation := values.get("validation_data")) is not None:
            data = keras.utils.unpack_x_y_sample_weight(validation)
            values["validation_data"] = self._checked(*data, of_ids)
        try:
            with quoted_errors():
                return method(*given.args, **given.kwargs)
        except Exception:
            # Keras' `evaluate` on JAX would lose the weights that its steps returned.
            getattr(self, "jax_state_sync", lambda: None)()
            raise

    return call


class KerasModel(SavesParts, keras.Model):
    """A model that `fit` trains, on its own batches or on (batch, targets, weights).

    A batch alone has targets and weights under seqio's names. Those of a classifier may
    be `[batch]`, or each class' share, `[batch, classes]`. The loss is what `compile`
    got, which sees them so; without one it is `CrossEntropy()`, T5's. Models that give
    vectors (`EmbeddingHead`) need one. A weight for each row, `[batch]` or
    `[batch, 1]`, counts for all targets in it; next to a batch alone, it multiplies the
    batch's own weights. Losses that layers sow, such as those that balance experts, are
    added, each with the weight 1. Metrics in `compile`'s `weighted_metrics` see the
    weights.

    Examples:
        model = remixer_tf.create("t5_1_1_tiny")
        model.compile(remixer_tf.Adafactor(1e-3), weighted_metrics=["accuracy"])
        model.fit(batches)
    """

    gives_logits = True
    token_inputs = ()  # the names of the token ids that `call` reads
    target_name = "labels"  # what a batch calls the targets

    fit = _reads_batches(keras.Model.fit)
    evaluate = _reads_batches(keras.Model.evaluate)
    train_on_batch = _reads_batches(keras.Model.train_on_batch)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        y, y_pred, sample_weight = self._scored(x, y, y_pred, sample_weight)
        if self._compile_loss is not None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        self._check_loss()
        return sum(self.losses, CrossEntropy()(y, y_pred, sample_weight))

    def _check_loss(self):
        if self.compiled and self._compile_loss is None and not self.gives_logits:
            raise UserError(
                f"Model '{self.name}' gives vectors and no logits, so it has no loss "
                "of its own. Name one: model.compile(optimizer, loss=...)."
            )

    def _check_class_weight(self, x, y):
        batch_alone = y is None and isinstance(x, dict)
        of_rows = getattr(self, "num_classes", None) or not self.gives_logits
        if batch_alone or not of_rows:
            raise UserError(
                "class_weight weighs rows by their class: model.fit(batch, labels, "
                "class_weight=...), of a classifier. The targets of a batch alone, or "
                "of tokens, have weights in the batch, such as decoder_loss_weights."
            )

    def _checked(self, x, y, rows, of_ids):
        """Keras' data, with a batch's own targets where only its rows have weights.

        The ids that the model reads are checked, and if the loss reads ids, targets;
        those of a stream batch by batch, see `streams.checked`.
        """
        if of_ids:
            self._check_kind(_own_targets(*streams.first_batch(x, y, rows))[0])
        stream = streams.checked(x, functools.partial(self._checked, of_ids=of_ids))
        if stream is not x:
            return stream, y, rows
        check_known_ids(x, self, *self.token_inputs)
        if y is None and rows is not None and isinstance(x, dict):
            y, weights = targets_and_weights(x)
            rows = _weigh_rows(weights, rows)
        if of_ids:
            check_known_targets(*_own_targets(x, y, rows), self)
        return x, y, rows

    def _check_kind(self, targets):
        """Raises `CrossEntropy`'s errors of targets, if their shape is known.

        In a graph TensorFlow may have lost their rank, see `_of_positions`.
        """
        ours = self.loss is None or isinstance(self.loss, CrossEntropy)
        classes = getattr(self, "num_classes", None)
        shape = getattr(targets, "shape", None)
        dtype = getattr(targets, "dtype", None)
        if not ours or not self.gives_logits or dtype is None or shape is None:
            return
        if getattr(shape, "rank", 0) is None:
            return
        if classes and _lack_one(shape, classes):
            shape = shape[0], 1, *shape[1:]
        logits = (None, 1, classes) if classes else (None, None, None)
        check_targets(logits, tuple(shape), getattr(dtype, "name", dtype))

    def _get_jax_state(self, **options):
        """Keras' values of variables on JAX, which stay in the variables too.

        Keras takes them out, so an error in the first step would lose them. A step
        donates their memory.
        """
        return super()._get_jax_state(**{**options, "purge_model_variables": False})

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, y_pred, sample_weight = self._scored(x, y, y_pred, sample_weight)
        if self._compile_metrics is not None:
            _check_accuracy(self._compile_metrics.metrics, y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _scored(self, batch, targets, logits, weights):
        """Targets, logits and weights of the positions that count.

        Targets are the batch's unless they are given, and its weights count with them.
        Positions before `first_scorable` are cut off: losses and metrics, weighted or
        not, see none.
        """
        if targets is None:
            targets, own = targets_and_weights(batch)
            weights = own if weights is None else _weigh_rows(own, weights)
        targets = _of_positions(targets, logits)
        if weights is not None and len(logits.shape) > 2:
            weights = weights_of_targets(weights, ops.shape(logits)[:2])
        if not getattr(self, "first_scorable", 0):
            return targets, logits, weights
        first = first_scorable(self, logits.shape[1])
        weights = None if weights is None else weights[:, first:]
        return targets[:, first:], logits[:, first:], weights

    def enable_lora(
        self,
        rank: int,
        alpha: float | None = None,
        layers: str | None = None,
        dropout_rate: float = 0.0,
        trainable: str | None = None,
    ) -> None:
        """Adds low-rank adapters, and freezes all other parameters.

        It is Keras' `enable_lora` of each of the layers. `save` adds A B to W: a loaded
        model answers alike, without adapters and not frozen. Its optimizer begins anew,
        as Keras warns. Call `compile` afterwards.

        Args:
            rank: int, at most the least axis of the kernels.
            alpha, layers, dropout_rate: see `Lora`.
            trainable: str, a regular expression of variables that train too, such as
                "^head/", see `adapt`; None for none.

        Raises:
            ValueError: a value is out of its range, an expression finds nothing, the
                model is not built or has adapters already.

        Examples:
            >>> model = rt.create("remixer_tiny", vocab_size=64, max_length=16)
            >>> model.enable_lora(4)
            >>> sorted({v.name for v in model.trainable_variables})
            ['lora_kernel_a', 'lora_kernel_b']
            >>> model.compile(rt.Adafactor(1e-3))  # Then fit.
        """
        adapt(self, Lora(rank, alpha, layers, dropout_rate), trainable)

    def freeze(self, frozen: str | None = None, trainable: str | None = None) -> None:
        """Freezes parameters. Call `compile` afterwards.

        Args:
            frozen, trainable: str, see `adapt`.

        Raises:
            ValueError: an expression finds nothing, or the model is not built.

        Examples:
            >>> model = rt.create("t5_1_1_tiny", vocab_size=64)
            >>> model.freeze("^encoder/|embedding")
            >>> any("/encoder/" in v.path for v in model.trainable_variables)
            False
        """
        adapt(self, None, trainable, frozen)

    def _repr_html_(self):
        """A table for notebooks."""
        rows = {"model": self.name, "class": type(self).__name__}
        if self.built:
            rows["parameters"] = f"{self.count_params():,}"
        return html_table({**rows, "precision": self.dtype_policy.name})

    def get_build_config(self):
        return {"built": self.built}

    def build_from_config(self, config):
        self.build()


def _own_targets(x, y, rows):
    """Targets and weights: those given, or those of a batch alone."""
    return targets_and_weights(x) if y is None and isinstance(x, dict) else (y, rows)


def _reads_ids(loss):
    """Whether a loss, as `compile` got it, reads all integers as classes."""
    sparse = keras.losses.SparseCategoricalCrossentropy
    if isinstance(loss, sparse):
        return loss.ignore_class is None
    named = loss == "sparse_categorical_crossentropy"
    return loss is None or named or isinstance(loss, CrossEntropy)


def _of_positions(targets, logits):
    """A classifier's targets `[batch]` or `[batch, classes]`, for its one position."""
    if not hasattr(targets, "ndim") or logits.shape[1:-1] != (1,):
        return targets
    classes = logits.shape[-1]
    # TensorFlow loses the rank of targets that had another one at an earlier call.
    if getattr(targets.shape, "rank", 0) is None:
        one = (-1, 1) if "int" in str(targets.dtype) else (-1, 1, classes)
        return ops.reshape(targets, one)
    return ops.expand_dims(targets, 1) if _lack_one(targets.shape, classes) else targets


def _lack_one(shape, classes):
    """Whether targets of this shape lack the axis of a classifier's one position."""
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == classes > 1)


def _check_accuracy(metrics, targets, logits):
    """Refuses a metric of ids for shares of classes, and one of shares for ids.

    Keras chooses what "accuracy" is by the first targets that it sees.
    """
    rank = getattr(targets, "ndim", None)
    if rank is None or logits.shape[-1] == 1:
        return
    of_ids = keras.metrics.SparseCategoricalAccuracy, "ids of classes"
    of_shares = keras.metrics.CategoricalAccuracy, "each class' share"
    soft = rank == len(logits.shape) and targets.shape[-1] != 1
    (wrong, reads), (_, received) = (of_ids, of_shares)[:: 1 if soft else -1]
    for metric in metrics:
        if isinstance(metric, wrong):
            raise UserError(
                f"The metric '{metric.name}' reads {reads}, and targets are {received} "
                f"{tuple(targets.shape)}. Give targets of one kind to "
                "training and validation, or call compile again."
            )


def _weigh_rows(weights, rows):
    return ops.multiply(weights, weights_of_targets(rows, ops.shape(weights)))


def html_table(rows):
    """Returns {name: value} as a table in HTML, for notebooks."""
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
