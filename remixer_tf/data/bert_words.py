"""The words of BERT's basic tokenizer, in a graph."""

import functools
import itertools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Kinds of characters, bits of an int32. A canonical combining class is added above.
_DROPPED, _BLANK, _CHINESE, _PUNCTUATION, _ACCENT, _CASED, _IGNORABLE = (
    1 << bit for bit in range(7)
)
_CLASS = 256

# BERT's Chinese characters: the first and the last of blocks of CJK ideographs.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_UNNAMED = ("Cn", "Co", "Cs")  # not assigned, of private use, half of a pair
_SIGMA, _FINAL_SIGMA = map(ord, "Σς")


class WordCutter:
    """Cuts texts into words, as `BasicTokenizer` of google-research/bert does.

    NUL, U+FFFD, control and format characters (categories Cc and Cf, but for tab and
    line breaks) are left out, so they part no word. Blanks do. Punctuation (category P,
    and all of ASCII but letters and digits) is a word of one character.

    Python's `unicodedata` says what a character is, as in the original. An export keeps
    those tables. transformers' tokenizers differ at few characters: those of private
    use, those newer than Unicode 8, and capital sigmas at the end of a word.

    Args:
        lower_case: bool, whether words lose capitals.
        strip_accents: bool, whether they are decomposed (NFD) and lose accents (Mn).
        tokenize_chinese_chars: bool, whether each Chinese character is a word.
    """

    def __init__(self, lower_case, strip_accents, tokenize_chinese_chars):
        self._lower_case = lower_case
        self._strip_accents = strip_accents
        self._alone = _CHINESE if tokenize_chinese_chars else 0
        with tf.init_scope():  # constants, which graphs share
            self._first, self._kinds = map(tf.constant, _kinds())
            made = _rewritten(lower_case, strip_accents)
            self._made = made and _Rewritten(*map(tf.constant, made))

    def __call__(self, text):
        """Cuts a text, string `[]`, UTF-8.

        Returns the words, code points in ragged int32 `[words, (characters)]`; and
        where in the text, in bytes, the characters that became these start and end,
        int32 `[all characters]`. Bytes that are not UTF-8 are left out.
        """
        chars, starts = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        starts = tf.cast(starts, "int32")
        ends = tf.concat([starts[1:], [tf.strings.length(text)]], axis=0)
        kinds = self._kinds_of(chars)
        read = tf.where(kinds & _DROPPED == 0)[:, 0]
        chars, starts, ends, kinds = (
            tf.gather(values, read) for values in (chars, starts, ends, kinds)
        )
        if self._lower_case:
            chars = tf.where(_ends_a_word(chars, kinds), _FINAL_SIGMA, chars)
        source = tf.range(tf.size(chars))
        if self._made:
            chars, source = _rewrite(self._made, chars, source)
        made_kinds = self._kinds_of(chars)
        if self._strip_accents:
            order = _canonical_order(made_kinds)
            chars, source, made_kinds = (
                tf.gather(values, order) for values in (chars, source, made_kinds)
            )
        kinds = tf.gather(kinds, source)
        blank = kinds & _BLANK > 0
        alone = (kinds & self._alone) | (made_kinds & _PUNCTUATION) > 0
        # Words have rising numbers: even ones, odd ones those of one character.
        number = 2 * tf.cumsum(tf.cast(blank | alone, "int32"))
        number -= tf.cast(alone, "int32")
        part = ~blank
        if self._strip_accents:
            part &= made_kinds & _ACCENT == 0
        part = tf.where(part)[:, 0]
        source = tf.gather(source, part)
        sizes = tf.unique_with_counts(tf.gather(number, part)).count
        words = tf.RaggedTensor.from_row_lengths(tf.gather(chars, part), sizes)
        return words, tf.gather(starts, source), tf.gather(ends, source)

    def _kinds_of(self, chars):
        run = tf.searchsorted(self._first, chars, side="right") - 1
        return tf.gather(self._kinds, run)


class _Rewritten(NamedTuple):
    """Characters that change: each `char` becomes `made[start : start + size]`."""

    char: tf.Tensor  # int32 [changed characters], rising
    start: tf.Tensor
    size: tf.Tensor
    made: tf.Tensor


