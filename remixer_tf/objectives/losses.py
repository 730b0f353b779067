"""The training loss: weighted cross entropy with z-loss and label smoothing."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
from keras import ops

from remixer_tf.errors import UserError, check_integers, check_numbers, check_range
from remixer_tf.layers.base import MASKED
from remixer_tf.objectives.batches import targets_and_weights, weights_of_targets
from remixer_tf.objectives.hidden import Hidden


@keras.saving.register_keras_serializable("remixer_tf")
class CrossEntropy(keras.losses.Loss):
    """T5's loss: cross entropy and z-loss, of each position that has a target.

    The trainer calls `sums`. Keras calls the loss as any other: `call` computes a
    number for each position, and Keras takes their mean, weighted by `sample_weight`.
    Both compute in float32. `fit` of our models takes this loss,
    without z-loss and smoothing, if `compile` names none.

    Args:
        z_loss: float >= 0, coefficient of log(Z)^2; T5 trains with 1e-4.
        label_smoothing: float in [0, 1), mass taken from the target class.
        tokens_at_once: int, the target tokens whose logits the trainer computes at
            once, to save memory, see `cross_entropy_in_parts`. None: all. Keras' own
            `fit` cannot.

    Raises:
        ValueError: an argument is outside its range, or Keras calls the loss with
            `tokens_at_once`.

    Examples:
        >>> loss = rt.CrossEntropy()
        >>> float(loss(np.array([[1, 0]]), np.zeros([1, 2, 4])))  # log(4)
        1.3862943649291992
    """

    def __init__(
        self,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
        tokens_at_once: int | None = None,
    ):
        super().__init__(
            name="cross_entropy", reduction="mean_with_sample_weight", dtype="float32"
        )
        if tokens_at_once is not None:
            check_integers(tokens_at_once=tokens_at_once)
        _check_coefficients(z_loss, label_smoothing)
        self._options = {"z_loss": z_loss, "label_smoothing": label_smoothing}
        self.tokens_at_once = tokens_at_once

    def sums(self, outputs: Any, batch: Any) -> dict[str, Any]:
        """The sums over a batch that the trainer minimises and logs.

        Args:
            outputs: float `[batch, targets, classes]`, logits; or a `Hidden`.
            batch: dictionary, whose targets and weights `targets_and_weights` finds.

        Returns:
            the sums of `cross_entropy`, and "objective", the one to minimise.
        """
        targets, weights = targets_and_weights(batch)
        if isinstance(outputs, Hidden):
            return cross_entropy_in_parts(
                outputs, targets, weights, self.tokens_at_once, **self._options
            )
        sums = cross_entropy(outputs, targets, weights, **self._options)
        return {**sums, "objective": sums["loss"] + sums["z_loss"]}

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Keras' call: the mean of `call`, weighted.

        Args:
            y_true: int `[batch, targets]` or `[batch, targets, 1]`; or each class'
                share, float `[batch, targets, classes]`. An id of no class makes the
                loss NaN, unless its weight is 0.
            y_pred: float `[batch, targets, classes]`, logits.
            sample_weight: `[batch, targets]`, None for ones. One for each row,
                `[batch]` or `[batch, 1]`, or for all, a scalar, counts for all targets
                in it.

        Returns:
            float32 scalar.

        Raises:
            ValueError: shapes do not fit, or the targets' dtype.
        """
        if isinstance(y_pred, dict):
            raise UserError(
                "CrossEntropy() reads targets and logits, as Keras gives them. With "
                "outputs and a batch call CrossEntropy().sums(outputs, batch)."
            )
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if y_true.shape[-1:] == (1,) and _fit(y_true.shape[:-1], y_pred.shape[:-1]):
            y_true = ops.squeeze(y_true, axis=-1)
        weights = []
        if sample_weight is not None:
            sample_weight = weights_of_targets(sample_weight, ops.shape(y_pred)[:-1])
            weights = [sample_weight]
        _check_shapes(y_pred, y_true, *weights)
        _check_dtype(y_pred, y_true)
        if weights and len(y_true.shape) < len(y_pred.shape):
            ignored = ops.equal(sample_weight, 0)
            y_true = ops.where(ignored, ops.zeros_like(y_true), y_true)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        """The loss of each position, for Keras.

        Args:
            y_true: targets `[batch, targets]`, or each class' share
                `[batch, targets, classes]`, see `cross_entropy`.
            y_pred: float `[batch, targets, classes]`, logits.

        Returns:
            float32 `[batch, targets]`, cross entropy and z-loss.
        """
        if self.tokens_at_once is not None:
            raise UserError(
                "Keras' fit computes all logits at once. Set "
                "CrossEntropy.tokens_at_once = None, or train with remixer_tf train."
            )
        soft = len(y_true.shape) == len(y_pred.shape)
        if not soft:
            classes = y_pred.shape[-1]
            known = ops.logical_and(y_true >= 0, y_true < classes)
            y_true = ops.where(known, y_true, ops.zeros_like(y_true))
        if soft or any(self._options.values()):
            losses, log_z, _ = _each_position(
                y_pred, y_true, self._options["label_smoothing"]
            )
            losses = losses + self._options["z_loss"] * ops.square(log_z)
        else:  # Without XLA, TensorFlow's own takes half the time.
            losses = ops.sparse_categorical_crossentropy(
                y_true, y_pred, from_logits=True
            )
        # No engine can raise an error on each device.
        return losses if soft else ops.where(known, losses, float("nan"))

    def get_config(self):
        return {**self._options, "tokens_at_once": self.tokens_at_once}


