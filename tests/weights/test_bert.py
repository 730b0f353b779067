"""Hugging Face's BERT gives the logits of its equations, and reads WordPiece."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf.commands import run_command
from remixer_tf.data.wordpiece import wordpiece_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.weights import formats
from tests.weights import numpy_bert
from tests.weights.test_importing import imported

pytestmark = pytest.mark.usefixtures("clear_gin")
TOKENS = np.array([[2, 5, 8, 10, 3, 6, 7, 9, 3], [2, 11, 5, 3, 0, 0, 0, 0, 0]])
TYPES = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1], [0] * 9])
BATCH = {
    "encoder_input_tokens": TOKENS.astype("int32"),
    "encoder_token_types": TYPES.astype("int32"),
}


@pytest.mark.parametrize(
    "kind",
    ["BertForMaskedLM", "BertForSequenceClassification", "BertForQuestionAnswering"],
)
def test_logits(tmp_path, kind):
    weights = numpy_bert.made_up_weights(kind)
    written = dict(weights)
    if kind == "BertForMaskedLM":  # as the first checkpoints are
        table = weights["bert.embeddings.word_embeddings.weight"]
        written["cls.predictions.decoder.weight"] = table
        written["cls.seq_relationship.weight"] = np.zeros((2, 8), "float32")
        for old, new in (("LayerNorm.weight", "gamma"), ("LayerNorm.bias", "beta")):
            for name in [name for name in written if name.endswith(old)]:
                renamed = name[: name.rindex(".") + 1] + new
                written[renamed] = written.pop(name)
    config = {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}}
    numpy_bert.write(tmp_path, kind, written, **config)
    received = np.array(imported(tmp_path, tmp_path)(BATCH))
    expected = numpy_bert.logits(kind, weights, TOKENS, TYPES)
    if kind == "BertForQuestionAnswering":  # padding begins and ends no answer
        padding = np.broadcast_to((TOKENS == 0)[:, None], expected.shape)
        assert (received[padding] < -1e8).all()
        expected = np.where(padding, received, expected)
    np.testing.assert_allclose(received, expected, atol=2e-5)


@pytest.mark.slow
def test_a_classifier_and_an_encoder_read_texts(tmp_path):
    kind = "BertForSequenceClassification"
    weights = numpy_bert.made_up_weights(kind)
    labels = ["no\nimport os", "yes'", "perhaps"]  # a stranger's
    config = {"id2label": dict(enumerate(labels))}
    numpy_bert.write(tmp_path, kind, weights, **config)
    run = rt.load(tmp_path)
    # [CLS] the ##s cafe [SEP] un ##able ! [SEP], and [CLS] 中 the [SEP]
    found = run.classify([("Thes café", "UNABLE!"), "中the"])
    logits = numpy_bert.logits(kind, weights, TOKENS, TYPES)[:, 0]
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, one in zip(expected, found, strict=True):
        np.testing.assert_allclose(one.probabilities, row, atol=1e-5)
        assert one.label == labels[row.argmax()]
    weights = numpy_bert.made_up_weights("BertModel")
    numpy_bert.write(tmp_path / "model", "BertModel", weights)
    received = rt.load(tmp_path / "model").embed(["中the"])
    encoded = numpy_bert.encode(weights, TOKENS[1:], TYPES[1:])
    np.testing.assert_allclose(received, encoded[:, :4].mean(1), atol=1e-5)


@pytest.mark.slow
def test_questions_are_answered_by_spans(tmp_path):
    kind = "BertForQuestionAnswering"
    weights = numpy_bert.made_up_weights(kind)
    numpy_bert.write(tmp_path, kind, weights, max_position_embeddings=70)
    table = np.random.default_rng(3).normal(size=(70, 8)).astype("float32")
    weights["bert.embeddings.position_embeddings.weight"] = table
    numpy_bert.write(tmp_path, kind, weights, max_position_embeddings=70)
    run = rt.load(tmp_path)
    text = "中 Ca\xadfé  unABLE the!"
    # [CLS] the ##s [SEP] 中 cafe un ##able the ! [SEP]
    tokens = np.array([[2, 5, 8, 3, 11, 10, 6, 7, 5, 9, 3]])
    types = np.array([[0] * 4 + [1] * 7])
    start, end = numpy_bert.logits(kind, weights, tokens, types)[0]
    spans = [(start[a] + end[b], a, b) for a in range(4, 10) for b in range(a, 10)]
    _, first, last = max(spans)
    data = text.encode()
    places = [(0, 3), (4, 11), (13, 15), (15, 19), (20, 23), (23, 24)]
    expected = data[places[first - 4][0] : places[last - 4][1]].decode()
    assert run.answer("Thes", text) == expected


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_wordpiece(tmp_path, file):
    """Longest pieces first, words without a first piece are [UNK] (BERT, section 3)."""
    path = tmp_path / file
    content = "\n".join(numpy_bert.PIECES) + "\n"
    if file == "tokenizer.json":
        ids = {piece: i for i, piece in enumerate(numpy_bert.PIECES)}
        content = json.dumps({"model": {"type": "WordPiece", "vocab": ids}})
    path.write_text(content)
    vocabulary = wordpiece_vocabulary(str(path))
    for text, ids in {
        "": [],
        "The cafés\tunable!!": [5, 10, 8, 6, 7, 9, 9],
        "the中unables": [5, 11, 6, 7, 8],
        "thex [SEP]": [1, 1, 1, 1],  # a text's own [SEP] is three words
        "the\x00 caf\ufffde\xad": [5, 10],
        "Straße THE": [1, 5],  # no ss
    }.items():
        assert vocabulary.encode(text) == ids, text
    text = "The  CAFÉs中"  # É has two bytes
    ids, starts, ends = vocabulary.tokenize_with_offsets(tf.constant(text))
    assert ids.numpy().tolist() == [5, 10, 8, 11]
    pieces = [text.encode()[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    assert pieces == ["The", "CAFÉ", "s", "中"]
    assert vocabulary.encode_tf(tf.constant(b"the\xff")).numpy().tolist() == [5]
    assert vocabulary.decode([5, 8, 9, 0, 0]) == "thes !"
    cased = wordpiece_vocabulary(str(path), lower_case=False)
    assert cased.encode("The the café") == [1, 5, 1]
    assert vocabulary != cased and vocabulary == wordpiece_vocabulary(str(path))
    path.write_text("the\n[UNK]\n")
    with pytest.raises(ValueError, match=r"WordPiece|must begin with \[PAD\]"):
        wordpiece_vocabulary(str(path))


def test_what_the_encoder_here_cannot_hold_is_named(tmp_path):
    kind = "BertForSequenceClassification"
    weights = numpy_bert.made_up_weights(kind)

    def error(kind=kind, **config):
        numpy_bert.write(tmp_path, kind, weights, **config)
        with pytest.raises(ValueError) as e:
            imported(tmp_path, tmp_path)
        assert "\n" not in str(e.value)
        return str(e.value)

    assert "architectures in config.json" in error("BertForTokenClassification")
    for name, value in {
        "position_embedding_type": "relative_key",
        "is_decoder": True,
        "pad_token_id": 3,
        "problem_type": "multi_label_classification",
        "hidden_act": "tanh",
        "num_attention_heads": 3,
        "num_hidden_layers": 2**40,
        "hidden_size": 10**8,
        "id2label": {"0": "a", "1": "a"},
        "tokenizer_class": "BertJapaneseTokenizer",
        "architectures": [["BertModel"]],
        "layer_norm_eps": "1e-12\nimport os",
    }.items():
        message = error(**{name: value})
        assert name in message or "says that it is a BERT of" in message, message
    assert "id2label must be an object" in error(id2label=["a", "b", "c"])
    weights["classifier.weight"] = np.array(1, "float32")
    assert "classifier.weight must be an array of 2 axes" in error()


def test_tokenizers_that_the_wordpiece_here_is_not(tmp_path):
    kind = "BertModel"
    numpy_bert.write(tmp_path, kind, numpy_bert.made_up_weights(kind))
    config, file = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    (tmp_path / "vocab.txt").unlink()
    model = {"vocab": {piece: i for i, piece in enumerate(numpy_bert.PIECES)}}

    def write(settings, **normalizer):
        config.write_text(json.dumps(settings))
        normalizer = {"type": "BertNormalizer", "strip_accents": None, **normalizer}
        file.write_text(json.dumps({"model": model, "normalizer": normalizer}))

    def settings():
        """Lower case, accents stripped, Chinese characters cut, characters of a word"""
        bindings = formats.read_source(str(tmp_path)).bindings
        names = ("lower_case", "strip_accents", "tokenize_chinese_chars")
        return [
            bindings[f"wordpiece_vocabulary.{name}"]
            for name in (*names, "max_input_chars_per_word")
        ]

    cased = {"do_lower_case": False, "tokenizer_class": "BertTokenizerFast"}
    write({}, lowercase=True)
    assert settings() == [True, True, True, 100]
    model["max_input_chars_per_word"] = 50
    write(cased, lowercase=False)
    assert settings() == [False, False, True, 50]
    write({"strip_accents": False, "tokenize_chinese_chars": False})
    assert settings() == [True, False, False, 50]
    # The two files differ, and transformers 5 reads the first alone.
    for values, normalizer, name in (
        ({}, {"lowercase": False}, "lowercase in tokenizer.json must be True"),
        (cased, {"lowercase": True}, "lowercase in tokenizer.json must be False"),
        ({}, {"strip_accents": False}, "strip_accents in tokenizer.json must be True"),
        ({}, {"handle_chinese_chars": False}, "handle_chinese_chars in tokenizer.json"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "tokenizer_class must be"),
    ):
        write(values, **normalizer)
        with pytest.raises(ValueError, match=name):
            settings()


@pytest.mark.parametrize(
    "file, content, message",
    [
        (
            "tokenizer.json",
            {"model": {"type": "Unigram", "vocab": [["[PAD]", 0.0]]}},
            "model is of type 'Unigram'",
        ),
        ("tokenizer.json", {"model": []}, "has no WordPiece vocabulary"),
        ("tokenizer.json", {"model": {"vocab": {}}}, r"must begin with \[PAD\]"),
        ("vocab.txt", [*numpy_bert.PIECES, "the"], "has the piece 'the' twice"),
    ],
)
def test_files_without_such_pieces(tmp_path, file, content, message):
    path = tmp_path / file
    json_text = json.dumps(content)
    path.write_text("\n".join(content) if file == "vocab.txt" else json_text)
    with pytest.raises(ValueError, match=message) as error:
        wordpiece_vocabulary(str(path))
    assert isinstance(error.value, UserError) and "\n" not in str(error.value)


def test_a_model_of_one_token_type_reads_one_text(tmp_path):
    kind = "BertModel"
    weights = numpy_bert.made_up_weights(kind)
    name = "embeddings.token_type_embeddings.weight"
    weights[name] = weights[name][:1]
    numpy_bert.write(tmp_path, kind, weights, type_vocab_size=1)
    run = rt.load(tmp_path)
    encoded = numpy_bert.encode(weights, TOKENS[1:], TYPES[1:])
    received = run.embed("中the")
    np.testing.assert_allclose(received, encoded[0, :4].mean(0), atol=1e-5)
    with pytest.raises(ValueError, match="reads one text. Received a pair") as error:
        run.embed(("the", "cafe"))
    assert "\n" not in str(error.value)


@pytest.mark.slower
def test_a_run_of_it_keeps_its_vocabulary_and_is_exported(tmp_path, capsys):
    kind, source = "BertForSequenceClassification", tmp_path / "bert"
    weights = numpy_bert.made_up_weights(kind)
    numpy_bert.write(source, kind, weights, id2label={"0": "a", "1": "b", "2": "c"})
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    run = str(tmp_path / "run")
    run_command("import_weights", [f"--from={source}", f"--model_dir={run}"])
    assert f"Hugging Face {kind}" in capsys.readouterr().out
    shutil.rmtree(source)
    loaded = rt.load(run)
    (found,) = loaded.classify(["中the"])
    logits = numpy_bert.logits(kind, weights, TOKENS[1:], TYPES[1:])[0, 0]
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert loaded.task.output_features["inputs"].vocabulary.encode("The") == [1]
    run_command("export", [f"--model_dir={run}"])
    shutil.rmtree(f"{run}/checkpoints")
    exported = tf.saved_model.load(f"{run}/export/0")
    texts = {
        "inputs": tf.constant(["\ufeff中\x80\u200bthe"]),
        "inputs_b": tf.constant([""]),
    }
    received = exported.signatures["classify"](**texts)
    np.testing.assert_allclose(received["probabilities"][0], expected, atol=1e-5)
    assert received["outputs"][0] == found.label.encode()
