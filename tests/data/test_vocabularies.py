import io
import os
import shutil

import numpy as np
import pytest
import sentencepiece
import seqio
import tensorflow as tf

from remixer_tf.commands import run_command
from remixer_tf.data.codec import _savable
from remixer_tf.data.vocabularies import byte_vocabulary, sentencepiece_vocabulary
from remixer_tf.data.vocabulary_training import (
    read_texts,
    train_vocabulary,
    trained_vocabulary,
    vocabularies_for_a_while,
)
from remixer_tf.data.wordpiece import wordpiece_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.tasks import mini_cogs

TEXTS = ["the girl saw a dog", "the boy slept", "a girl slept near the tree"] * 5
WORDS = {word for text in TEXTS for word in text.split()}


@pytest.fixture
def words(tmp_path):
    return train_vocabulary(TEXTS, str(tmp_path / "words.model"), model_type="word")


@pytest.fixture(autouse=True, scope="module")
def tiny_task():
    """Two tasks over texts held here, and a mixture of them."""
    feature = seqio.Feature(byte_vocabulary())
    for name, features in (("tiny_both", ["inputs", "targets"]), ("tiny_one", [])):

        def dataset_fn(split, shuffle_files=False, seed=None):
            texts = ["", " "] if split == "empty" else ["Über a", "b b"]
            return tf.data.Dataset.from_tensor_slices(
                {"inputs": tf.constant(texts), "targets": tf.constant(texts)}
            )

        def tokenize(dataset, output_features, features=features):
            copy = bool(features)
            return seqio.preprocessors.tokenize(dataset, output_features, copy)

        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(dataset_fn, splits=("train", "empty")),
            preprocessors=[tokenize],
            output_features={"inputs": feature, "targets": feature},
        )
    seqio.MixtureRegistry.add("tiny_mixture", [("tiny_both", 1), ("mini_cogs", 1)])
    yield
    for name in ("tiny_both", "tiny_one"):
        seqio.TaskRegistry.remove(name)
    seqio.MixtureRegistry.remove("tiny_mixture")


def test_bytes():
    vocabulary = byte_vocabulary()
    assert vocabulary.vocab_size == 259
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.encode("aß") == [100, 198, 162]
    assert vocabulary.decode([100, 198, 162, 1, 100]) == "aß"


def test_words_have_t5_ids_and_need_no_size(words):
    tokenizer = words.tokenizer
    assert words.vocab_size == len(WORDS) + 3
    assert (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id()) == (0, 1, 2)
    assert tokenizer.bos_id() == -1
    for text in TEXTS:
        ids = words.encode(text)
        assert len(ids) == len(text.split())
        assert words.decode([*ids, 1, 0]) == text
        np.testing.assert_array_equal(words.encode_tf(text), ids)
    assert words.encode("the zebra")[1] == 2


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_give_the_text_back(tmp_path, model_type):
    path = str(tmp_path / "new" / "pieces.model")
    vocabulary = train_vocabulary(TEXTS, path, 24, model_type)
    assert vocabulary.vocab_size == 24
    assert vocabulary.decode(vocabulary.encode(TEXTS[0])) == TEXTS[0]
    assert sentencepiece_vocabulary(path).vocab_size == 24


def test_extra_ids_come_last(words):
    path = words.sentencepiece_model_file
    vocabulary = sentencepiece_vocabulary(path, extra_ids=100)
    assert vocabulary.vocab_size == words.vocab_size + 100
    assert vocabulary.encode("<extra_id_0>") == [vocabulary.vocab_size - 1]


@pytest.mark.parametrize("through_codec", [False, True])
def test_sentinels_in_texts_are_those_of_transformers(tmp_path, through_codec):
    """Parts between them are texts of their own, as T5Tokenizer 5.24 has it."""
    path = str(tmp_path / "m.model")
    train_vocabulary(TEXTS, path, 24)
    vocabulary = sentencepiece_vocabulary(path, extra_ids=3)
    if through_codec:
        vocabulary = _savable(vocabulary, [])
    parts = {
        "the <extra_id_0> girl": ["the", 0, "girl"],
        "gi<extra_id_1> rl": ["gi", 1, "rl"],
        "gi<extra_id_2>rl": ["gi", 2, "rl"],
        "<extra_id_0>": [0],
        "a  <extra_id_0><extra_id_1> b": ["a", 0, 1, "b"],
        "<extra_id_3>": ["<extra_id_3>"],  # It has three.
        "</s> <pad>": ["</s> <pad>"],
    }
    plain = sentencepiece_vocabulary(path)
    for text, expected in parts.items():
        ids = []
        for part in expected:
            last = vocabulary.vocab_size - 1
            ids += [last - part] if isinstance(part, int) else plain.encode(part)
        assert vocabulary.encode(text) == ids, text
        assert vocabulary.encode_tf(text).numpy().tolist() == ids, text
    assert vocabulary.decode([last, last - 1]) == "<extra_id_0> <extra_id_1>"