def cross_entropy(logits, targets, weights, *, z_loss=0.0, label_smoothing=0.0):
    r"""Returns the sums over a batch that the training loss and the metrics need.

    Per position, with eps = label_smoothing, Z = sum_v exp(l_v) and u_v = 1 / V on the
    V classes whose logits are not masked (as `SpanHead` masks padding), else 0:

        cross entropy = -sum_v q_v log(exp(l_v) / Z)
        q_v           = eps u_v + (1 - eps) p_v
        z-loss        = z_loss * log(Z)^2

    p is 1 at the target and 0 elsewhere, or the targets' share of each class, as of
    mixup. As in Mesh TensorFlow's `transformer.py`, smoothing includes the target, and
    the entropy of q is not subtracted. T5X spreads eps / (V - 1) over the other classes
    and subtracts the entropy. Its gradients are the same when its eps is ours times
    (V - 1) / V; its values are not.

    Everything is computed in float32, whatever the dtype of the logits. Divide the sums
    by the sum of weights of the whole batch (all replicas and micro-batches). T5's
    Mesh TensorFlow divides by all target positions, padding included, and T5X by the
    weights or by a constant.

    Args:
        logits: float [batch, length, vocab_size] (any leading axes), finite.
        targets: int [batch, length], each in [0, vocab_size), also where the weight is
            0. An engine may raise an error for another id, or take it for the likeliest
            class; in NumPy arrays, and in the trainer's first batch, one is a
            ValueError. Or p, float [batch, length, vocab_size], each summing to 1.
        weights: int, bool or float [batch, length]; 0 on positions that do not count.
        z_loss: float >= 0; T5 trains with 1e-4 and evaluates with 0.
        label_smoothing: float in [0, 1).

    Returns:
        A dictionary of float32 scalars, sums over all positions:
            "loss": weighted cross entropy, without z-loss.
            "z_loss": weighted z-loss.
            "correct": weighted count of positions whose largest logit is the target's.
                The first of equal logits counts as the largest, as in argmax. With
                float targets, the class of the largest p is the target.
            "weight": sum of the weights.

    Shapes or dtypes that do not fit are a ValueError, and coefficients out of range.
    """
    _check(logits, targets, weights, z_loss, label_smoothing)
    check_classes(targets, weights, logits.shape[-1])
    logits = ops.cast(logits, "float32")
    weights = ops.cast(weights, "float32")
    losses, log_z, targets = _each_position(logits, targets, label_smoothing)
    correct = is_argmax(ops.stop_gradient(logits), targets)
    return {
        "loss": ops.sum(weights * losses),
        "z_loss": z_loss * ops.sum(weights * ops.square(log_z)),
        "correct": ops.sum(weights * ops.cast(correct, "float32")),
        "weight": ops.sum(weights),
    }


def _each_position(logits, targets, label_smoothing):
    """Cross entropies, log(Z) and int32 classes, from float32 logits.

    Shapes: see `cross_entropy`; the results are `[batch, length]`.
    """
    # log(Z) by the largest logit; its own part of the gradient is zero.
    largest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    shifted = logits - largest
    log_total = ops.log(ops.sum(ops.exp(shifted), axis=-1))
    if len(targets.shape) == len(logits.shape):
        at_target = ops.sum(ops.cast(targets, "float32") * shifted, axis=-1)
        targets = ops.cast(ops.argmax(targets, axis=-1), "int32")
    else:
        targets = ops.cast(targets, "int32")
        is_target = ops.equal(ops.arange(logits.shape[-1]), targets[..., None])
        at_target = ops.sum(ops.where(is_target, shifted, 0.0), axis=-1)
    if label_smoothing:
        real = ops.cast(logits > 0.5 * MASKED, "float32")
        # A row of padding alone has no class, and no weight.
        uniform = real / ops.maximum(ops.sum(real, axis=-1, keepdims=True), 1.0)
        mean = ops.sum(ops.stop_gradient(uniform) * shifted, axis=-1)
        at_target = (1.0 - label_smoothing) * at_target + label_smoothing * mean
    return log_total - at_target, log_total + largest[..., 0], targets


