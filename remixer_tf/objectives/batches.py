"""The names under which batches hold what a model is trained to say."""

from collections.abc import Mapping

import numpy as np
from keras import ops

from remixer_tf.errors import UserError

# By the kind of model: encoder-decoders and language models, encoders (of masked
# tokens), classifiers (of sequences, spans and images).
_TARGETS = {
    "decoder_target_tokens": "decoder_loss_weights",
    "encoder_target_tokens": "encoder_loss_weights",
    "labels": "label_weights",
}


def check_batch(batch, *names):
    """Raises a UserError unless a batch is a dictionary with these names."""
    if not isinstance(batch, Mapping) or not set(names) <= set(batch):
        raise UserError(
            f"The model reads a dictionary with {' and '.join(names)}. Received: "
            f"{sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__}"
        )


def check_tokens(batch, *names):
    """Raises a UserError unless a batch has these tensors, each `[batch, length]`."""
    check_batch(batch, *names)
    shapes = [getattr(batch[name], "shape", ()) for name in names]
    wrong = any(getattr(s, "rank", 0) is None or len(s) != 2 for s in shapes)
    if wrong or len({shape[0] for shape in shapes} - {None}) > 1:
        raise UserError(
            f"{' and '.join(names)} must be [batch, length] of one batch. Received: "
            f"{', '.join(map(str, shapes))}"
        )


def check_ids(batch, model):
    """Raises a UserError if a model lacks a token id or class of a batch's values."""
    for key, value in batch.items():
        if key.endswith("_tokens"):
            what, size = "token id", "vocab_size"
        elif key == "labels" and "int" in str(value.dtype):
            what, size = "class", "num_classes"
        else:
            continue
        limit = getattr(model, size, None)
        if limit is None or not np.size(value):
            continue
        if (largest := int(np.max(value))) >= limit:
            raise UserError(
                f"The data holds the {what} {largest}, but the model's {size} is "
                f"{limit}. Set {size.upper()} to {largest + 1} at least."
            )
        # Targets that do not count may have another id.
        if key.endswith("_input_tokens") and (least := int(np.min(value))) < 0:
            raise UserError(f"The data holds the token id {least}. Ids start at 0.")


# Names of the types of arrays whose values are known: NumPy's and the engines' own.
_ARRAYS = ("ndarray", "EagerTensor", "ArrayImpl")


def check_known_ids(batch, model, *names):
    """As `check_ids`, of these names alone; but for tensors of a compiled program.

    Without a check an engine reads NaN or another row, or raises an error that names
    neither batch nor model.
    """
    if isinstance(batch, Mapping):
        read = {name: batch[name] for name in names if name in batch}
        known = {k: x for k, x in read.items() if type(x).__name__ in _ARRAYS}
        check_ids(known, model)


def check_known_targets(targets, weights, model):
    """As `check_known_ids`, of a model's targets. Those of weight 0 may be any.

    `weights` are those of targets or of rows, None for ones. Targets that are no
    integers have no ids.
    """
    known = type(targets).__name__ in _ARRAYS and "int" in str(targets.dtype)
    if not known or type(weights).__name__ not in (*_ARRAYS, "NoneType"):
        return
    targets = np.asarray(targets)
    if weights is not None:
        weights = np.asarray(weights_of_targets(weights, targets.shape))
        if weights.shape != targets.shape:
            return  # The loss says so.
        targets = targets[weights != 0]
    check_ids({model.target_name: targets}, model)
    if targets.size and (least := int(np.min(targets))) < 0:
        raise UserError(
            f"The targets hold {least}, and ids start at 0. Give it the weight 0, or "
            "correct it."
        )


def targets_and_weights(batch):
    """Returns a batch's targets and the weights of their losses.

    The batch holds one of the pairs {decoder,encoder}_{target_tokens,loss_weights}, or
    labels and label_weights; else it is a ValueError.
    """
    for targets, weights in _TARGETS.items():
        if targets in batch and weights in batch:
            return batch[targets], batch[weights]
    pairs = ", or ".join(" and ".join(pair) for pair in _TARGETS.items())
    raise UserError(f"A batch holds {pairs}. Received: {', '.join(sorted(batch))}")


def weights_of_targets(weights, shape):
    """Weights in the shape of targets: these, or a number for each row, repeated.

    Keras would take `[batch]` for the weights of positions, where there are as many.
    Weights that do not fit are returned as they are.
    """
    weights = ops.convert_to_tensor(weights)
    if getattr(weights.shape, "rank", 0) is None:  # Keras chose its rank in a graph.
        weights = ops.reshape(weights, (shape[0], -1)) * ops.ones(shape, weights.dtype)
        return ops.reshape(weights, shape)  # Its axes are known.
    rows = weights.shape[0] if len(weights.shape) else 1
    fits = rows in (1, None, shape[0]) if isinstance(shape[0], int) else True
    if fits and tuple(weights.shape[1:]) in ((), (1,)):
        weights = ops.reshape(weights, (-1, *[1] * (len(shape) - 1)))
        weights = weights * ops.ones(shape, weights.dtype)  # Its rank is known.
    return weights


def scorable(batch, model):
    """Returns a batch whose targets before `model.first_scorable` have weight 0.

    Logits before that position depend on later tokens. A model without the attribute
    scores all positions. Raises a ValueError if rows of this length have none to score.
    """
    name = "decoder_loss_weights"
    if not getattr(model, "first_scorable", 0):
        return batch
    weights = batch[name]
    length = weights.shape[-1]
    counts = ops.arange(length) >= first_scorable(model, length)
    return {**batch, name: weights * ops.cast(counts, weights.dtype)}


def first_scorable(model, length):
    """The first position, int, that a model may score in rows of `length` tokens.

    It is the model's `first_scorable`, 0 if missing. Raises a ValueError if rows have
    no such position.
    """
    first = getattr(model, "first_scorable", 0)
    if first and length is not None and first >= length:
        raise UserError(
            f"The first {first} positions of a row see each other, so they have no "
            f"loss, and rows of {length} tokens have no others. Train on longer rows, "
            "or with SparseSpatialGate.routing = 'deterministic'."
        )
    return first


def throughput_tensors(batch):
    """Returns the tensors whose non-zero elements a throughput counts.

    These are the tokens that a model reads and writes; for images their weights, one an
    image.
    """
    names = ("encoder_input_tokens", "decoder_target_tokens")
    tokens = [batch[name] for name in names if name in batch]
    return tokens or [targets_and_weights(batch)[1]]


def count_throughput(batch):
    """Returns the number of tokens (or images) that are not padding, float32."""
    counts = [ops.sum(ops.cast(x > 0, "float32")) for x in throughput_tensors(batch)]
    return sum(counts[1:], start=counts[0])


def throughput_unit(batch):
    """Returns the name of what `throughput_tensors` counts: "tokens" or "images"."""
    return "images" if "images" in batch else "tokens"


def depends_on_padding(model):
    """Whether a model or a layer in it says `depends_on_padding`, see `Sublayer`."""
    layers = model._flatten_layers()
    return any(getattr(layer, "depends_on_padding", False) for layer in layers)