def test_sentinels_add_no_blank_that_a_vocabulary_keeps(tmp_path):
    """Sentinels between blanks have seqio's ids, and others those with blanks."""
    path, model = str(tmp_path / "m.model"), io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        vocab_size=24,
        remove_extra_whitespaces=False,
        minloglevel=1,
        **ids,
    )
    (tmp_path / "m.model").write_bytes(model.getvalue())
    vocabulary = sentencepiece_vocabulary(path, extra_ids=3)
    seqios = seqio.SentencePieceVocabulary(path, extra_ids=3)
    spaced = "<extra_id_0> a <extra_id_1> <extra_id_2> girl <extra_id_0>"
    tight = "<extra_id_0>a<extra_id_1><extra_id_2>girl<extra_id_0>"
    for text in (spaced, tight):
        assert vocabulary.encode(text) == seqios.encode(spaced)
        assert vocabulary.encode_tf(text).numpy().tolist() == seqios.encode(spaced)


def test_a_dry_run_keeps_no_vocabulary(tmp_path):
    def train():
        path = str(tmp_path / "new" / "words.model")
        return trained_vocabulary("tiny_both", path, model_type="word")

    with vocabularies_for_a_while():
        assert train().vocab_size == train().vocab_size == 3 + 3  # Über, a, b
        assert not os.listdir(tmp_path)
    assert train().vocab_size == 3 + 3
    assert os.listdir(tmp_path / "new") == ["words.model"]


def test_exactly_all_words_is_a_size_and_one_more_is_not(tmp_path):
    path = str(tmp_path / "words.model")
    size = len(WORDS) + 3
    assert train_vocabulary(TEXTS, path, size, "word").vocab_size == size
    with pytest.raises(ValueError, match=rf"{size + 1} is more.* Set it to {size} or"):
        train_vocabulary(TEXTS, path, size + 1, "word")


def test_all_words_are_taken_where_some_are_equal_once_normalized(tmp_path):
    """As the ligature fi, and what SentencePiece keeps for itself."""
    texts = ["\ufb01ne fine <unk> </s> word"]
    words = train_vocabulary(texts, str(tmp_path / "words.model"), model_type="word")
    assert words.vocab_size == len({"fine", "word"}) + 3


def test_fewer_words_than_there_are_is_reported(tmp_path, caplog):
    train_vocabulary(TEXTS, str(tmp_path / "words.model"), 5, "word")
    assert f"lacks the {len(WORDS) - 2} rarest words" in caplog.text


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sizes_that_cannot_be_say_which_can(tmp_path, model_type):
    path = str(tmp_path / "pieces.model")
    with pytest.raises(ValueError, match=r"vocab_size=500 is more.*Set it to \d+ or"):
        train_vocabulary(TEXTS, path, 500, model_type)
    with pytest.raises(ValueError, match=r"vocab_size=9 has no room.*Set it to \d+ or"):
        train_vocabulary(TEXTS, path, 9, model_type)
    for size in (None, 3):
        with pytest.raises(ValueError, match="must be more than 3"):
            train_vocabulary(TEXTS, path, size, model_type)


def test_other_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="bpe, word. Received: model_type='char'"):
        train_vocabulary(TEXTS, str(tmp_path / "x.model"), 20, "char")
    with pytest.raises(ValueError, match="must be a file"):
        train_vocabulary(TEXTS, str(tmp_path), 20)


