"""A language model: each token from those before it."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Batch, Cache, Tensor
from remixer_tf.errors import UserError
from remixer_tf.layers.base import Context
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.models.text_writer import TextWriter
from remixer_tf.objectives.batches import check_known_ids, check_tokens


class DecoderOnly(TextWriter):
    """Tokens in, logits of the next tokens out (Radford et al. 2018, section 3.1).

    The embedding starts as BERT's, truncated normal of deviation 0.02. Logits are
    float32: `h E^T` with the embedding's E, or from a matrix of their own.

    Args:
        decoder: a factory that takes `name`, `dtype` and `causal`, here True, and
            returns a `TransformerStack`.
        vocab_size: int, ids `0 .. vocab_size - 1`; 0 is padding, and the input before
            the first token.
        d_model: int.
        tied_logits: bool, logits from the embedding.

    Call arguments:
        batch: dictionary of int32 tensors as `seqio.LMFeatureConverter` names them:
            `decoder_input_tokens` `[batch, length]`, and for packed examples
            `decoder_{segment_ids,positions}` of the same shape. Others are ignored,
            of `seqio.PrefixLMFeatureConverter` also `decoder_causal_attention`, since
            the prefix is read causally as well, and only has no loss.
        training: bool.
        logits: bool, see `EncoderDecoder`.

    Returns:
        float32 `[batch, length, vocab_size]`.

    Raises:
        ValueError: the batch has `encoder_input_tokens`, as those of encoder-decoders.
    """

    token_inputs = ("decoder_input_tokens",)

    def __init__(
        self,
        decoder: Callable[..., Any],
        vocab_size: int,
        d_model: int,
        tied_logits: bool = True,
        **kwargs: Unpack[LayerKeywords],
    ):
        kwargs.setdefault("name", "decoder_only")
        super().__init__(None, decoder, vocab_size, d_model, tied_logits, **kwargs)

    def _initializer(self):
        return keras.initializers.TruncatedNormal(stddev=0.02)

    def batch_spec(
        self, batch_size: int, feature_lengths: Mapping[str, int]
    ) -> dict[str, Any]:
        """See `EncoderDecoder.batch_spec`.

        `feature_lengths` has the tokens of a row under `targets`; others are ignored,
        as by `seqio.LMFeatureConverter`.
        """
        tokens = keras.KerasTensor((batch_size, feature_lengths["targets"]), "int32")
        names = "input_tokens", "target_tokens", "loss_weights"
        return {f"decoder_{name}": tokens for name in names}

    def call(self, batch: Batch, training: bool = False, logits: bool = True) -> Tensor:
        check_tokens(batch, *self.token_inputs)
        check_known_ids(batch, self, *self.token_inputs)
        if "encoder_input_tokens" in batch:
            raise UserError(
                "A language model reads inputs and targets in one row. Received: a "
                "batch with encoder_input_tokens, which it would not read. Make it "
                "with LanguageModelFeatureConverter (in gin: "
                "Batching.feature_converter = @LanguageModelFeatureConverter)."
            )
        # No padding mask: causality hides trailing padding.
        context = self._read_targets(Context(), batch)
        x = self.token_embedding(batch["decoder_input_tokens"])
        x, _ = self.decoder(x, context=context, training=training)
        return self._compute_logits(x) if logits else x

    def prompt(self, batch: Batch) -> Tensor:
        """The prompts, int32 `[batch, prompt_length]`, 0 after their end.

        These are a batch's `encoder_input_tokens`, where encoder-decoders have their
        inputs, so that evaluation and inference read the same task for both. Their
        EOS, if the task appends one, belongs to the prompt, as it does to the prefix
        that `seqio.PrefixLMFeatureConverter` trains on.
        """
        return batch["encoder_input_tokens"]

    def start_decoding(
        self, batch: Batch, max_length: int, hypotheses: int = 1
    ) -> tuple[Context, Cache]:
        """Makes the empty cache for `max_length` tokens, the prompt included.

        See `EncoderDecoder.start_decoding`.
        """
        rows = ops.shape(batch["encoder_input_tokens"])[0] * hypotheses
        return Context(), self.decoder.init_cache(rows, max_length, Context())
