"""Answers of an export: signatures, stored weights, batching, warm-up requests."""

import concurrent.futures
import functools
import itertools
import os
import sys
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.augmentation import normalize, resize_and_center_crop
from remixer_tf.data.classification import ClassNames, join_texts
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.layers import GatedMLP
from remixer_tf.models import (
    ClassificationHead,
    DecoderOnly,
    EncoderOnly,
    ImageClassifier,
    TransformerStack,
)
from remixer_tf.serving import saved_model
from remixer_tf.serving.image_to_class import ImageToClass
from remixer_tf.serving.text_encoder import TextEncoder
from remixer_tf.serving.text_scorer import TextScorer
from remixer_tf.serving.text_to_text import TextToText
from remixer_tf.serving.token_graph import searchable
from tests.data.toy_images import png_header
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_mixture, tiny_model, tiny_stack
from tests.tiny_run import TEXTS

LONG = b"cat dog " * 9
MILLION = b"a cat " * 166_667
QUESTIONS = [b"", b"cat", LONG, b"caf\xc3\xa9 \xff\xfe", MILLION]
TRIMMED = [False, False, True, False, True]
LENGTHS = {"inputs": 10, "targets": 6}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    file = str(tmp_path_factory.mktemp("vocabulary") / "words.model")
    train_vocabulary(TEXTS, file, model_type="word")
    return seqio.SentencePieceVocabulary(file)


@pytest.fixture(
    scope="module",
    params=[
        "t5_1_1",
        *(pytest.param(kind, marks=pytest.mark.slower) for kind in ("lm", "remixer")),
    ],
)
def asked(request, vocabulary, tmp_path_factory):
    kind, lengths = request.param, LENGTHS
    task = toy_task({"dev": []}, metric_fns=[])
    if kind == "lm":
        task = task.replace(output_features={"targets": task.output_features["inputs"]})
        model = tiny_decoder("gmlp", vocab_size=VOCABULARY.vocab_size)
        lengths = {"targets": 16}
    else:
        words = seqio.Feature(vocabulary)
        task = task.replace(output_features={"inputs": words, "targets": words})
        model = tiny_model(kind)
    randomize(model)
    answer = TextToText(model, task, feature_lengths=lengths)
    # tensorflow-text drops the tokenizer of a vocabulary when another one of it goes:
    # here is the last time that this one is sure to be there.
    answers = {k: v.numpy() for k, v in answer(strings(*QUESTIONS)).items()}
    tokens, _ = answer.read(strings(*QUESTIONS))
    folder = tmp_path_factory.mktemp(kind)
    path = str(folder / "1")
    saved_model.export(answer, path, "", warm_up=True)
    return Asked(
        answer, answers, tokens, TextScorer(model, task, lengths), path, load(path)
    )


class Asked(NamedTuple):
    """A model of text, what it answers to `QUESTIONS`, and its export."""

    answer: TextToText
    answers: dict
    tokens: tf.Tensor
    scorer: TextScorer
    path: str
    loaded: Any

    @property
    def writes_bytes(self):
        vocabulary = self.answer.codec.vocabulary("targets")
        return isinstance(vocabulary, seqio.ByteVocabulary)


def load(path):
    return Loaded(tf.saved_model.load(path))


class Loaded:
    """A loaded SavedModel, which lives as long as its signatures are asked."""

    def __init__(self, model):
        self.names = set(model.signatures)
        self._model = model

    def __call__(self, signature, **inputs):
        answers = self._model.signatures[signature](
            **{name: tf.constant(x) for name, x in inputs.items()}
        )
        return {name: x.numpy() for name, x in answers.items()}


def outputs(answers):
    return answers["outputs"].tolist()


def strings(*texts):
    return np.array(texts, object) if texts else tf.zeros([0], tf.string)


@pytest.mark.slower
def test_any_text_in_any_batch(asked):
    expected, loaded = asked.answers, asked.loaded
    answers = loaded("serving_default", inputs=strings(*QUESTIONS))
    assert outputs(answers) == outputs(expected)
    assert answers["trimmed"].tolist() == TRIMMED
    np.testing.assert_allclose(answers["scores"], expected["scores"], atol=1e-3)
    for size in (0, 1, 257):
        texts = [*itertools.islice(itertools.cycle(QUESTIONS[:4]), size)]
        some = loaded("serving_default", inputs=strings(*texts))
        assert {len(x) for x in some.values()} == {size}
        scores = np.resize(expected["scores"][:4], size) if size else []
        np.testing.assert_allclose(some["scores"], scores, atol=1e-3)
        assert some["trimmed"].tolist() == (TRIMMED[:4] * 65)[:size]