def cross_entropy_in_parts(
    hidden, targets, weights, tokens_at_once, *, z_loss=0.0, label_smoothing=0.0
):
    r"""Returns the sums of `cross_entropy`, a few logits at a time, to save memory.

    Each turn of a loop takes some positions of all rows. It computes their logits, the
    loss and the gradient, and drops the logits: the backward pass computes nothing
    again. With l = x W + b and the symbols of `cross_entropy`, per position

        d objective / d l = weight (softmax(l) (1 + 2 z_loss log Z) - q)

    Args:
        hidden: a `Hidden`.
        targets: int `[batch, targets]`; shapes are static.
        weights: int, bool or float `[batch, targets]`.
        tokens_at_once: int, the targets whose logits exist at the same time, at most.
            Below the number of rows, a turn takes one position of each row.
        z_loss, label_smoothing: see `cross_entropy`.

    Returns:
        what `cross_entropy` returns, and "objective", the sum of "loss" and "z_loss".
        Only "objective" has a gradient. Errors are those of `cross_entropy`.
    """
    _check(hidden.x, targets, weights, z_loss, label_smoothing)
    rows, length = targets.shape
    size = min(max(1, tokens_at_once // rows), length)  # positions of a turn
    turns = -(-length // size)
    targets, weights = (_split(a, turns, size) for a in (targets, weights))
    names = ("loss", "z_loss", "correct", "weight")
    options = {"z_loss": z_loss, "label_smoothing": label_smoothing}

    @ops.custom_gradient
    def total(x, *matrix):
        def add(turn, x, sums, gradients):
            def here(a):
                return ops.take(a, turn, axis=0)

            logits = ops.matmul(here(x), matrix[0])
            if len(matrix) > 1:
                logits = logits + matrix[1]
            new = cross_entropy(logits, here(targets), here(weights), **options)
            d_logits = _gradient(logits, here(targets), here(weights), **options)
            more = [ops.matmul(ops.transpose(here(x)), d_logits)]
            more += [ops.sum(d_logits, axis=0)][: len(matrix) - 1]
            # It takes the place of x, so that no turn begins before the last has ended.
            dx = ops.matmul(d_logits, ops.transpose(matrix[0]))
            x = ops.scatter_update(x, ops.reshape(turn, (1, 1)), dx[None])
            sums = sums + ops.stack([new[name] for name in names])
            return x, sums, [a + b for a, b in zip(gradients, more, strict=True)]

        zeros = [ops.zeros_like(part) for part in matrix]
        start = _split(x, turns, size), ops.zeros(len(names)), zeros
        dx, sums, gradients = _repeat(turns, add, start)
        gradients = [_joined(dx, rows, length), *gradients]
        objective = sums[0] + sums[1]

        def backward(upstream):
            return tuple(upstream[0] * gradient for gradient in gradients)

        return ops.concatenate([objective[None], sums]), backward

    x, kernel, bias = hidden
    # A reshape reads a variable: TensorFlow's eager custom gradients take tensors.
    matrix = [ops.reshape(w, w.shape) for w in (kernel, bias) if w is not None]
    sums = total(x, *matrix)
    return {name: sums[i] for i, name in enumerate(("objective", *names))}


def _gradient(logits, targets, weights, z_loss, label_smoothing):
    """The gradient of loss and z-loss, float32 `[tokens, vocab_size]`."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    exps = ops.exp(logits - largest)
    total = ops.sum(exps, axis=-1, keepdims=True)
    log_z = ops.log(total) + largest
    size = logits.shape[-1]
    is_target = ops.equal(ops.arange(size, dtype="int32"), targets[:, None])
    other = label_smoothing / size
    wanted = ops.where(is_target, 1.0 - label_smoothing + other, other)
    weights = ops.cast(weights, "float32")[:, None]
    return weights * (exps * ((1.0 + 2.0 * z_loss * log_z) / total) - wanted)


def _split(x, turns, size):
    """`[rows, length, ..]` to `[turns, rows * size, ..]`, padded with zeros."""
    rows, length, *rest = x.shape
    x = ops.pad(x, [[0, 0], [0, turns * size - length]] + [[0, 0]] * len(rest))
    x = ops.swapaxes(ops.reshape(x, (rows, turns, size, *rest)), 0, 1)
    return ops.reshape(x, (turns, rows * size, *rest))


def _joined(x, rows, length):
    """The inverse of `_split`, `[rows, length, d_model]`."""
    x = ops.swapaxes(ops.reshape(x, (x.shape[0], rows, -1, x.shape[-1])), 0, 1)
    return ops.reshape(x, (rows, -1, x.shape[-1]))[:, :length]


def _repeat(turns, body, start):
    """Calls `body(turn, *carry)` for each turn; each engine can count the turns."""
    if keras.backend.backend() == "jax":
        return ops.fori_loop(0, turns, lambda i, carry: body(i, *carry), start)
    turn = ops.convert_to_tensor(0, "int32")
    _, *carry = ops.while_loop(
        lambda i, *_: i < turns,
        lambda i, *carry: (i + 1, *body(i, *carry)),
        (turn, *start),
        maximum_iterations=turns,
    )
    return carry


def is_argmax(logits, targets):
    """Returns argmax(logits) == targets, bool `[...]`, faster than by an argmax.

    logits are `[..., vocab_size]`, targets int32 `[...]`.
    """
    targets = targets[..., None]
    target_logits = ops.take_along_axis(logits, targets, axis=-1)
    is_before = ops.less(ops.arange(logits.shape[-1], dtype="int32"), targets)
    less, not_more = logits < target_logits, logits <= target_logits
    return ops.all(ops.where(is_before, less, not_more), axis=-1)


def _check(logits, targets, weights, z_loss, label_smoothing):
    _check_shapes(logits, targets, weights)
    _check_dtype(logits, targets)
    _check_coefficients(z_loss, label_smoothing)


def _check_dtype(logits, targets):
    soft = len(targets.shape) == len(logits.shape)
    if ("float" if soft else "int") not in str(targets.dtype):
        raise UserError(
            "targets must be integers, or floats for each class. Received: "
            f"{targets.dtype} of shape {tuple(targets.shape)}"
        )


def _check_shapes(logits, targets, *weights):
    # TensorFlow loses the rank of targets that had another one at an earlier call.
    if getattr(targets.shape, "rank", 0) is None:
        raise UserError(
            "Expected targets [batch, length], of one rank at all calls. Received "
            "another rank than before. Correct the targets, or call compile again."
        )
    soft = len(targets.shape) == len(logits.shape)
    positions = logits.shape[:-1]
    ids, shares = _axes(positions), _axes(logits.shape)
    if not _fit(logits.shape if soft else positions, targets.shape):
        raise UserError(
            f"Expected targets {ids}, an id for each position, or {shares}, the share "
            f"of each class. Received: targets {_axes(targets.shape)}"
        )
    for one in weights:
        if not _fit(positions, one.shape):
            raise UserError(
                f"Expected weights {ids}, a number for each position. Received: "
                f"weights {_axes(one.shape)}"
            )


def check_targets(logits_shape, shape, dtype):
    """Raises the UserErrors of targets that `CrossEntropy` raises in Keras' call."""
    if shape[-1:] == (1,) and _fit(shape[:-1], logits_shape[:-1]):
        shape = shape[:-1]
    logits = SimpleNamespace(shape=logits_shape)
    targets = SimpleNamespace(shape=shape, dtype=dtype)
    _check_shapes(logits, targets)
    _check_dtype(logits, targets)


def check_classes(targets, weights, classes):
    """Raises a UserError for an id of no class that counts, if values are NumPy's."""
    known = isinstance(targets, np.ndarray) and isinstance(weights, np.ndarray)
    if not known or targets.dtype.kind == "f":
        return
    wrong = targets[((targets < 0) | (targets >= classes)) & (weights != 0)]
    if len(wrong):
        raise UserError(
            f"targets must be classes from 0 to {classes - 1}, the logits' last axis. "
            f"Received: {wrong[0]}. Give it the weight 0, or correct it."
        )


def _check_coefficients(z_loss, label_smoothing):
    check_numbers(z_loss=z_loss)
    expected = "a number in [0, 1)"
    check_range("label_smoothing", label_smoothing, expected, lambda x: 0 <= x < 1)


def _axes(shape):
    """A shape as text: `[4, 8]`, with names in place of numbers that are not known."""
    names = ("batch", "length", "classes", *map(str, shape[3:]))
    axes = zip(names, shape, strict=False)
    return f"[{', '.join(name if n is None else str(n) for name, n in axes)}]"


def _fit(shape, other):
    """Whether two static shapes, whose axes may be None, can be equal."""
    return len(shape) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(shape, other, strict=True)
    )
