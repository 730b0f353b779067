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
        if self.extra_ids:
            s = re.sub(_sentinels(self.extra_ids), r" \g<0> ", s)
        return super()._encode(s)

    def _encode_tf(self, s):
        return super()._encode_tf(self.cut_at_sentinels(s))

    def cut_at_sentinels(self, texts):
        """Strings with a blank before and after each sentinel."""
        if not self.extra_ids:
            return texts
        return tf.strings.regex_replace(texts, _sentinels(self.extra_ids), r" \0 ")


@functools.cache
def _sentinels(extra_ids):
    return f"<extra_id_(?:{'|'.join(map(str, range(extra_ids)))})>"