@pytest.mark.slower
def test_scores_are_the_scorers(asked):
    scorer, loaded = asked.scorer, asked.loaded
    targets = [b"dog", b"", b"a cat", LONG, MILLION]
    pairs = [scorer.encode(*pair) for pair in zip(QUESTIONS, targets, strict=True)]
    expected = [*zip(*scorer.score(pairs, batch_size=5), strict=True)]
    for size in (5, 1, 0):
        answers = loaded(
            "score", inputs=strings(*QUESTIONS[:size]), targets=strings(*targets[:size])
        )
        names = "scores", "num_tokens", "greedy", "trimmed"
        for name, values in zip(names, expected, strict=True):
            np.testing.assert_allclose(answers[name], values[:size], atol=1e-3)
        each = answers["token_scores"]
        np.testing.assert_allclose(each.sum(axis=1), answers["scores"], atol=1e-3)
        assert ((each != 0) == (answers["tokens"] != 0)).all()
        for row, (_, ids), cut in zip(
            answers["tokens"], pairs[:size], answers["trimmed"], strict=True
        ):
            assert cut or row[row > 0].tolist() == ids


@pytest.mark.slower
def test_ids_alone_need_no_tokenizer(asked):
    tokens, loaded = asked.tokens, asked.loaded
    expected = asked.answer.tokens.decode(searchable(tokens))
    answers = loaded("predict_tokens", inputs=tokens)
    assert answers["outputs"].tolist() == np.array(expected.tokens).tolist()
    np.testing.assert_allclose(answers["scores"], expected.scores, atol=1e-3)
    empty = loaded("predict_tokens", inputs=tokens[:0])
    assert empty["outputs"].shape == (0, *expected.tokens.shape[1:])
    signatures = tf.saved_model.load(asked.path).signatures
    tokenizes = {
        name: any("Sentencepiece" in operation for operation in reached(signature))
        for name, signature in signatures.items()
    }
    has = not asked.writes_bytes
    texts = dict.fromkeys(("serving_default", "generate", "score"), has)
    assert tokenizes == {**texts, "predict_tokens": False}


def reached(function):
    """The operations that a call of a function may run."""
    definition = function.graph.as_graph_def()
    library = {f.signature.name: f.node_def for f in definition.library.function}
    found, todo = set(), [*definition.node]
    while todo:
        node = todo.pop()
        found.add(node.op)
        names = {f.name for a in node.attr.values() for f in (a.func, *a.list.func)}
        for name in (node.op, *names):
            todo += library.pop(name, ())
    return found


@pytest.mark.slower
def test_an_answer_may_be_shorter(asked):
    """Its tokens are the first of the whole answer's."""
    inputs, lengths = strings(*QUESTIONS[:4]), [1, 2, 3, 4]
    ids = asked.loaded("predict_tokens", inputs=asked.tokens[:4])["outputs"]
    cut = [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]
    cut = tf.RaggedTensor.from_row_lengths(sum(cut, []), lengths).to_tensor()
    found = asked.loaded("generate", inputs=inputs, max_length=lengths)
    assert outputs(found) == asked.answer.write(cut).numpy().tolist()
    longest = asked.answer.tokens.max_length
    for length in (0, longest + 1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"must be 1 to {longest}. Received"
        ):
            asked.loaded("generate", inputs=inputs, max_length=length)


@pytest.mark.slower
def test_warm_up_requests_are_answered(asked):
    _, messages = saved_model.import_messages()
    file = os.path.join(asked.path, "assets.extra", "tf_serving_warmup_requests")
    seen = set()
    for record in tf.data.TFRecordDataset(file):
        log = messages.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        inputs = {name: tf.make_ndarray(x) for name, x in request.inputs.items()}
        answers = asked.loaded(request.model_spec.signature_name, **inputs)
        assert {len(x) for x in answers.values()} == {1}
        seen.add(request.model_spec.signature_name)
    assert seen == asked.loaded.names


