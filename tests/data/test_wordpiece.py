"""WordPiece cuts all of Unicode as BERT's own tokenization.py does."""

import json
import random
import sys
import unicodedata

import pytest
import tensorflow as tf

from remixer_tf.data.bert_words import WordCutter
from remixer_tf.data.wordpiece import wordpiece_vocabulary
from remixer_tf.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BLOCKS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)]
BLOCKS += [(0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def words_of(text, lower_case, strip_accents, chinese):
    """BERT's basic tokenizer, by the steps that its README and code describe."""
    category, clean = unicodedata.category, []
    for char in text:  # invalid characters go, blanks become spaces
        if char in "\t\n\r" or category(char) == "Zs":
            clean.append(" ")
        elif char in "\0\ufffd" or category(char) in ("Cc", "Cf"):
            pass
        elif chinese and any(a <= ord(char) <= b for a, b in BLOCKS):
            clean.append(f" {char} ")
        else:
            clean.append(char)
    words = []
    for word in "".join(clean).split():
        if lower_case:
            word = word.lower()
        if strip_accents:
            word = unicodedata.normalize("NFD", word)
            word = "".join(char for char in word if category(char) != "Mn")
        for char in word:  # punctuation marks are words
            symbol = char.isascii() and not char.isalnum()
            mark = symbol or category(char).startswith("P")
            words.append(f" {char} " if mark else char)
        words.append(" ")
    return "".join(words).split()


def pieces_of(word, pieces, longest):
    """BERT's WordPiece: the longest piece first, from the left."""
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = "##" * (start > 0) + word[start:end]
            if piece in pieces:
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        start = end
    return found if len(word) <= longest else ["[UNK]"]


def vocabulary_of(tmp_path, pieces, **settings):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *pieces]) + "\n")
    return wordpiece_vocabulary(str(path), **settings)


def cut(text, *settings):
    words, starts, ends = WordCutter(*settings)(tf.constant(text))
    texts = tf.strings.unicode_encode(words, "UTF-8").numpy()
    return [word.decode() for word in texts], starts.numpy(), ends.numpy()


def some_of_unicode():
    """All characters but most of the ideographs, syllables and unnamed ones."""
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category not in ("Lo", "Cn", "Co", "Cs"):
            yield chr(code)
        elif code % 97 == 0 and category != "Cs":
            yield chr(code)


@pytest.mark.parametrize("settings", [(True, True, True), (False, False, False)])
def test_words_of_unicode(settings):
    text = " ".join(f"A{char}b {char}Σ" for char in some_of_unicode())
    assert cut(text, *settings)[0] == words_of(text, *settings)


def test_words_of_rare_sequences():
    """Sigmas at the end of words, and the order of combining characters."""
    rng = random.Random(0)
    marks = [*map(chr, range(0x300, 0x370)), "\u302e", "\U0001d16d", "\U0001d165"]
    chars = ["Σ", "ΣΑ", "a", "B.", "'", "\xad", "\u200d", "İ", "中", "한", "ﬁ", *marks]
    words = ("".join(rng.choices(chars, k=rng.randint(1, 9))) for _ in range(3000))
    text = " ".join(words)
    for settings in ((True, True, True), (True, False, True), (False, True, False)):
        assert cut(text, *settings)[0] == words_of(text, *settings)


def test_words_as_transformers_has_them():
    """Recorded of transformers 5.24's `BertTokenizer` and its settings."""
    text = "Der Ärger\u200b\xad über\x85 die 中文 ca\u200dfe\u0301 می\u200cخواهم a≠b"
    lower = "der arger uber die 中 文 cafe میخواهم a = b".split()
    assert cut(text, True, True, True)[0] == lower
    accents = "der ärger über die 中文 cafe\u0301 میخواهم a≠b".split()
    assert cut(text, True, False, False)[0] == accents
    cased = "Der Arger uber die 中文 cafe میخواهم a = b".split()
    assert cut(text, False, True, False)[0] == cased


def test_ids(tmp_path):
    rng = random.Random(0)
    letters = "abя한ไ\U0001d400"
    texts = {"".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(120)}
    pieces = sorted({"##" * rng.randint(0, 1) + text for text in texts})
    vocabulary = vocabulary_of(tmp_path, pieces, lower_case=False)
    known = [*SPECIAL, *pieces]
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(2000)]
    expected = [p for word in words for p in pieces_of(word, known, 100)]
    assert [known[i] for i in vocabulary.encode(" ".join(words))] == expected


