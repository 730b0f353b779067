"""A trained model from ids to ids, the graph in every export of text."""

import tensorflow as tf

from remixer_tf.decoding import greedy_decode
from remixer_tf.decoding.row_settings import AXES
from remixer_tf.engines.tensorflow.strategy import uses_xla
from remixer_tf.models import DecoderOnly
from remixer_tf.serving.stored_weights import StoredWeights


def searchable(tokens, settings=None):
    """Returns the batch that a search takes.

    Args:
        tokens: int32 `[batch, input_length]`, padded with 0.
        settings: dictionary of values in place of the search's own, see
            `row_settings`: one for all rows, or `[batch, ..]`. None for none.
    """
    batch = {"encoder_input_tokens": tokens}
    for name, value in (settings or {}).items():
        value = tf.convert_to_tensor(value)
        if value.shape.rank == AXES.get(name, 0):  # one for all rows
            value = tf.repeat(value[None], tf.shape(tokens)[0], axis=0)
        batch[name] = value
    return batch


class TokenGraph(tf.Module):
    """Decodes ids: the whole search with its cache in one graph.

    `tf.saved_model.save(graph, folder, {"predict_tokens": graph.function()})` saves it,
    without operations of tensorflow-text.

    Args:
        model: a built and restored model that `decode_fn` can decode with.
        input_length: int, the ids that the model reads.
        max_length: int, ids decoded at most.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        weights: str, the stored type, see `StoredWeights`, which also raises.
        jit_compile: bool, whether XLA compiles the search. It does so for each number
            of rows. None means on GPUs.

    Attributes:
        language_model: bool, whether the model reads prompt and answer in one row.
    """

    def __init__(
        self,
        model,
        *,
        input_length,
        max_length,
        decode_fn=greedy_decode,
        weights="float32",
        jit_compile: bool | None = None,
    ):
        super().__init__(name="token_graph")
        self.jit_compile = uses_xla(jit_compile)
        self.input_length = input_length
        self.max_length, self.decode_fn = max_length, decode_fn
        self.language_model = isinstance(model, DecoderOnly)
        self.weights = StoredWeights(model, weights)
        self._model = lambda: model  # As an attribute, Keras would save it too.

    def cannot_decode(self):
        """Returns why the model cannot decode step by step, a str; "" if it can."""
        try:
            batch = {"encoder_input_tokens": tf.zeros([1, 2], tf.int32)}
            self._model().start_decoding(batch, self.max_length)
        except ValueError as error:
            return str(error)
        return ""

    def transforms(self):
        """Returns the arguments, as "FourierMixing.method", that ask for an FFT."""
        layers = self._model()._flatten_layers()
        fast = [x for x in layers if getattr(x, "method", None) == "fft"]
        return sorted({f"{type(layer).__name__}.method" for layer in fast})

    def search(self, batch):
        """Decodes a batch, see `searchable`, to a `Decoded`."""
        with self.weights.reading():
            return self.decode_fn(self._model(), batch, self.max_length)

    def decode(self, batch):
        """`search` in an export, where XLA compiles it if `jit_compile` says so."""
        if not self.jit_compile:
            return self.search(batch)
        # A new one for each trace: it reads weights that the graph has cast.
        model, longest = self._model(), self.max_length
        compiled = tf.function(
            lambda batch: self.decode_fn(model, batch, longest),
            jit_compile=True,
            autograph=False,
        )
        with self.weights.reading():
            return compiled(batch)

    def function(self, batch_size=None):
        """Returns the graph, traced when it is first called or saved.

        `batch_size` is an int; None for any.

        Returns:
            a `tf.function` of `inputs`, int32 `[batch, input_length]`, padded with 0.
            It returns a dictionary, see `Decoded`: `outputs`, int32 `[batch,
            max_length]`, 0 after EOS, and `scores`, float32 `[batch]`. A
            `decode_fn` with several answers adds `all_outputs`, `[batch, answers,
            max_length]`, and `all_scores`, `[batch, answers]`.
        """
        shape = [batch_size, self.input_length]

        @tf.function(
            input_signature=[tf.TensorSpec(shape, tf.int32, name="inputs")],
            autograph=False,
        )
        def predict_tokens(inputs):
            decoded = self.decode(searchable(inputs))
            answers = {"outputs": decoded.tokens, "scores": decoded.scores}
            if decoded.answers:
                answers["all_outputs"] = decoded.answers.tokens
                answers["all_scores"] = decoded.answers.scores
            return answers

        return predict_tokens
