"""What the models that decode step by step have in common."""

from keras import ops


class DecodingSteps:
    """Decoding with a cache, for a model with a `token_embedding` and a `decoder`.

    The model has `logits` too, a `TiedLogits` where its `tied_logits` is true, and adds
    `start_decoding` and `prompt`.
    """

    @property
    def first_scorable(self):
        """The first position of a row that may have a loss, see `Sublayer`."""
        return getattr(self.decoder, "first_scorable", 0)

    def grow_cache(self, context, cache, max_length):
        """Pads a cache, to hold `max_length` tokens.

        Args:
            context, cache: from `start_decoding`, the cache from the last step.
            max_length: int.

        Returns:
            the cache.
        """
        return self.decoder.grow_cache(cache, max_length, context)

    def reorder_cache(self, cache, rows):
        """Puts a cache's rows in the order of hypotheses, see `TransformerStack`."""
        return self.decoder.reorder_cache(cache, rows)

    def decode_step(self, tokens, cache, context, state):
        """Logits of the next token.

        Args:
            tokens: int32 `[batch * hypotheses]`, those of an example in succession: the
                decoder's input at `state.step`.
            cache: from `start_decoding` or the last step.
            context: from `start_decoding`.
            state: a `DecodeState`.

        Returns:
            float32 `[batch * hypotheses, vocab_size]`, and the new cache.
        """
        tokens = tokens[:, None]
        context = context._replace(tokens=tokens)
        x = self.token_embedding(tokens)
        x, cache = self.decoder(x, context=context, cache=cache, state=state)
        return self._compute_logits(x)[:, 0], cache

    def _read_targets(self, context, batch):
        """Adds to the decoder's `Context` what a batch with all targets tells."""
        segment_ids = batch.get("decoder_segment_ids")
        real = segment_ids
        if real is None:  # Not the inputs: the first is padding's id.
            real = batch.get("decoder_target_tokens")
        return context._replace(
            segment_ids=segment_ids,
            positions=batch.get("decoder_positions"),
            tokens=batch["decoder_input_tokens"],
            token_mask=None if real is None else ops.cast(real > 0, "int32"),
        )

    def _compute_logits(self, x):
        if self.tied_logits:
            return self.logits(x, embedding=self.token_embedding)
        return self.logits(x)
