"""How likely a model finds texts that are given."""

from typing import Any, NamedTuple

from keras import ops

from remixer_tf.decoding.search import check_writes
from remixer_tf.errors import UserError
from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.objectives.losses import check_classes, is_argmax


class Scores(NamedTuple):
    """The result of scoring; logarithms are natural.

    Attributes:
        sums: float32 `[batch]`, the log-likelihood of each row's targets.
        num_tokens: int32 `[batch]`, how many tokens that are.
        greedy: bool `[batch]`, whether each of them is the likeliest at its place, so
            that greedy decoding would write them (of equal logits the first counts).
        log_probs: float32 `[batch, length]`, of each token, at its place in the batch;
            0 where a position does not count.
    """

    sums: Any
    num_tokens: Any
    greedy: Any
    log_probs: Any


def check_scores(model: Any) -> None:
    """Raises a ValueError unless the model can score texts, see `score`."""
    check_writes(model)
    if first := getattr(model, "first_scorable", 0):
        raise UserError(
            f"This model cannot score whole texts: the first {first} positions of a "
            "row see each other. LossEvaluation tells the loss and perplexity of the "
            "others. Score with SparseSpatialGate.routing = 'deterministic'."
        )


def score(model: Any, batch: Any) -> Scores:
    """The log-likelihood of given targets: sum_t log p(y_t | y_<t, inputs).

    A row's scores do not depend on its padding (of models that mask theirs), nor on its
    neighbours, up to rounding.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`.
        batch: dictionary of tensors as in training. An encoder-decoder reads inputs and
            targets apart, as `seqio.EncDecFeatureConverter` makes them; a language
            model in one row, as `LanguageModelFeatureConverter` does. Positions with
            a weight over 0 count.

    Returns:
        `Scores`.

    Raises:
        ValueError: the model writes no text, or may not score the first positions of
            a row; or a language model is given inputs that it would not read.
    """
    check_scores(model)
    targets, weights = targets_and_weights(batch)
    counts = ops.cast(weights, "float32") > 0
    logits = ops.cast(model(batch, training=False), "float32")
    check_classes(targets, weights, logits.shape[-1])
    log_probs = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    log_probs = ops.where(counts, log_probs - ops.logsumexp(logits, axis=-1), 0.0)
    likeliest = ops.logical_or(is_argmax(logits, targets), ops.logical_not(counts))
    return Scores(
        sums=ops.sum(log_probs, axis=-1),
        num_tokens=ops.sum(ops.cast(counts, "int32"), axis=-1),
        greedy=ops.all(likeliest, axis=-1),
        log_probs=log_probs,
    )
