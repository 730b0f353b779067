"""Strings to ids and back, around a search from ids to ids."""

import functools

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.data.codec import UNSETTLED

STRINGS = tf.TensorSpec([None], tf.string, name="inputs")


class TextAnswers(tf.Module):
    """Answers strings with strings. A subclass has the search.

    Its `_batch` makes what its `_decode` takes, of ids, int32 `[batch, input_length]`,
    and settings; `_decode` returns a `Decoded`, perhaps with more rows behind.

    A call takes `inputs`, string `[batch]`, and settings, see `searchable`, or None. It
    returns a dictionary: `outputs`, string `[batch]`, `scores`, float32 `[batch]`, the
    log-probability of the answer's tokens, and `trimmed`, bool `[batch]`, whether the
    input was too long. A search with several answers adds `all_outputs` and
    `all_scores`, `[batch, answers]`.

    Args:
        codec: the `Codec`, an attribute.
        input_length: int, the ids that the model reads, an attribute.
        skip_special_tokens, clean_up_tokenization_spaces: see `text_to_text`.

    Attributes:
        options: dictionary of the options of `generate` that its search was made of,
            without those that are inputs.
        unsettled: int, characters at the end of an answer that more tokens may change.
    """

    options = {}

    def __init__(
        self,
        codec,
        input_length,
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
        name="text_answers",
    ):
        super().__init__(name=name)
        self.codec, self.input_length = codec, input_length
        self.write = functools.partial(
            codec.decode,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        self.unsettled = UNSETTLED if clean_up_tokenization_spaces else 0

    def __call__(self, inputs, settings=None):
        """Answers, with settings in place of the search's own, see `searchable`."""
        tokens, trimmed = self.tokens_of(inputs)
        decoded = self.decode_tokens(tokens, settings)
        tensors = keras.tree.map_structure(tf.constant, decoded)
        return self.written(tensors, trimmed)

    def tokens_of(self, inputs):
        """`read` by a graph: ids as a NumPy array, and if trimmed, a tensor."""
        tokens, trimmed = self._read(tf.convert_to_tensor(inputs, tf.string))
        return tokens.numpy(), trimmed

    @functools.cached_property
    def _read(self):
        # TensorFlow warns of a function of many instances, but not of a graph.
        function = tf.function(self.read, [STRINGS], autograph=False)
        return function.get_concrete_function()

    def decode_tokens(self, tokens, settings=None):
        """Answers ids, int32 `[batch, input_length]`: a `Decoded` of NumPy arrays."""
        decoded, rows = self._decode(self._batch(tokens, settings)), len(tokens)
        return keras.tree.map_structure(lambda x: x[:rows], decoded)

    def answer_all(self, texts, batch_size, settings=None):
        """Answers a list of texts, not empty: a call's answers, as NumPy arrays.

        Texts of a batch are about as long: none waits for the padding of another.
        """
        if found := self._answer_long_list(texts, batch_size, settings):
            return found
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = []
        for at in range(0, len(texts), batch_size):
            batch = [texts[i] for i in order[at : at + batch_size]]
            found.append(self(tf.constant(batch), settings))
        places = np.argsort(order)
        return {
            name: np.concatenate([one[name].numpy() for one in found])[places]
            for name in found[0]
        }

    def _answer_long_list(self, texts, batch_size, settings):
        """As `answer_all`, where there is a faster way; else None."""

    def written(self, decoded, trimmed):
        """Returns a call's answers from a `Decoded` of tensors."""
        answers = {
            "outputs": self.write(decoded.tokens),
            "scores": decoded.scores,
            "trimmed": trimmed,
        }
        if decoded.answers:
            _, number, length = decoded.answers.tokens.shape
            tokens = tf.reshape(decoded.answers.tokens, [-1, length])
            texts = self.write(tokens)
            answers["all_outputs"] = tf.reshape(texts, [-1, number])
            answers["all_scores"] = decoded.answers.scores
        return answers

    def read(self, texts):
        """Returns ids of strings `[batch]`, int32 `[batch, length]`, and if trimmed."""
        return self.codec.read("inputs", texts, self.input_length)