@pytest.mark.slower
@pytest.mark.parametrize("asked", ["lm"], indirect=True)
def test_concurrent_calls_are_computed_together(asked, tmp_path):
    answer, loaded = asked.answer, asked.loaded
    saved_model.export(answer, str(tmp_path / "1"), "", [1, 4], batches_at_once=1)
    batched = load(str(tmp_path / "1"))
    questions = [*QUESTIONS[:4], b"the dog", b"a", b"cat cat"]
    alone = {
        "serving_default": loaded("serving_default", inputs=strings(*questions)),
        "score": loaded(
            "score", inputs=strings(*questions), targets=strings(*questions)
        ),
    }

    def ask(number):
        signature = ("serving_default", "score")[number % 2]
        rows = [(number + i) % len(questions) for i in range(number % 7 + 1)]
        texts = strings(*(questions[row] for row in rows))
        inputs = {"inputs": texts}
        if signature == "score":
            inputs["targets"] = texts
        answers = batched(signature, **inputs)
        assert answers.keys() == alone[signature].keys()
        for name, expected in alone[signature].items():
            if expected.dtype == np.float32:
                np.testing.assert_allclose(answers[name], expected[rows], atol=1e-3)
            else:
                assert answers[name].tolist() == expected[rows].tolist()

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert [*threads.map(ask, range(48))] == [None] * 48
    for size in (0, 1, 257):
        texts = strings(*itertools.islice(itertools.cycle(questions), size))
        answers = batched("score", inputs=texts, targets=texts)
        assert answers["tokens"].shape == (size, *alone["score"]["tokens"].shape[1:])
    with pytest.raises(ValueError, match="greater than the one before.*\\[4, 1\\]"):
        saved_model.export(answer, str(tmp_path / "2"), "", [4, 1])
    assert os.listdir(tmp_path) == ["1"]


@pytest.mark.slower
def test_half_weights_are_half_on_disk(tmp_path):
    model = tiny_decoder("gmlp", vocab_size=50_000)
    sizes, scores = {}, {}
    for number, weights in enumerate(("float32", "bfloat16", "float16")):
        answer = TextToText(
            model, toy_task({}), feature_lengths=LENGTHS, weights=weights
        )
        path = str(tmp_path / str(number))
        saved_model.export(answer, path, "")
        file = os.path.join(path, "variables", "variables.data-00000-of-00001")
        sizes[weights] = os.path.getsize(file)
        inputs = {"inputs": strings(b"a", b"b"), "targets": strings(b"abc", b"de")}
        scores[weights] = load(path)("score", **inputs)["scores"]
    assert sizes["float32"] > 4 * model.count_params()
    for weights, tolerance in {"bfloat16": 2e-2, "float16": 2e-3}.items():
        assert sizes[weights] == pytest.approx(sizes["float32"] / 2, rel=0.02)
        np.testing.assert_allclose(scores[weights], scores["float32"], rtol=tolerance)
        assert (scores[weights] != scores["float32"]).any()


def test_a_model_that_can_neither_decode_nor_score_is_refused(tmp_path):
    size = VOCABULARY.vocab_size
    stack = tiny_mixture("smlp", routing="partial", vocab_size=size)
    model = DecoderOnly(stack, size, 8)
    model.build()
    answer = TextToText(model, toy_task({}), feature_lengths=LENGTHS)
    with pytest.raises(ValueError, match="step by step.*cannot score whole texts"):
        saved_model.export(answer, str(tmp_path / "1"), "")
    assert not list(tmp_path.iterdir())


