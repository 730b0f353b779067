"""Tokens that were added to a tokenizer, and tokenizer.json, are read as transformers.

The ids are those of transformers 5.24's T5Tokenizer for these pieces and tokens, which
was asked once; the answers of `decode` too.
"""

import base64
import json

import pytest
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.data.codec import Codec
from remixer_tf.data.vocabularies import (
    describe_vocabularies,
    extra_id_range,
    sentencepiece_vocabulary,
)
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.weights.formats import read_source
from remixer_tf.weights.run import run_gin
from tests.settings import part_of
from tests.weights import numpy_bert, numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")
PIECES = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "c", "▁de", "f", "g", "h"]
TOKENS = ["{", "}", "\n", "<sql>"]  # 13 to 16, after two extra ids
# {text: (ids, the text that they decode to)}, of tokens that are found in the text.
RAW = {
    "abc de { f}g\n h": (
        [3, 4, 5, 6, 7, 13, 3, 8, 14, 3, 9, 15, 3, 10],
        "abc de{ f} g\n h",
    ),
    "{a": ([13, 3, 4], "{ a"),
    "a\n\nb": ([3, 4, 15, 15, 3, 5], "a\n\n b"),
    "<sql>abc": ([16, 3, 4, 5, 6], "<sql> abc"),
    "ab<sql>": ([3, 4, 5, 16], "ab<sql>"),
    "  {  } ": ([13, 14], "{}"),
    "": ([], ""),
    "x ｛y\té": ([3, 2, 3, 2, 3, 2], " ⁇   ⁇   ⁇ "),
}
# Of tokens that are found in the normalized text, where a line break is a blank.
NORMALIZED = {
    "abc de { f}g\n h": (
        [3, 4, 5, 6, 15, 7, 15, 13, 15, 3, 8, 14, 3, 9, 15, 15, 3, 10],
        "abc  de {  f} g   h",
    ),
    "{a": ([13, 3, 4], "{ a"),
    "a\n\nb": ([3, 4, 15, 15, 3, 5], "a   b"),
    "  {  } ": ([15, 15, 13, 15, 15, 14, 15], "  {  } "),
    "x ｛y\té": ([3, 2, 15, 13, 3, 2, 15, 3, 2], " ⁇  {  ⁇    ⁇ "),
}
# Without a table of characters, as transformers 5 writes T5's: texts are cut at white
# space, and no character becomes another.
WHITE_SPACE = (
    "\t\n\v\f\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
CUT = {
    "a\tbc de\n h": [3, 4, 3, 5, 6, 7, 3, 10],
    "a\r\n\x85 b": [3, 4, 3, 5],
    "\ta ": [3, 4],
    "a".join(WHITE_SPACE): [3, 4] * (len(WHITE_SPACE) - 1),
    "a\x1cb\u200bc\ufeff": [3, 4, 2, 5, 2, 6, 2],
    "\ufb01\t\xe9": [3, 2, 3, 2],
    "a\u2581b": [3, 4, 3, 5],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A SentencePiece model of `PIECES` that normalizes as T5's."""
    path = tmp_path_factory.mktemp("pieces") / "a.model"
    train_vocabulary(["a b c d"] * 9, str(path), model_type="word")
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    types = [piece.type for piece in proto.pieces[:3]]
    del proto.pieces[:]
    for place, piece in enumerate(PIECES):
        proto.pieces.add(piece=piece, score=-1, type=types[place] if place < 3 else 1)
    return proto


def tokenizer_json(proto, normalizer=None, **content):
    """What transformers 5 writes, with both extra ids among the pieces."""
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    pieces = [*PIECES, "<extra_id_1>", "<extra_id_0>"]
    return {
        "added_tokens": [],
        "normalizer": normalizer
        or {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[x, -1.0] for x in pieces]},
        **content,
    }


def token(text, number, normalized=False, special=False, **other):
    return {
        "id": number,
        "content": text,
        "normalized": normalized,
        "special": special,
        **other,
    }


def write(folder, files, model=None, weights=None):
    weights = weights or numpy_t5.made_up_weights(layers=(2, 0))
    published.write_hugging_face(folder, weights)
    settings = {"extra_ids": 2}
    for name, content in files.items():
        if name == "tokenizer_config.json":
            content = settings = settings | content
        (folder / name).write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if model is not None:
        (folder / "spiece.model").write_bytes(model.SerializeToString())


def files_of(place, model, normalized=False):
    """The files that name `TOKENS` in one of the places where transformers does."""
    tokens = [token(x, 13 + i, normalized) for i, x in enumerate(TOKENS)]
    if place == "tokenizer.json":
        return {place: tokenizer_json(model, added_tokens=tokens)}
    if place == "tokenizer_config.json":
        decoder = {str(x.pop("id")): x for x in tokens}
        return {place: {"added_tokens_decoder": decoder}}
    return {place: {x: 13 + i for i, x in enumerate(TOKENS)}}  # always normalized


def vocabulary_of(folder):
    source = read_source(str(folder))
    assert not source.remarks()
    return sentencepiece_vocabulary(
        source.vocabulary, source.extra_ids, source.added_tokens
    )


@pytest.mark.parametrize(
    "place, normalized",
    [
        ("tokenizer.json", False),
        ("tokenizer.json", True),
        ("tokenizer_config.json", False),
        ("added_tokens.json", True),
    ],
)
def test_added_tokens(tmp_path, model, place, normalized):
    alone = place == "tokenizer.json"  # as transformers 5 writes it: no spiece.model
    files = files_of(place, model, normalized)
    write(tmp_path, files, None if alone else model)
    vocabulary = vocabulary_of(tmp_path)
    assert vocabulary.vocab_size == 17 and extra_id_range(vocabulary) == range(11, 13)
    for text, (ids, decoded) in (NORMALIZED if normalized else RAW).items():
        assert vocabulary.encode(text) == ids, text
        assert vocabulary.decode(ids) == decoded, text


def test_white_space_without_a_table_of_characters(tmp_path, model):
    write(tmp_path, {FILE: tokenizer_json(model) | {"normalizer": None}})
    vocabulary = vocabulary_of(tmp_path)
    assert {text: vocabulary.encode(text) for text in CUT} == CUT


def test_tokens_with_the_ids_of_pieces_and_without_ids(tmp_path, model):
    config = {
        "added_tokens_decoder": {"4": token("a", 4), "13": token("ab", 13)},
        "additional_special_tokens": ["<new>", "<extra_id_0>", "ab"],
    }
    write(tmp_path, {"tokenizer_config.json": config}, model)
    vocabulary = vocabulary_of(tmp_path)
    assert vocabulary.vocab_size == 15
    assert vocabulary.encode("cabac<new>") == [3, 6, 13, 4, 3, 6, 14]
    assert [x.special for x in vocabulary.added_tokens] == [False, False, True]


CONFIG, FILE = "tokenizer_config.json", "tokenizer.json"


@pytest.mark.parametrize(
    "files, message",
    [
        ({"added_tokens.json": {"{": 14}}, "'{' was added as 14. Expected: 13"),
        (
            {"added_tokens.json": {"<extra_id_0>": 13}},
            "'<extra_id_0>' as 13. Expected: 12",
        ),
        (
            {
                "added_tokens.json": {"{": 13},
                CONFIG: {"added_tokens_decoder": {"14": token("{", 14)}},
            },
            "have '{' as 14 and, in added_tokens.json, as 13",
        ),
        (
            {CONFIG: {"added_tokens_decoder": {"13": token("{", 13, lstrip=True)}}},
            "'{' with lstrip",
        ),
        ({CONFIG: {"added_tokens_decoder": {"x": token("{", 1)}}}, "no id of"),
        ({CONFIG: {"added_tokens_decoder": [1]}}, "must be an object"),
        ({CONFIG: {"eos_token": "<end>"}}, "eos_token in tokenizer_config.json must"),
        ({"special_tokens_map.json": {"pad_token": "[PAD]"}}, "pad_token in special_"),
        ({CONFIG: {"tokenizer_class": "LlamaTokenizer"}}, "tokenizer_class must be"),
        ({CONFIG: {"truncation_side": "left"}}, "truncation_side must be right"),
        ({CONFIG: {"sp_model_kwargs": {"nbest_size": 2}}}, "sp_model_kwargs must be"),
        ({CONFIG: {"extra_ids": 3}, FILE: {}}, "tokenizer.json has 2 extra ids"),
        ({FILE: {"normalizer": {"type": "Lowercase"}}}, "normalizer in .*Lowercase"),
        ({FILE: {"pre_tokenizer": {"type": "Digits"}}}, "pre_tokenizer .*Digits"),
        ({FILE: {"model": {"type": "BPE"}}}, "type of the model .* be Unigram.*BPE"),
        ({FILE: {"model": {"vocab": [["a", 1]], "unk_id": 0}}}, "unk_id of the model"),
        ({FILE: {"model": {"vocab": 3}}}, "no tokenizer.json of a Unigram model"),
    ],
)
def test_what_tokenizers_say_and_the_vocabulary_here_does_not(
    tmp_path, model, files, message
):
    alone = FILE in files
    if alone:
        files = files | {FILE: tokenizer_json(model, **files[FILE])}
    write(tmp_path, files, None if alone else model)
    with pytest.raises(ValueError, match=message) as error:
        vocabulary_of(tmp_path)
    assert "\n" not in str(error.value)


def test_pieces_of_two_files_must_agree(tmp_path, model):
    content = tokenizer_json(model)
    write(tmp_path, {FILE: content}, model)
    assert vocabulary_of(tmp_path).encode("{a de") == [3, 2, 4, 7]
    content["model"]["vocab"][4][0] = "z"
    write(tmp_path, {FILE: content}, model)
    with pytest.raises(ValueError, match="differ in the piece 'a'. Remove the file"):
        vocabulary_of(tmp_path)


def test_vocabularies_that_take_no_tokens_refuse_them(tmp_path):
    numpy_bert.write(tmp_path, "BertModel", numpy_bert.made_up_weights("BertModel"))
    path = tmp_path / "added_tokens.json"
    path.write_text('{"[MASK]": 4}')
    read_source(str(tmp_path))
    path.write_text('{"[NEW]": 13}')
    with pytest.raises(ValueError, match=r"added tokens: '\[NEW\]'. A .* of WordPiece"):
        read_source(str(tmp_path))
    write(tmp_path, {CONFIG: {"tokenizer_class": "ByT5Tokenizer"}})
    with pytest.raises(ValueError, match=r"added tokens: '\[NEW\]'. A .* of bytes"):
        read_source(str(tmp_path))


@pytest.mark.slower
def test_exports_answer_with_them_and_go_back_to_hugging_face(tmp_path, model):
    questions, answers, paths = ["a { c\n", "f"], [], []
    for place in (FILE, CONFIG):
        folder = tmp_path / place.partition(".")[0]
        weights = numpy_t5.made_up_weights(seed=len(paths))
        write(
            folder, files_of(place, model), model if place == CONFIG else None, weights
        )
        lengths = "FEATURE_LENGTHS = {'inputs': 16, 'targets': 6}"
        run = rt.load(folder, bindings=[lengths])
        answers.append(run.generate(questions))
        paths.append(run.export(folder / "saved"))
        back = run.export(folder / "back", format="huggingface")
        again = read_source(str(back))
        expected = run.task.output_features["inputs"].vocabulary
        assert again.added_tokens == expected.added_tokens and again.extra_ids == 2
        described = describe_vocabularies(run.task)["inputs"]
        assert described["added_tokens"][2] == ["\n", 15, False, False]
        assert extra_id_range(expected)[-1] == 12
    # Two models with several vocabularies each in one process.
    exports = [tf.saved_model.load(str(path)) for path in paths]
    for export, expected in zip(exports, answers, strict=True):
        answer = export.signatures["serving_default"](inputs=tf.constant(questions))
        assert [x.decode() for x in answer["outputs"].numpy()] == expected


def test_a_text_that_is_cut_keeps_eos(tmp_path, model):
    """As transformers' tokenizer(text, truncation=True, max_length=4) has it."""
    write(tmp_path, {}, model)
    file = tmp_path / "imported.gin"
    file.write_text(run_gin(read_source(str(tmp_path))))
    settings = configuration.read([str(file)], [])
    task = part_of(settings, "Run")().get_task()
    for setting, ids in ((None, [3, 4, 5, 1]), (False, [3, 4, 5, 6])):
        if setting is not None:  # T5's own training
            settings = configuration.read(
                [str(file)], [f"table_task.eos_after_trim = {setting}"]
            )
            task = part_of(settings, "Run")().get_task()
        read, cut = Codec(task, {"inputs": 4}).read("inputs", tf.constant(["abc de"]))
        assert read.numpy().tolist() == [ids] and cut.numpy().tolist() == [True]
