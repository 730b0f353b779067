"""Heads, from an encoder's output to logits. All in float32, as logits are."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Batch, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError, check_choices
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.base import MASKED, Context, get_activation
from remixer_tf.layers.bert import bert_dense
from remixer_tf.layers.embedding import TiedLogits
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.normalization import LayerNorm
from remixer_tf.layers.saving import SavesParts
from remixer_tf.objectives.hidden import no_vocabulary


class Head(SavesParts, NamedAxes, keras.layers.Layer):
    """From an encoder's output to logits.

    Call arguments:
        x: float `[batch, length, d_model]`.
        batch: the model's batch.
        context: a `Context` with the `padding_mask`.
        embedding: the model's token embedding, a `keras.layers.Embedding`.

    Returns:
        float32 `[batch, targets, classes]`, for the targets that the batch holds.
    """

    num_targets = 1  # labels of a row
    gives_logits = True  # of classes, not vectors
    target_name = "labels"  # what a batch calls the targets

    def __init__(self, **kwargs: Unpack[LayerKeywords]):
        super().__init__(**{**kwargs, "dtype": "float32"})

    def batch_spec(self, batch_size, feature_lengths):
        """The tensors that head and loss read; see `EncoderOnly.batch_spec`."""
        labels = keras.KerasTensor((batch_size, self.num_targets), dtype="int32")
        return {"labels": labels, "label_weights": labels}

    def call(self, x: Tensor, batch: Batch, context: Context, embedding: Any) -> Tensor:
        raise NotImplementedError

    def embed(self, x: Tensor, context: Context) -> Tensor:
        """The vector of a text, float32 `[batch, width]`: the mean of x over tokens."""
        return mean_of_tokens(x, context.padding_mask)

    def embedding_width(self, d_model: int) -> int:
        """The width of `embed`'s vectors, an int."""
        return d_model

    def hidden(self, x, batch):
        """The `Hidden` that the logits of a vocabulary are computed from."""
        raise no_vocabulary(self)

    def vocabulary_matrix(self, embedding):
        """Kernel and bias of the logits of a vocabulary, see `Hidden`."""
        raise no_vocabulary(self)


class MaskedLMHead(Head):
    """Logits of the masked tokens: `h E^T + b`, E the embedding (BERT, section 3.1).

    With `masked_positions`, int32 `[batch, predictions]`, in the batch, only those
    positions are computed: the logits are `[batch, predictions, vocab_size]`, else
    `[batch, length, vocab_size]`.

    Args:
        bias_size: int, the size of the vocabulary: b has one number per token. None:
            there is no b.
        mlm_transform: bool, BERT's transformation before the product,
            `h = LayerNorm(gelu(x W + c))` with W d_model x d_model. The parameter
            counts of the gMLP paper leave no room for it.
        norm_epsilon: float, of its LayerNorm.
    """

    target_name = "encoder_target_tokens"

    @checked
    def __init__(
        self,
        bias_size: PositiveInt | None = None,
        mlm_transform: bool = False,
        norm_epsilon: float = 1e-6,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        self.bias_size = bias_size
        self.mlm_transform = mlm_transform
        self.norm_epsilon = norm_epsilon
        self.act = get_activation("gelu_exact")
        self.logits = TiedLogits(name="logits")

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        if self.mlm_transform:
            self.transform = _dense("transform", d_model, d_model)
            self.norm = LayerNorm(self.norm_epsilon, name="norm", dtype="float32")
            self.norm.build(input_shape)
        if self.bias_size is not None:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.bias_size,),  # [vocab_size]
                axes=("vocab",),
                initializer="zeros",
            )

    def batch_spec(self, batch_size, feature_lengths):
        """See `Head`. `targets` in `feature_lengths`: predictions of a row."""
        shape = (batch_size, feature_lengths["targets"])
        predictions = keras.KerasTensor(shape, dtype="int32")
        return {
            "masked_positions": predictions,
            "encoder_target_tokens": predictions,
            "encoder_loss_weights": predictions,
        }

    def call(self, x: Tensor, batch: Batch, context: Context, embedding: Any) -> Tensor:
        logits = self.logits(self.hidden(x, batch), embedding=embedding)
        return logits if self.bias_size is None else logits + self.bias

    def hidden(self, x, batch):
        if "masked_positions" in batch:
            positions = batch["masked_positions"][:, :, None]
            x = ops.take_along_axis(x, positions, axis=1)
        if self.mlm_transform:
            x = self.norm(self.act(self.transform(x)))
        return x

    def vocabulary_matrix(self, embedding):
        bias = None if self.bias_size is None else self.bias
        return self.logits.matrix(embedding), bias


class ClassificationHead(Head):
    """Logits of an example's class: `tanh(x_0 W_p + b_p) W_c + b_c` (BERT, section 4).

    x_0 is the first position, where [CLS] stands; W_p is d_model x d_model.

    Args:
        num_classes: int.

    Returns of a call:
        float32 `[batch, 1, num_classes]`.

    Raises:
        ValueError: for packed examples, several in a row.
    """

    @checked
    def __init__(self, num_classes: PositiveInt, **kwargs: Unpack[LayerKeywords]):
        super().__init__(**kwargs)
        self.num_classes = num_classes

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        self._build_pooling(d_model)
        self.classifier = _dense("classifier", d_model, self.num_classes)

    def _build_pooling(self, d_model):
        self.pooler = _dense("pooler", d_model, d_model)

    def _pool(self, x, context):
        return ops.tanh(self.pooler(x[:, 0]))

    def call(self, x: Tensor, batch: Batch, context: Context, embedding: Any) -> Tensor:
        if context.segment_ids is not None:
            raise UserError(
                "One class is told for each row, and packed rows hold several "
                "examples. Received: encoder_segment_ids. Train with packing off "
                "(in gin: Batching.pack = False)."
            )
        return self.classifier(self._pool(x, context))[:, None]


