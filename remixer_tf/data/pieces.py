"""seqio's vocabulary of SentencePiece, with sentinels wherever they stand."""

import functools
import re

import seqio
import tensorflow as tf


class SentencePieceVocabulary(seqio.SentencePieceVocabulary):
    """seqio's vocabulary of pieces, with sentinels wherever they stand in a text.

    seqio reads `<extra_id_0>` as a sentinel only where a word begins. Here, as in
    transformers, sentinels cut a text into parts, and each part is a text of its own.
    """

    def _encode(self, s):
        for pattern in _touching(self.extra_ids):
            s = re.sub(pattern, r"\1 \2", s)
        return super()._encode(s)

    def _encode_tf(self, s):
        return super()._encode_tf(self.cut_at_sentinels(s))

    def __eq__(self, other):
        """Whether both read texts alike. Equal files may have other names."""
        if not isinstance(other, SentencePieceVocabulary):
            return False
        return self._content() == other._content()

    def _content(self):
        state = self.__getstate__()
        if "sha256" in state:
            state["_sentencepiece_model_file"] = None
        return state

    def cut_at_sentinels(self, texts):
        """Strings with a blank between each sentinel and what touches it."""
        for pattern in _touching(self.extra_ids):
            texts = tf.strings.regex_replace(texts, pattern, r"\1 \2")
        return texts


@functools.cache
def _touching(extra_ids):
    """Patterns of a sentinel and what follows, or precedes, it without a blank.

    A vocabulary may keep every blank, so that one more would be one more piece.
    """
    if not extra_ids:
        return ()
    sentinel = f"(<extra_id_(?:{'|'.join(map(str, range(extra_ids)))})>)"
    follows, precedes = f"{sentinel}([^ ])", f"([^ ]){sentinel}"
    # Twice: a match takes the first character of the next sentinel.
    return follows, follows, precedes
