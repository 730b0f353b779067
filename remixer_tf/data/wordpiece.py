"""BERT's vocabulary: WordPiece."""

import collections
import functools
import json

import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from remixer_tf.checkpoints.paths import locate
from remixer_tf.data.vocabularies import SpecialIds
from remixer_tf.errors import MissingFileError, UserError, check_paths

_SPECIAL = ("[MASK]", "[CLS]", "[SEP]", "[UNK]")


def wordpiece_vocabulary(path, lower_case=True):
    """The `WordPieceVocabulary` of a BERT's vocab.txt or tokenizer.json.

    Raises a FileNotFoundError if there is no such file, and a ValueError if it holds no
    such pieces.

    Args:
        path: str, a text file with a piece in each line, or the JSON file of
            Hugging Face's tokenizers. [PAD] is the first piece. [UNK], [CLS], [SEP] and
            [MASK] are pieces too.
        lower_case: bool, whether texts lose capitals and accents, as in BERT uncased.
    """
    check_paths(path=path)
    path = locate(path)
    if tf.io.gfile.isdir(path) or not tf.io.gfile.exists(path):
        raise MissingFileError(f"There is no vocabulary file {path!r}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        text = content.decode()
        if path.endswith(".json"):
            pieces = _pieces_of_json(text)
        else:
            pieces = text.removesuffix("\n").split("\n")
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise UserError(f"{path!r} has no WordPiece vocabulary: {e}.") from e
    missing = [piece for piece in _SPECIAL if piece not in pieces]
    if missing or pieces[:1] != ["[PAD]"]:
        raise UserError(
            f"The vocabulary {path!r} must begin with [PAD] and have "
            f"{', '.join(_SPECIAL)}. Received: {pieces[:1]} first, and no "
            f"{', '.join(missing) or 'piece missing'}."
        )
    if len({*pieces}) < len(pieces):
        ((twice, _),) = collections.Counter(pieces).most_common(1)
        raise UserError(f"The vocabulary {path!r} has the piece {twice!r} twice.")
    return WordPieceVocabulary(path, tuple(pieces), lower_case)


def _pieces_of_json(text):
    model = json.loads(text)["model"]
    kind, vocabulary = model.get("type", "WordPiece"), model["vocab"]
    if kind != "WordPiece" or not isinstance(vocabulary, dict):
        raise UserError(f"its model is of type {kind!r}")
    pieces = sorted(vocabulary, key=vocabulary.get)
    if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
        raise UserError("its ids are not 0, 1, 2 and so on")
    return pieces


class WordPieceVocabulary(seqio.Vocabulary):
    """Pieces of words (BERT, section 3), with the ids of its vocabulary file.

    A text is cut at blanks, punctuation and Chinese characters, and each word into the
    longest pieces from its start. [CLS] and [SEP] in a text are text. `pieces` is a
    tuple of str, read in `file`; for `lower_case` see `wordpiece_vocabulary`.
    """

    def __init__(self, file, pieces, lower_case):
        super().__init__()
        self.file = file
        self.pieces = pieces
        self.lower_case = lower_case

    @functools.cached_property
    def _tokenizer(self):
        with tf.init_scope():  # It holds a constant, which graphs share.
            return tf_text.FastBertTokenizer(list(self.pieces), token_out_type=tf.int32)

    def special_ids(self):
        """The `SpecialIds`; ordinary ids follow the last special piece."""
        mask, cls, sep, unk = map(self.pieces.index, _SPECIAL)
        first = max(mask, cls, sep, unk) + 1
        return SpecialIds(mask, cls, sep, first, len(self.pieces))

    @property
    def _base_vocab_size(self):
        return len(self.pieces)

    @property
    def eos_id(self):
        return None

    @property
    def unk_id(self):
        return self.pieces.index("[UNK]")

    @property
    def tf_tokenizer(self):
        """Itself, for those who ask a tokenizer for offsets."""
        return self

    def tokenize_with_offsets(self, text):
        """Cuts a text, string `[]`, into ids, int32 `[n]`.

        Returns them, and where they start and end in the text, in bytes.
        """
        # Bytes that are not UTF-8 become U+FFFD. BERT leaves it and NUL out.
        clean = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        read = tf.strings.unicode_split(clean, "UTF-8")
        made = tf.strings.regex_replace(read, r"[\x00\x{FFFD}]", "")
        if self.lower_case:
            # The tokenizer's own lower case would fold: of ß it makes ss.
            made = tf_text.normalize_utf8(made, "NFD")
            made = tf.strings.regex_replace(made, r"\p{Mn}", "")
            made = tf.strings.lower(made, "utf-8")
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(
            tf.strings.reduce_join(made)[None]
        )
        ends_made, ends_read = (tf.cumsum(tf.strings.length(x)) for x in (made, read))

        def place(offsets, side):
            at = tf.searchsorted(ends_made, tf.cast(offsets.flat_values, "int32"), side)
            return at, tf.gather(ends_read, at)

        first, after = place(starts, "right")
        starts = after - tf.gather(tf.strings.length(read), first)
        return ids.flat_values, starts, place(ends, "left")[1]

    def _encode_tf(self, s):
        return self.tokenize_with_offsets(s)[0]

    def _encode(self, s):
        return self._encode_tf(tf.constant(s)).numpy().tolist()

    def _decode_tf(self, ids):
        words = tf.gather(tf.constant(self.pieces), ids)
        text = tf.strings.reduce_join(words, -1, separator=" ")
        return tf.strings.regex_replace(text, r" ##|( ?\[PAD\])+$", "")

    def _decode(self, ids):
        return self._decode_tf(tf.constant(ids, tf.int32)).numpy().decode()

    def __getstate__(self):
        return {k: v for k, v in vars(self).items() if k != "_tokenizer"}

    def __eq__(self, other):
        return isinstance(other, WordPieceVocabulary) and (
            (self.pieces, self.lower_case) == (other.pieces, other.lower_case)
        )

    __hash__ = None