WRONG = {
    "texts must be a list of str. Received: None": {"texts": None},
    "texts must be a list of str. Received: 'a b'": {"texts": "a b"},
    "Received: in the list, None": {"texts": ["a", None]},
    "Received: in the list, b'a'": {"texts": [b"a"]},
    "none of 0 texts has one": {"texts": []},
    "none of 2 texts has one": {"texts": ["", " "]},
    "unpaired surrogate": {"texts": ["a", "\ud800"]},
    "output must be the path": {"output": None},
    "vocab_size must be an integer": {"vocab_size": "x"},
    "vocab_size must be an integer of": {"vocab_size": 1.5},
    "an integer of at least 1. Received": {"vocab_size": "x", "model_type": "word"},
    "character_coverage must be a number": {"character_coverage": 2},
}


@pytest.mark.parametrize("message", WRONG)
def test_arguments_that_are_nothing_to_train_on(tmp_path, message):
    path = tmp_path / "x.model"
    arguments = {"texts": TEXTS, "output": str(path), "vocab_size": 20}
    with pytest.raises(UserError, match=message):
        train_vocabulary(**{**arguments, **WRONG[message]})
    assert not path.exists()


def test_texts_may_come_one_by_one(tmp_path):
    path = str(tmp_path / "x.model")
    words = train_vocabulary((text for text in TEXTS), path, model_type="word")
    assert words.vocab_size == len(WORDS) + 3


def test_vocabularies_of_equal_files_are_equal(words, tmp_path):
    """seqio compares paths: of a copy, and of a file that has changed since."""
    path, other = str(tmp_path / "copy.model"), str(tmp_path / "other.model")
    shutil.copy(words.sentencepiece_model_file, path)
    train_vocabulary(["q"], other, model_type="word")
    for added in ((), [("<new>", len(WORDS) + 3, False, False)]):
        first = sentencepiece_vocabulary(words.sentencepiece_model_file, 0, added)
        copy = sentencepiece_vocabulary(path, 0, added)
        assert first == copy
        assert first != sentencepiece_vocabulary(path, 1)
        assert first != sentencepiece_vocabulary(other)
    assert sentencepiece_vocabulary(path) != copy
    before = sentencepiece_vocabulary(path)
    shutil.copy(other, path)
    assert before != sentencepiece_vocabulary(path)


@pytest.mark.parametrize("path", ["file/a.model", "full"])
def test_where_nothing_can_be_written(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"^cannot write .*{path}: ") as error:
        train_vocabulary(["a b"], str(tmp_path / path), model_type="word")
    assert isinstance(error.value, UserError)


def test_long_texts_count_too(tmp_path):
    texts = ["a b " * 5_000 + "seldom"]
    vocabulary = train_vocabulary(texts, str(tmp_path / "m"), model_type="word")
    assert vocabulary.encode("seldom") != [2]


def test_missing_files_name_what_is_there(words, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"wrod.*words\.model.*train_vocab"):
        sentencepiece_vocabulary(str(tmp_path / "wrod.model"))
    for make in (sentencepiece_vocabulary, wordpiece_vocabulary):
        with pytest.raises(FileNotFoundError, match="is a folder. Name a vocab"):
            make(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no vocabulary file"):
        wordpiece_vocabulary(str(tmp_path / "vocab.txt"))
    with pytest.raises(FileNotFoundError, match="no folder"):
        sentencepiece_vocabulary(str(tmp_path / "nowhere" / "words.model"))
    with pytest.raises(FileNotFoundError, match=r"words\.model"):
        sentencepiece_vocabulary(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"no model", b"\0\1\2" * 100])
def test_files_that_are_no_models(tmp_path, content):
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.model' is not a whole Sentence.* anew"):
        sentencepiece_vocabulary(str(path))


def test_a_model_that_was_cut_is_refused_wherever_the_cut_is(tmp_path):
    """SentencePiece loads a file that ends between two pieces."""
    whole, loaded = io.BytesIO(), 0
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=whole,
        vocab_size=len(WORDS) + 3,
        model_type="word",
        normalization_rule_name="identity",  # The file is small without its table.
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    )
    whole = whole.getvalue()
    for size in range(len(whole)):
        path = tmp_path / f"{size}.model"
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="not a whole SentencePiece.*train it an"):
            sentencepiece_vocabulary(str(path))
        try:
            processor = sentencepiece.SentencePieceProcessor()
            loaded += processor.LoadFromSerializedProto(whole[:size])
        except (RuntimeError, OSError):
            pass
    assert loaded > 3
    path.write_bytes(whole)
    assert sentencepiece_vocabulary(str(path)).vocab_size == len(WORDS) + 3


