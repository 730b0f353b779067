"""T5-style encoder-decoder over any two stacks."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Batch, Cache, Tensor
from remixer_tf.layers.base import Context
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.models.text_writer import TextWriter
from remixer_tf.objectives.batches import check_known_ids, check_tokens


class EncoderDecoder(TextWriter):
    """Tokens in, logits of the target tokens out (T5, section 2.1).

    The embedding is shared by encoder and decoder. Logits are float32, from a matrix
    of their own (T5.1.1) or from the embedding, then scaled by d_model ** -0.5
    (T5.1.0).

    Args:
        encoder: a factory that takes `name`, `dtype` and `causal`, here False, and
            returns a `TransformerStack`.
        decoder: the same, with `causal` True.
        vocab_size: int, ids `0 .. vocab_size - 1`; 0 is padding.
        d_model: int.
        tied_logits: bool, logits from the embedding.

    Call arguments:
        batch: dictionary of int32 tensors under seqio's names;
            `encoder_input_tokens` `[batch, encoder_length]` and
            `decoder_input_tokens` `[batch, decoder_length]`, and for packed examples
            `{encoder,decoder}_{segment_ids,positions}` of the same shapes. Others are
            ignored.
        training: bool.
        logits: bool. False returns what logits are computed from, float
            `[batch, decoder_length, d_model]`.

    Returns:
        float32 `[batch, decoder_length, vocab_size]`.
    """

    scale_logits = True
    token_inputs = ("encoder_input_tokens", "decoder_input_tokens")

    def __init__(
        self,
        encoder: Callable[..., Any],
        decoder: Callable[..., Any],
        vocab_size: int,
        d_model: int,
        tied_logits: bool = False,
        **kwargs: Unpack[LayerKeywords],
    ):
        kwargs.setdefault("name", "encoder_decoder")
        super().__init__(encoder, decoder, vocab_size, d_model, tied_logits, **kwargs)

    def _initializer(self):
        return keras.initializers.RandomNormal(stddev=1.0)

    def batch_spec(
        self, batch_size: int, feature_lengths: Mapping[str, int]
    ) -> dict[str, Any]:
        """Shape and dtype of all that `call` and the loss read of unpacked examples.

        `feature_lengths` has the tokens of `inputs` and `targets`. Returns a dictionary
        of `keras.KerasTensor` under seqio's names.
        """
        lengths = {
            "encoder_input_tokens": feature_lengths["inputs"],
            "decoder_input_tokens": feature_lengths["targets"],
            "decoder_target_tokens": feature_lengths["targets"],
            "decoder_loss_weights": feature_lengths["targets"],
        }
        return {
            key: keras.KerasTensor((batch_size, length), dtype="int32")
            for key, length in lengths.items()
        }

    def call(self, batch: Batch, training: bool = False, logits: bool = True) -> Tensor:
        check_tokens(batch, *self.token_inputs)
        check_known_ids(batch, self, *self.token_inputs)
        context = self.encode(batch, training=training)
        context = self._read_targets(context, batch)
        x = self.token_embedding(batch["decoder_input_tokens"])
        x, _ = self.decoder(x, context=context, training=training)
        return self._compute_logits(x) if logits else x

    def encode(self, batch: Batch, training: bool = False) -> Context:
        """Runs the encoder, and returns the decoder's `Context`.

        It has `encoded` and its mask and segments, and no padding mask, since causality
        hides trailing padding.
        """
        tokens = batch["encoder_input_tokens"]
        mask = ops.cast(ops.not_equal(tokens, 0), "int32")
        segment_ids = batch.get("encoder_segment_ids")
        context = Context(
            padding_mask=mask,
            segment_ids=segment_ids,
            positions=batch.get("encoder_positions"),
            tokens=tokens,
            token_mask=mask,
        )
        x = self.token_embedding(tokens)
        x, _ = self.encoder(x, context=context, training=training)
        return Context(encoded=x, encoded_mask=mask, encoded_segment_ids=segment_ids)

    def prompt(self, batch: Batch) -> Tensor:
        """The target tokens that answers continue, int32 `[batch, prompt_length]`.

        A batch's `decoder_prompt_tokens`, 0 after their end; none without them.
        """
        check_tokens(batch, "encoder_input_tokens")
        none = batch["encoder_input_tokens"][:, :0]
        return batch.get("decoder_prompt_tokens", none)

    def start_decoding(
        self, batch: Batch, max_length: int, hypotheses: int = 1
    ) -> tuple[Context, Cache]:
        """Encodes, and makes the empty cache for `max_length` target tokens.

        `hypotheses` is the number of answers to each example that are written at the
        same time. Returns the decoder's `Context` and the cache.
        """
        context = self.encode(batch)
        rows = ops.shape(context.encoded)[0] * hypotheses
        return context, self.decoder.init_cache(rows, max_length, context)