def _rewrite(table, chars, source):
    """Rewrites code points by a `_Rewritten`, and repeats their sources as needed."""
    row = tf.minimum(tf.searchsorted(table.char, chars), tf.size(table.char) - 1)
    changes = tf.gather(table.char, row) == chars
    size = tf.where(changes, tf.gather(table.size, row), 1)
    place = tf.repeat(source, size)
    within = tf.range(tf.size(place)) - tf.gather(
        tf.cumsum(size, exclusive=True), place
    )
    made = tf.gather(table.made, tf.gather(tf.gather(table.start, row), place) + within)
    return tf.where(tf.gather(changes, place), made, tf.gather(chars, place)), place


def _ends_a_word(chars, kinds):
    """Where Unicode's Final_Sigma holds: which capital sigmas become ς."""
    # After a cased letter and before none, where case-ignorable ones do not count.
    counted = tf.where(kinds & _IGNORABLE == 0)[:, 0]
    cased = tf.gather(kinds, counted) & _CASED > 0
    cased = tf.concat([[False], cased, [False]], axis=0)
    places = tf.range(tf.size(chars), dtype="int64")
    before = tf.gather(cased, tf.searchsorted(counted, places))
    after = tf.gather(cased, tf.searchsorted(counted, places, side="right") + 1)
    return (chars == _SIGMA) & before & ~after


def _canonical_order(kinds):
    """Unicode's order of combining characters: by their classes, after each starter."""
    combining = kinds // _CLASS
    starters = tf.cumsum(tf.cast(combining == 0, "int32"))
    return tf.argsort(_CLASS * starters + combining, stable=True)


@functools.cache
def _kinds():
    """The kinds of all code points: the first of each run of equal ones, and kinds."""
    of_category = dict.fromkeys(("Cc", "Cf"), _DROPPED) | {"Zs": _BLANK, "Mn": _ACCENT}
    of_category |= {f"P{kind}": _PUNCTUATION for kind in "cdefios"}
    kinds = np.zeros(sys.maxunicode + 1, "int32")
    for char, category in _assigned().items():
        kind = of_category.get(category, 0) + _CLASS * unicodedata.combining(char)
        if char.isspace() and (char in "\t\n\r" or kind != _DROPPED):
            kind = _BLANK  # as `str.split` has it
        elif char.isascii() and char.isprintable() and not char.isalnum():
            kind = _PUNCTUATION  # all symbols
        kinds[ord(char)] = kind
    kinds[[0, 0xFFFD]] = _DROPPED
    for first, last in _IDEOGRAPHS:
        kinds[first : last + 1] |= _CHINESE
    # Python keeps to itself which characters are cased and which case-ignorable.
    assigned = [char for char in _assigned() if not char.isspace()]
    lower = "".join(f"{char}Σ A{char}Σ " for char in assigned).lower().split()
    after_it, after_a = ([word[-1] == "ς" for word in lower[i::2]] for i in (0, 1))
    for char, cased, final in zip(assigned, after_it, after_a, strict=True):
        kinds[ord(char)] |= _CASED if cased else _IGNORABLE * final
    first = np.flatnonzero(np.diff(kinds, prepend=-1)).astype("int32")
    return first, kinds[first]


@functools.cache
def _rewritten(lower_case, strip_accents):
    """A `_Rewritten` of NumPy arrays; None if all characters stay as they are."""

    def become(char):
        char = char.lower() if lower_case else char
        return unicodedata.normalize("NFD", char) if strip_accents else char

    changed = {char: made for char in _assigned() if (made := become(char)) != char}
    if not changed:
        return None
    size = np.array([len(made) for made in changed.values()], "int32")
    made = np.array([*map(ord, "".join(changed.values()))], "int32")
    char = np.array([*map(ord, changed)], "int32")
    return _Rewritten(char, np.cumsum(size, dtype="int32") - size, size, made)


@functools.cache
def _assigned():
    """{character: its category} of all characters that Unicode names."""
    # It has none in planes 4 to 13, and 15 and 16 are for private use.
    codes = itertools.chain(range(0x40000), range(0xE0000, 0xF0000))
    categories = ((char, unicodedata.category(char)) for char in map(chr, codes))
    return {char: name for char, name in categories if name not in _UNNAMED}