def test_training_that_cannot_be_written_leaves_the_earlier_file(tmp_path, small_files):
    path = tmp_path / "words.model"
    train_vocabulary(TEXTS, str(path), model_type="word")
    before = path.read_bytes()
    with small_files(1000), pytest.raises(OSError, match="cannot write .*too large"):
        train_vocabulary(TEXTS, str(path), 20, "bpe")
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_other_special_ids_are_refused(tmp_path):
    prefix = str(tmp_path / "default")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=prefix,
        vocab_size=12,
        model_type="word",
    )
    with pytest.raises(ValueError, match=r"pad 0, EOS 1.*Received: \(-1, 2, 0\)"):
        sentencepiece_vocabulary(f"{prefix}.model")


def test_read_texts():
    assert read_texts("tiny_both") == ["Über a", "Über a", "b b", "b b"]
    assert read_texts("tiny_both", features=["targets"]) == ["Über a", "b b"]
    assert read_texts("tiny_both", num_examples=1) == ["Über a", "Über a"]
    mixed = read_texts("tiny_mixture", num_examples=2)
    assert len(mixed) == 8
    assert set(mixed) >= set(read_texts("tiny_both"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "tiny_boths"}, "Nearest: tiny_both"),
        ({"task": "tiny_both", "split": "dev"}, "no split 'dev'. It has: empty, train"),
        ({"task": "tiny_both", "split": "empty"}, "has no text"),
        ({"task": "tiny_one"}, "tiny_one keeps no text of inputs, targets"),
        (
            {"task": "tiny_both", "features": ["inputs", "answer"]},
            "keeps no text of answer. It keeps that of: inputs, targets",
        ),
    ],
)
def test_texts_that_cannot_be_read(arguments, message):
    with pytest.raises(ValueError, match=message):
        read_texts(**arguments)


@pytest.fixture
def train_by_command(capsys):
    def run(*arguments):
        run_command("train_vocabulary", [*arguments])
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_words_of_mini_cogs_write_every_split(train_by_command, tmp_path):
    path = f"{tmp_path}/words.model"
    out = train_by_command("--task=mini_cogs", "--model_type=word", f"--output={path}")
    words = sentencepiece_vocabulary(path)
    assert f"{words.vocab_size} pieces, word" in out
    assert "inputs: 16760 texts" in out
    splits = mini_cogs.generate()
    for split in ("dev", "test", "gen"):
        for example in splits[split]:
            for text in (example.sentence, example.logical_form):
                assert words.decode(words.encode(text)) == text


def test_the_command_tells_what_is_wrong(train_by_command, tmp_path):
    path = f"{tmp_path}/words.model"
    with pytest.raises(ValueError, match="No task or mixture .* mini_cogs"):
        train_by_command("--task=mini_cog", "--vocab_size=100", f"--output={path}")
    with pytest.raises(SystemExit) as end:
        train_by_command("--help")
    assert end.value.code == 0


def test_a_word_that_bpe_cannot_number_is_refused(tmp_path):
    """SentencePiece would end the process: its positions are 16-bit numbers.

    NFKC makes four characters of U+337F.
    """
    path = str(tmp_path / "pieces.model")
    for word, length in (("z" * 65_536, "65,536"), ("\u337f" * 16_384, "65,536")):
        with pytest.raises(ValueError, match=f"text 2 has a word of {length} char"):
            train_vocabulary(["a b", word], path, 12, "bpe")
    words = ["ab cd ef"] * 3 + ["z" * 65_535]
    assert train_vocabulary(words, path, 12, "bpe").vocab_size == 12


def test_texts_with_u2585_are_trained_on(tmp_path, caplog):
    """SentencePiece reserves the character, and would leave out the whole text."""
    path = str(tmp_path / "words.model")
    texts = ["the girl", "a dog\u2585 slept"]
    words = train_vocabulary(texts, path, model_type="word")
    assert 2 not in words.encode("the girl a dog slept")
    assert words.vocab_size == 3 + 5
    assert "1 of 2 texts have the character U+2585" in caplog.text
