"""The base of models that write text."""

import keras
from keras import ops

from remixer_tf.arguments import Cache, Factory, PositiveInt, Shape, Tensor, checked
from remixer_tf.layers.axes import build_named
from remixer_tf.layers.base import Context, DecodeState, by_row, dense
from remixer_tf.layers.embedding import TiedLogits
from remixer_tf.models.keras_model import KerasModel
from remixer_tf.objectives.hidden import matrix_of


class TextWriter(KerasModel):
    """An embedding of tokens, a decoder and logits: a model that decodes with a cache.

    Models add `call`, `batch_spec`, `prompt`, `start_decoding`, and `_initializer`,
    which makes the embedding's. `scale_logits` multiplies tied logits by
    d_model ** -0.5. `encoder` may be None; for the other arguments see
    `EncoderDecoder`.
    """

    rows_apart = True  # see `Sublayer`
    scale_logits = False
    target_name = "decoder_target_tokens"

    @checked
    def __init__(
        self,
        encoder: Factory | None,
        decoder: Factory,
        vocab_size: PositiveInt,
        d_model: PositiveInt,
        tied_logits: bool,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.tied_logits = tied_logits
        if tied_logits:
            scale = d_model**-0.5 if self.scale_logits else 1.0
            self.logits = TiedLogits(scale, name="logits")
        self.token_embedding = keras.layers.Embedding(
            vocab_size,
            d_model,
            embeddings_initializer=self._initializer(),
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        dtype = self.dtype_policy
        if encoder is not None:
            self.encoder = encoder(name="encoder", dtype=dtype, causal=False)
        self.decoder = decoder(name="decoder", dtype=dtype, causal=True)

    def build(self, input_shape: Shape | None = None) -> None:
        """Makes all variables; no data is needed."""
        shape = (None, None, self.d_model)
        axes = ("vocab", "d_model")  # [vocab_size, d_model]
        build_named(self.token_embedding, (None, None), embeddings=axes)
        if hasattr(self, "encoder"):
            self.encoder.build(shape)
        self.decoder.build(shape)
        if not self.tied_logits:
            # [d_model, vocab_size]; float32 whatever the compute dtype
            self.logits = dense(
                "logits", shape, self.vocab_size, dtype="float32", axes=axes[::-1]
            )
        self.built = True

    @property
    def first_scorable(self):
        """The first position of a row that may have a loss, see `Sublayer`."""
        return getattr(self.decoder, "first_scorable", 0)

    def grow_cache(self, context: Context, cache: Cache, max_length: int) -> Cache:
        """Pads or cuts the cache of the last step, to hold `max_length` tokens."""
        return self.decoder.grow_cache(cache, max_length, context)

    def reorder_cache(self, cache: Cache, rows: Tensor) -> Cache:
        """Puts a cache's rows in the order of hypotheses, see `TransformerStack`."""
        return self.decoder.reorder_cache(cache, rows)

    def decode_step(
        self, tokens: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        """The next token's logits, float32 `[rows, vocab_size]`, and the new cache.

        Args:
            tokens: int32 `[rows]`, the decoder's input at `state.step`; hypotheses of
                an example in succession.
            cache: of the last step, at first from `start_decoding`.
            context: from `start_decoding`.
            state: a `DecodeState`.
        """
        tokens = tokens[:, None]
        context = context._replace(tokens=tokens)
        x = self.token_embedding(tokens)
        x, cache = self.decoder(x, context=context, cache=cache, state=state)
        # Not [:, 0]: LiteRT would copy number by number.
        return ops.squeeze(self._compute_logits(x), axis=1), cache

    def prefill(
        self, tokens: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> Cache:
        """Reads a prompt in one call; returns the cache as `state.step` steps would.

        Args:
            tokens: int32 `[batch * hypotheses, width]`, the decoder's inputs from
                position 0 on. Those from `state.step` on count for nothing.
            cache, context: from `start_decoding`.
            state: a `DecodeState`; `step`, at most `width`, is the position that is
                decoded next.
        """
        read = ops.arange(tokens.shape[1], dtype="int32") < by_row(state.step)
        mask = ops.zeros_like(tokens) + ops.cast(read, "int32")
        context = context._replace(tokens=tokens, token_mask=mask)
        x = self.token_embedding(tokens)
        state = {"cache": cache, "state": state, "prefill": True}
        return self.decoder(x, context=context, **state)[1]

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

    def vocabulary_matrix(self):
        """Returns kernel and bias of the logits, see `Hidden`."""
        if self.tied_logits:
            return self.logits.matrix(self.token_embedding), None
        return matrix_of(self.logits)

    def _compute_logits(self, x):
        if self.tied_logits:
            return self.logits(x, embedding=self.token_embedding)
        return self.logits(x)