def test_an_encoder_says_classes_and_gives_vectors(vocabulary, tmp_path):
    words = seqio.Feature(
        seqio.SentencePieceVocabulary(vocabulary.sentencepiece_model_file, extra_ids=3),
        add_eos=False,
    )
    task = toy_task({}).replace(
        output_features={
            "inputs": words,
            "inputs_b": words,
            "token_types": seqio.Feature(seqio.PassThroughVocabulary(2)),
            "targets": seqio.Feature(ClassNames(["no", "yes", "maybe"])),
        }
    )
    size = words.vocabulary.vocab_size
    head = functools.partial(ClassificationHead, 3)
    model = EncoderOnly(tiny_stack("bert"), head, size, 8, num_token_types=2)
    model.build()
    randomize(model)
    encoder = TextEncoder(model, task, 9)
    path = str(tmp_path / "1")
    signatures = saved_model.export(encoder, path, "", [2, 8], warm_up=True)
    loaded = load(path)
    assert loaded.names == {"serving_default", "classify", "embed"}
    texts = [b"", b"a cat", b"the dog", LONG, b"\xff"]
    seconds = [b"the house", b"", b"a dog liked a", MILLION, b"cat"]
    inputs = {"inputs": strings(*texts), "inputs_b": strings(*seconds)}
    answers, vectors = loaded("classify", **inputs), loaded("embed", **inputs)
    rows = tf.data.Dataset.from_tensor_slices({"inputs": texts, "inputs_b": seconds})
    encode = words.vocabulary.encode_tf
    rows = rows.map(lambda row: {name: encode(text) for name, text in row.items()})
    joined = [*join_texts(rows, task.output_features, {"inputs": 9})]
    for number, row in enumerate(joined):
        if not seconds[number]:  # [SEP] of an empty text is none of one text's
            row = {name: ids[:-1] for name, ids in row.items()}
        batch = {
            "encoder_input_tokens": row["inputs"][None],
            "encoder_token_types": row["token_types"][None],
        }
        logits = model(batch)[0, 0]
        np.testing.assert_allclose(
            answers["probabilities"][number], tf.nn.softmax(logits), atol=1e-4
        )
        x, _ = model.encode(batch)
        mean = tf.reduce_mean(x[0], axis=0)
        np.testing.assert_allclose(vectors["embeddings"][number], mean, atol=1e-3)
    names = np.array([b"no", b"yes", b"maybe"], object)
    assert answers["outputs"].tolist() == names[answers["class_ids"]].tolist()
    assert (answers["class_ids"] == answers["probabilities"].argmax(axis=1)).all()
    assert answers["trimmed"].tolist() == [False, False, False, True, False]
    for size in (0, 1, 257):
        some = strings(*(b"cat",) * size)
        assert len(loaded("classify", inputs=some, inputs_b=some)["outputs"]) == size
    rows = [*saved_model.describe_signatures(signatures)]
    assert "probabilities  float32 [batch, 3]" in "\n".join(rows)


def test_an_image_classifier_takes_images_in(tmp_path):
    stack = functools.partial(
        TransformerStack,
        {"gmlp": functools.partial(GatedMLP, d_ff=12)},
        num_layers=1,
    )
    model = ImageClassifier(stack, 16, 8, 8, num_classes=4)
    model.build()
    randomize(model)
    crop = functools.partial(resize_and_center_crop, image_size=16)
    classifier = ImageToClass(model, [crop, normalize])
    path = str(tmp_path / "1")
    saved_model.export(classifier, path, "", warm_up=True)
    loaded = load(path)
    assert loaded.names == {"serving_default", "classify", "classify_bytes"}
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 31, 3)).astype("uint8")
    prepared = [normalize(crop(tf.cast(i, tf.float32), None), None) for i in images]
    expected = tf.nn.softmax(model({"images": tf.stack(prepared)})[:, 0])
    files = [tf.io.encode_png(image).numpy() for image in images]
    for answers in (
        loaded("classify", images=images),
        loaded("classify_bytes", image_bytes=strings(*files)),
    ):
        np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-4)
        assert answers["class_ids"].tolist() == np.argmax(expected, 1).tolist()
    assert len(loaded("classify", images=images[:0])["class_ids"]) == 0
    png = png_header(5_000, 5_000) + files[0][24:]
    for wrong, message in (
        (b"no image", "neither a JPEG nor a PNG. Send one of at most 16777216"),
        (files[0][:23], "neither a JPEG nor a PNG"),
        (png, "an image of 25000000 pixels"),
        (png_header(2**31 - 1, 2**31 - 1), "4611686014132420609 pixels"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            loaded("classify_bytes", image_bytes=strings(files[0], wrong))


def test_without_the_extra_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis.predict_pb2", None)
    with pytest.raises(ImportError, match=r"pip install 'remixer_tf\[serving\]'"):
        saved_model.export(keras.Sequential(), str(tmp_path / "a"), "", warm_up=True)
    assert not os.listdir(tmp_path)
