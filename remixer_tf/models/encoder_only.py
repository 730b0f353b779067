"""An encoder with a head on top: BERT, gMLP and their relatives."""

from collections.abc import Mapping
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import (
    Batch,
    Factory,
    NonNegativeInt,
    PositiveInt,
    Shape,
    Tensor,
    checked,
)
from remixer_tf.layers.axes import build_named
from remixer_tf.layers.base import Context
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.models.keras_model import KerasModel
from remixer_tf.objectives.batches import check_known_ids, check_tokens


class EncoderOnly(KerasModel):
    """Tokens in, what the head says about them out (BERT, section 3).

    `x = E[tokens] + S[token types]`, then the encoder (which adds positions and the
    first norm, if it has them, and ends with a norm), then the head. Both embeddings
    start as BERT's, truncated normal of deviation 0.02.

    Args:
        encoder: a factory that takes `name`, `dtype` and `causal`, here False, and
            returns a `TransformerStack`.
        head: a factory that takes `name` and returns a head, see `models.heads`.
        vocab_size: int, ids `0 .. vocab_size - 1`; 0 is padding.
        d_model: int.
        num_token_types: int, rows of S; 0 is a model without token types.
        mask_padding: bool, whether padding is masked. The gMLP paper does not mask it
            (section 4).

    Call arguments:
        batch: dictionary of int32 tensors; `encoder_input_tokens` `[batch, length]`,
            `encoder_token_types` of the same shape (0 everywhere if missing; ignored
            by a model without token types), for packed examples
            `encoder_{segment_ids,positions}`, and what the head reads.
        training: bool.
        logits: bool. False returns what the logits of a vocabulary are computed from,
            float32 `[batch, targets, d_model]`.

    Returns:
        float32 logits, see the head.
    """

    token_inputs = ("encoder_input_tokens",)

    @checked
    def __init__(
        self,
        encoder: Factory,
        head: Factory,
        vocab_size: PositiveInt,
        d_model: PositiveInt,
        num_token_types: NonNegativeInt = 0,
        mask_padding: bool = True,
        **kwargs: Unpack[LayerKeywords],
    ):
        kwargs.setdefault("name", "encoder_only")
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.num_token_types = num_token_types
        self.mask_padding = mask_padding
        self.token_embedding = self._embedding(vocab_size, "token_embedding")
        if num_token_types:
            self.type_embedding = self._embedding(num_token_types, "type_embedding")
        dtype = self.dtype_policy
        self.encoder = encoder(name="encoder", dtype=dtype, causal=False)
        self.head = head(name="head")
        self.num_classes = getattr(self.head, "num_classes", None)
        self.gives_logits = getattr(self.head, "gives_logits", True)
        self.target_name = getattr(self.head, "target_name", "labels")

    @property
    def depends_on_padding(self):
        """Layers see padding that is not masked."""
        return not self.mask_padding

    def _embedding(self, rows, name):
        return keras.layers.Embedding(
            rows,
            self.d_model,
            embeddings_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Shape | None = None) -> None:
        """Makes all variables; no data is needed."""
        shape = (None, None, self.d_model)
        # [vocab_size, d_model]
        axes = ("vocab", "d_model")
        build_named(self.token_embedding, (None, None), embeddings=axes)
        if self.num_token_types:
            # [num_token_types, d_model]
            axes = (None, "d_model")
            build_named(self.type_embedding, (None, None), embeddings=axes)
        self.encoder.build(shape)
        self.head.build(shape)
        self.built = True

    def batch_spec(
        self, batch_size: int, feature_lengths: Mapping[str, int]
    ) -> dict[str, Any]:
        """See `EncoderDecoder.batch_spec`; it is without token types.

        `feature_lengths` has the tokens of `inputs`, and under `targets` what the head
        predicts of a row, if it has a choice: masked tokens.
        """
        shape = (batch_size, feature_lengths["inputs"])
        return {
            "encoder_input_tokens": keras.KerasTensor(shape, dtype="int32"),
            **self.head.batch_spec(batch_size, feature_lengths),
        }

    def call(self, batch: Batch, training: bool = False, logits: bool = True) -> Tensor:
        check_tokens(batch, *self.token_inputs)
        check_known_ids(batch, self, *self.token_inputs)
        x, context = self.encode(batch, training=training)
        if not logits:
            return self.head.hidden(x, batch)
        return self.head(
            x, batch=batch, context=context, embedding=self.token_embedding
        )

    def vocabulary_matrix(self):
        """Returns kernel and bias of the logits, see `Hidden`."""
        return self.head.vocabulary_matrix(self.token_embedding)

    def embed(self, batch: Batch) -> Tensor:
        """Vectors of the texts of a batch, float32 `[batch, embedding_width]`."""
        return self.head.embed(*self.encode(batch))

    @property
    def embedding_width(self) -> int:
        """The width of `embed`'s vectors, an int."""
        return self.head.embedding_width(self.d_model)

    def encode(self, batch: Batch, training: bool = False) -> tuple[Tensor, Context]:
        """Runs the encoder, and returns what the head reads.

        These are float `[batch, length, d_model]` and the `Context`, which marks the
        padding to heads even if the layers were not told.
        """
        tokens = batch["encoder_input_tokens"]
        mask = ops.cast(ops.not_equal(tokens, 0), "int32")
        context = Context(
            padding_mask=mask if self.mask_padding else None,
            segment_ids=batch.get("encoder_segment_ids"),
            positions=batch.get("encoder_positions"),
            tokens=tokens,
            token_mask=mask,
        )
        x = self.token_embedding(tokens)
        if self.num_token_types:
            types = batch.get("encoder_token_types")
            x += self.type_embedding(ops.zeros_like(tokens) if types is None else types)
        x, _ = self.encoder(x, context=context, training=training)
        return x, context._replace(padding_mask=mask)