@pytest.mark.parametrize("letter", ["a", "я", "ไ", "\U0001d400"])
def test_a_word_has_a_hundred_characters(tmp_path, letter):
    pieces = [letter, f"##{letter}"]
    vocabulary = vocabulary_of(tmp_path, pieces)
    size = len(letter.encode())
    for length in (99, 100, 101, 400):
        text = f"{letter * length} {letter}"
        ids, starts, ends = map(
            list, vocabulary.tokenize_with_offsets(tf.constant(text))
        )
        known = [*SPECIAL, *pieces]
        expected = [*pieces_of(letter * length, known, 100), letter]
        assert [known[i] for i in ids] == expected
        if length > 100:  # the unknown word stands where it stands
            assert (starts[0], ends[0]) == (0, size * length)
        assert (starts[-1], ends[-1]) == (size * length + 1, len(text.encode()))


def test_a_limit_of_ones_own(tmp_path):
    """tokenizer.json has it; 34 Thai letters are 102 bytes."""
    text = f"{'ไ' * 34} {'ไ' * 7}"
    pieces = ["ไ", "##ไ"]
    assert (
        vocabulary_of(tmp_path, pieces).encode(text) == [5] + [6] * 33 + [5] + [6] * 6
    )
    seven = vocabulary_of(tmp_path, pieces, max_input_chars_per_word=7)
    assert seven.encode(text) == [1, 5, *[6] * 6]
    path = tmp_path / "tokenizer.json"
    model = {"vocab": {piece: i for i, piece in enumerate([*SPECIAL, *pieces])}}
    path.write_text(json.dumps({"model": {**model, "max_input_chars_per_word": 7}}))
    assert wordpiece_vocabulary(str(path)) == seven
    for name, value in {
        "max_input_chars_per_word": 0,
        "continuing_subword_prefix": "@@",
        "unk_token": "<unk>",
    }.items():
        path.write_text(json.dumps({"model": {**model, name: value}}))
        with pytest.raises(UserError, match=name):
            wordpiece_vocabulary(str(path))


def test_settings_make_other_vocabularies(tmp_path):
    one = vocabulary_of(tmp_path, ["e", "é", "中", "##中"])
    text = "É 中中"
    assert one.encode(text) == [5, 7, 7]
    for settings, ids in (
        ({"strip_accents": False}, [6, 7, 7]),
        ({"tokenize_chinese_chars": False}, [5, 7, 8]),
        ({"lower_case": False}, [1, 7, 7]),
    ):
        other = vocabulary_of(tmp_path, ["e", "é", "中", "##中"], **settings)
        assert other.encode(text) == ids and other != one


def test_special_pieces_may_stand_anywhere(tmp_path):
    """Ordinary ids are those that masking may choose."""
    for pieces, first, end in (
        ("[PAD] a [UNK] [CLS] [SEP] [MASK] b c", 6, 8),  # as BERT uncased has them
        ("[PAD] [UNK] [CLS] [SEP] a b c [MASK]", 4, 7),
    ):
        path = tmp_path / "vocab.txt"
        path.write_text(pieces.replace(" ", "\r\n"))
        special = wordpiece_vocabulary(str(path)).special_ids()
        assert special.mask == pieces.split().index("[MASK]")
        assert (special.first_ordinary, special.end_ordinary) == (first, end)


def test_offsets_count_the_bytes_of_the_text(tmp_path):
    """Also after bytes that are not UTF-8, and around what is left out."""
    vocabulary = vocabulary_of(tmp_path, ["cafe", "##s", "中", "x"])
    text = b"\xff CA\xc2\xadF\xc3\x89s\xe2\x80\x8b\xe4\xb8\xad\xffx"
    ids, starts, ends = vocabulary.tokenize_with_offsets(tf.constant(text))
    assert ids.numpy().tolist() == [5, 6, 7, 8]
    found = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert found == [b"CA\xc2\xadF\xc3\x89", b"s", b"\xe4\xb8\xad", b"x"]