class MeanPoolingHead(ClassificationHead):
    """Logits of an example's class from the mean of its tokens: `mean(x) W_c + b_c`.

    On an encoder without layers it is SuperGLUE's bag of words baseline (CBoW).

    Args, returns and raises: see `ClassificationHead`.
    """

    def _build_pooling(self, d_model):
        """The mean has no weights."""

    def _pool(self, x, context):
        return mean_of_tokens(x, context.padding_mask)


def _mean_sqrt(x, mask):
    return ops.sum(x * mask, axis=1) / ops.sqrt(ops.maximum(ops.sum(mask, axis=1), 1.0))


def _weighted_mean(x, mask):
    places = ops.arange(1, x.shape[1] + 1, dtype="float32")[:, None]
    weights = mask * places
    total = ops.maximum(ops.sum(weights, axis=1), 1.0)
    return ops.sum(x * weights, axis=1) / total


def _last(x, mask):
    last = ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    return ops.take_along_axis(x, last[:, None], axis=1)[:, 0]


# sentence-transformers' names of poolings, from x `[batch, length, d_model]` and the
# mask of tokens `[batch, length, 1]`, both float32.
POOLINGS = {
    "mean": lambda x, mask: mean_of_tokens(x, mask[..., 0]),
    "cls": lambda x, mask: x[:, 0],
    "max": lambda x, mask: ops.max(ops.where(mask > 0, x, MASKED), axis=1),
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,  # a token weighs as much as its place, from 1
    "lasttoken": _last,
}


class EmbeddingHead(Head):
    """The vector of a text, as sentence-transformers makes it (Reimers et al. 2019).

    `h = [pooling_1(x), pooling_2(x), ...]`, then `h = act(h W + b)` for each of the
    layers, then `h / |h|`.

    Args:
        pooling: list of str, keys of `POOLINGS`.
        layers: list of (units, activation, use_bias).
        normalize: bool, whether the vector has length 1.

    Returns of a call:
        float32 `[batch, 1, width]`: the vector in place of logits.
    """

    gives_logits = False

    @checked
    def __init__(
        self,
        pooling: Sequence[str] = ("mean",),
        layers: Sequence[tuple[int, str, bool]] = (),
        normalize: bool = False,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        if not isinstance(pooling, (list, tuple)) or not pooling:
            raise UserError(
                f"pooling must be a list of {', '.join(POOLINGS)}. Received: "
                f"pooling={pooling!r:.200}"
            )
        for name in pooling:
            check_choices((*POOLINGS,), pooling=name)
        if not isinstance(layers, (list, tuple)) or any(
            not isinstance(layer, (list, tuple)) or len(layer) != 3 for layer in layers
        ):
            raise UserError(
                "layers must be a list of (units, activation, use_bias). Received: "
                f"layers={layers!r:.200}"
            )
        self.pooling = tuple(pooling)
        self.layers = [tuple(layer) for layer in layers]
        self.normalize = normalize

    def build(self, input_shape: Shape) -> None:
        width, self.dense = len(self.pooling) * input_shape[-1], []
        for number, (units, _, use_bias) in enumerate(self.layers):
            self.dense.append(_dense(f"dense_{number}", width, units, use_bias))
            width = units

    def embedding_width(self, d_model: int) -> int:
        return self.layers[-1][0] if self.layers else len(self.pooling) * d_model

    def embed(self, x: Tensor, context: Context) -> Tensor:
        x = ops.cast(x, "float32")
        mask = ops.cast(context.padding_mask, "float32")[..., None]
        vector = ops.concatenate(
            [POOLINGS[name](x, mask) for name in self.pooling], axis=-1
        )
        for layer, (_, activation, _) in zip(self.dense, self.layers, strict=True):
            vector = get_activation(activation)(layer(vector))
        if self.normalize:
            length = ops.norm(vector, axis=-1, keepdims=True)
            vector = vector / ops.maximum(length, 1e-12)
        return vector

    def call(self, x: Tensor, batch: Batch, context: Context, embedding: Any) -> Tensor:
        return self.embed(x, context)[:, None]


class SpanHead(Head):
    """Logits of where an answer starts and ends: `x W + b` (BERT, section 4.2).

    The classes are the positions; padding has none.

    Returns of a call:
        float32 `[batch, 2, length]`: start, end.
    """

    num_targets = 2

    def build(self, input_shape: Shape) -> None:
        self.span = _dense("span", input_shape[-1], 2)

    def call(self, x: Tensor, batch: Batch, context: Context, embedding: Any) -> Tensor:
        padding = 1.0 - ops.cast(context.padding_mask, "float32")
        logits = ops.transpose(self.span(x), (0, 2, 1))
        return logits + padding[:, None] * MASKED


def mean_of_tokens(x, mask):
    """The mean of x over the tokens that the mask marks; 0 for a row without any.

    x is float `[batch, length, d_model]`, the mask `[batch, length]`. Returns float32
    `[batch, d_model]`.
    """
    mask = ops.cast(mask, "float32")[..., None]
    total = ops.sum(ops.cast(x, "float32") * mask, axis=1)
    return total / ops.maximum(ops.sum(mask, axis=1), 1.0)


def _dense(name, d_model, units, use_bias=True):
    axes = ("d_model", None)
    return bert_dense(name, d_model, units, "float32", axes, use_bias)
