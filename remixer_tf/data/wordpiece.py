"""BERT's vocabulary: WordPiece."""

import collections
import functools
import itertools
import json

import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from remixer_tf.arguments import checked
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.data.bert_words import WordCutter
from remixer_tf.data.failures import is_a_folder
from remixer_tf.data.vocabularies import SpecialIds
from remixer_tf.errors import MissingFileError, UserError, check_integers, check_paths

_SPECIAL = ("[MASK]", "[CLS]", "[SEP]", "[UNK]")
_UTF8_SIZES = (-1, 0x7F, 0x7FF, 0xFFFF)  # a character above has one byte more


@checked
def wordpiece_vocabulary(
    path: Located,
    lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    max_input_chars_per_word=None,
):
    """The `WordPieceVocabulary` of a BERT's vocab.txt or tokenizer.json.

    Raises a FileNotFoundError if there is no such file, and a ValueError if it holds no
    such pieces. The last three settings are Hugging Face's.

    Args:
        path: str, a text file with a piece in each line, or the JSON file of
            Hugging Face's tokenizers. [PAD] is the first piece. [UNK], [CLS], [SEP] and
            [MASK] are pieces too.
        lower_case: bool, whether texts lose capitals, as in BERT uncased.
        strip_accents: bool, whether they lose accents. None: as `lower_case`.
        tokenize_chinese_chars: bool, whether each Chinese character is a word.
        max_input_chars_per_word: int, a longer word is [UNK]. None: what the JSON file
            says, else 100, as in BERT's first release and transformers. (BERT's code
            has 200 since the multilingual models.)
    """
    check_paths(path=path)
    path = locate(path)
    if tf.io.gfile.isdir(path):
        raise is_a_folder(path, "*.txt")
    if not tf.io.gfile.exists(path):
        raise MissingFileError(f"There is no vocabulary file {path!r}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    longest = 100
    try:
        text = content.decode()
        if path.endswith(".json"):
            pieces, longest = _read_json(text)
        else:
            pieces = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
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
    if strip_accents is None:
        strip_accents = lower_case
    if max_input_chars_per_word is None:
        max_input_chars_per_word = longest
    check_integers(max_input_chars_per_word=max_input_chars_per_word)
    rules = (lower_case, strip_accents, tokenize_chinese_chars)
    return WordPieceVocabulary(path, tuple(pieces), *rules, max_input_chars_per_word)


def _read_json(text):
    """The pieces, and how many characters a word may have."""
    model = json.loads(text)["model"]
    kind, vocabulary = model.get("type", "WordPiece"), model["vocab"]
    if kind != "WordPiece" or not isinstance(vocabulary, dict):
        raise UserError(f"its model is of type {kind!r}")
    pieces = sorted(vocabulary, key=vocabulary.get)
    if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
        raise UserError("its ids are not 0, 1, 2 and so on")
    for name, known in (("continuing_subword_prefix", "##"), ("unk_token", "[UNK]")):
        if (value := model.get(name, known)) != known:
            raise UserError(f"its {name} is {value!r}, not {known!r}")
    return pieces, model.get("max_input_chars_per_word", 100)


class WordPieceVocabulary(seqio.Vocabulary):
    """Pieces of words (BERT, section 3), with the ids of its vocabulary file.

    A text is cut into words by a `WordCutter`, and each word into the longest pieces
    from its start. [CLS] and [SEP] in a text are text. `pieces` is a tuple of str, read
    in `file`; for the other arguments see `wordpiece_vocabulary`.
    """

    def __init__(
        self,
        file,
        pieces,
        lower_case,
        strip_accents,
        tokenize_chinese_chars,
        max_input_chars_per_word,
    ):
        super().__init__()
        self.file = file
        self.pieces = pieces
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.max_input_chars_per_word = max_input_chars_per_word

    @functools.cached_property
    def _cut(self):
        return WordCutter(
            self.lower_case, self.strip_accents, self.tokenize_chinese_chars
        )

    @functools.cached_property
    def _tokenizer(self):
        with tf.init_scope():  # It holds a constant, which graphs share.
            return tf_text.FastWordpieceTokenizer(
                list(self.pieces),
                max_bytes_per_word=4 * self.max_input_chars_per_word,
                token_out_type=tf.int32,
                no_pretokenization=True,
            )

    def special_ids(self):
        """The `SpecialIds`; ordinary ids are most of those between special pieces."""
        mask, cls, sep, unk = map(self.pieces.index, _SPECIAL)
        borders = sorted((self.pad_id, mask, cls, sep, unk, len(self.pieces)))
        gaps = itertools.pairwise(borders)
        before, end = max(gaps, key=lambda gap: gap[1] - gap[0])
        return SpecialIds(mask, cls, sep, before + 1, end)

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
        """This object, since callers ask a tokenizer for offsets."""
        return self

    def tokenize_with_offsets(self, text):
        """Cuts a text, string `[]`, into ids, int32 `[n]`.

        Returns them, and where they start and end in the text, in bytes.
        """
        words, starts, ends = self._cut(text)
        texts = tf.strings.unicode_encode(words, "UTF-8")
        too_long = words.row_lengths() > self.max_input_chars_per_word
        ids, first, after = self._tokenizer.tokenize_with_offsets(
            tf.where(too_long, "[UNK]", texts)
        )
        # Places of pieces among all words' characters, from those in bytes of a word.
        word, ids = ids.value_rowids(), ids.flat_values
        before = tf.cumsum(tf.strings.length(texts), exclusive=True)
        before = tf.gather(before, word)
        chars = words.flat_values
        sizes = tf.reduce_sum([tf.cast(chars > x, "int32") for x in _UTF8_SIZES], 0)
        places = tf.cumsum(sizes)

        def char(offsets, side):
            offsets = before + tf.cast(offsets.flat_values, "int32")
            return tf.searchsorted(places, offsets, side)

        whole = tf.gather(words.row_limits(), word) - 1
        last = tf.where(ids == self.unk_id, whole, char(after, "left"))
        return ids, tf.gather(starts, char(first, "right")), tf.gather(ends, last)

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
        made = ("_cut", "_tokenizer")
        return {k: v for k, v in vars(self).items() if k not in made}

    def __eq__(self, other):
        if not isinstance(other, WordPieceVocabulary):
            return False
        mine, theirs = self.__getstate__(), other.__getstate__()
        return {**mine, "file": None} == {**theirs, "file": None}

    __hash__ = None
