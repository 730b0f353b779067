"""`classify`, `embed` and `answer` of loaded runs: texts, images, spans."""

import json
import pathlib
import warnings

import keras
import numpy as np
import PIL.Image
import pytest

import remixer_tf as rt
from remixer_tf.commands import run_command
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.loaded.inputs import columns
from tests.front_door.conftest import QUESTIONS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clear_gin")]
TEXTS = ["a charming journey", "", "bleak", "café"]
ON_JAX = keras.backend.backend() == "jax"
on_tensorflow = pytest.mark.skipif(ON_JAX, reason="signatures are TensorFlow's")


@pytest.fixture(scope="module")
def encoder(classifier_run):
    return rt.load(classifier_run)


@pytest.fixture(scope="module")
def spans(span_run):
    return rt.load(span_run)


@pytest.fixture(scope="module")
def vision(image_run):
    return rt.load(image_run)


@pytest.fixture
def images(image_run):
    """Paths of a JPEG and of a PNG of each colour."""
    return sorted(image_run.parent.glob("images/validation/*/*"))


def bert_batch(text, length=24):
    """`[CLS] text [SEP]` in bytes, BERT's form of one text."""
    ids = [260, *(b + 3 for b in text.encode()), 259]
    return {"encoder_input_tokens": np.array([ids + [0] * (length - len(ids))])}


@on_tensorflow
def test_classes_of_texts(encoder):
    found = encoder.classify(TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        logits = np.asarray(encoder.model(bert_batch(text)))[0, 0]
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(one.probabilities, expected, rtol=1e-4)
        assert one.label == ("negative", "positive")[expected.argmax()]
        assert one.probability == pytest.approx(expected.max(), rel=1e-4)
    again = encoder.classify(TEXTS[0])
    assert again.label == found[0].label
    assert again.probability == pytest.approx(found[0].probability, rel=1e-5)
    assert len(encoder.classify(TEXTS * 30)) == 120
    assert encoder.classify([]) == []


@on_tensorflow
def test_vectors_of_texts(encoder):
    found = encoder.embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        x, _ = encoder.model.encode(bert_batch(text))
        expected = np.asarray(x)[0, : len(text.encode()) + 2].mean(axis=0)
        np.testing.assert_allclose(vector, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(encoder.embed("bleak"), found[2], rtol=1e-4, atol=1e-6)
    assert encoder.embed([]).shape == (0, 16)


@on_tensorflow
def test_pairs_of_texts(classifier_run):
    pairs = rt.load(classifier_run, bindings=["Run.task = 'rte_classes'"])
    alone, pair = pairs.classify(["P.", ("P.", "H.")])
    assert alone.label in ("entailment", "not_entailment")
    ids = [260, *b"P.", 259, *b"H.", 259]
    ids = [i + 3 if i < 256 else i for i in ids] + [0] * 17
    types = [0] * 4 + [1] * 3 + [0] * 17
    batch = {
        "encoder_input_tokens": np.array([ids]),
        "encoder_token_types": np.array([types]),
    }
    logits = np.asarray(pairs.model(batch))[0, 0]
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(pair.probabilities, expected, rtol=1e-4)
    assert pairs.classify(("P.", "H.")).label == pair.label


@pytest.mark.slower
@on_tensorflow
def test_long_texts_are_counted_or_refused(encoder, spans):
    long = "a cat " * 9
    with pytest.warns(UserWarning, match="2 of 3 texts are longer than 24 tokens"):
        found = encoder.classify([long, "a", long + "b"])
    assert found[0].label == found[2].label
    with pytest.warns(UserWarning, match="1 of 1 texts"):
        encoder.embed(long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.classify("a" * 22)
    with pytest.raises(UserError, match="longer than 24 tokens .* 'a cat a cat"):
        encoder.classify(["a", long], on_long="raise")
    with pytest.raises(UserError, match="on_long must be one of warn, raise"):
        encoder.embed("a", on_long="cut")


@on_tensorflow
def test_images_of_all_kinds(vision, images):
    paths = [str(images[0]), images[1]]
    arrays = [np.asarray(PIL.Image.open(path).convert("RGB")) for path in images]
    pictures = [PIL.Image.open(path) for path in images]
    of_paths = vision.classify([*map(str, images)])
    assert len(of_paths) == 6
    for index, (path, array, picture) in enumerate(
        zip(images, arrays, pictures, strict=True)
    ):
        mixed = vision.classify([path, array, picture])
        for one in mixed:
            # Decoders of JPEG differ by a bit.
            np.testing.assert_allclose(
                one.probabilities, of_paths[index].probabilities, atol=2e-2
            )
    one = vision.classify(paths[0])
    assert one.label == int(one.probabilities.argmax()) == of_paths[0].label
    np.testing.assert_array_equal(one.probabilities, of_paths[0].probabilities)
    assert vision.classify([]) == []
    grey = pictures[0].convert("L")
    assert vision.classify(grey).label in (0, 1, 2)


@on_tensorflow
def test_wrong_images_are_one_sentence(vision, images, tmp_path):
    with pytest.raises(MissingFileError, match="no image '.*nothing.png'"):
        vision.classify([images[0], tmp_path / "nothing.png"])
    (tmp_path / "text.png").write_text("a cat")
    with pytest.raises(UserError, match="text.png is neither a JPEG nor a PNG"):
        vision.classify(tmp_path / "text.png")
    png = next(path for path in images if path.suffix == ".png")
    (tmp_path / "half.png").write_bytes(pathlib.Path(png).read_bytes()[:60])
    with pytest.raises(UserError, match="half.png cannot be decoded"):
        vision.classify(str(tmp_path / "half.png"))
    jpeg = b"\xff\xd8\xff" + b"0" * 20
    (tmp_path / "half.jpg").write_bytes(jpeg)
    with pytest.raises(UserError, match="half.jpg is neither"):
        vision.classify(str(tmp_path / "half.jpg"))
    with pytest.raises(UserError, match=f"cannot read {tmp_path}: Is a directory"):
        vision.classify(tmp_path)
    for wrong in (3, np.zeros([4, 4, 3]), np.zeros([4, 4], np.uint8), None):
        with pytest.raises(TypeError, match="Expected: a path, a PIL image, or an arr"):
            vision.classify(wrong)


def windows_of(span_run):
    """The best span of each window, as `eval` writes it."""
    run_command("eval", [f"--model_dir={span_run}"])
    (path,) = span_run.rglob("predictions.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_those_of_eval(span_run, spans, capsys):
    """With every question answered: its text has one window, and eval shows it."""
    surest = rt.load(span_run, bindings=["NULL_THRESHOLD = None"])
    found = surest.answer(
        [row["question"] for row in QUESTIONS], [row["context"] for row in QUESTIONS]
    )
    predictions = [record["prediction"] for record in windows_of(span_run)]
    assert found == predictions
    for answer, row in zip(found, QUESTIONS, strict=True):
        assert answer and answer in row["context"]
    first = QUESTIONS[0]
    assert surest.answer(first["question"], first["context"]) == found[0]
    two = surest.answer(["who?", "wo?"], first["context"])
    assert two[0] == found[0] and len(two) == 2
    assert spans.answer([], []) == []


@pytest.mark.slower
def test_texts_of_any_length_and_no_answer(span_run, spans):
    text = " ".join(f"number {i}" for i in range(60))
    never, always = (
        rt.load(span_run, bindings=[f"NULL_THRESHOLD = {threshold}"])
        for threshold in (-1e6, 1e6)
    )
    assert never.answer("who?", text) == ""
    answer = always.answer("who?", text)
    assert answer and answer in text
    with pytest.warns(UserWarning, match="1 of 1 questions are longer than 64 tokens"):
        always.answer("who " * 20, text)
    with pytest.raises(UserError, match="questions are longer than 64"):
        spans.answer(["who " * 20], [text], on_long="raise")


@on_tensorflow
def test_wrong_inputs_are_one_sentence(encoder, spans):
    for wrong in (3, None, b"A", {"a": 1}):
        with pytest.raises(TypeError, match="Expected: a str, a pair of str, or"):
            encoder.classify(wrong)
    for wrong in (["a", 3], [("a", "b", "c")], [("a", 3)]):
        with pytest.raises(TypeError, match="Expected: a str, or a pair of str"):
            encoder.embed(wrong)
    with pytest.raises(UserError, match="The task reads one text. Received a pair"):
        columns(["a", ("a", "b")], 1)
    with pytest.raises(UserError, match="as many texts as questions.*1 and 2"):
        spans.answer(["a", "b"], ["c"])
    with pytest.raises(TypeError, match="one question takes one text"):
        spans.answer("a", ["c"])
    with pytest.raises(TypeError, match="Expected: a str or a list of str"):
        spans.answer(3, "c")


def test_a_model_that_cannot_says_so(encoder, spans, vision, lm_run, bytes_run):
    writer, lm = rt.load(bytes_run), rt.load(lm_run)
    calls = [
        *((one.generate, ["a"], "need a model that writes text") for one in (encoder,)),
        (encoder.score, ["a", "b"], "need a model that writes text"),
        (encoder.perplexity, ["a"], "need a model that writes text"),
        (encoder.answer, ["a", "b"], "SpanHead.*Received: ClassificationHead"),
        (encoder.mixing, [], "no static mixing"),
        (encoder.fit, ["a.tsv", "b"], "need a model that writes text"),
        (writer.classify, ["a"], "classify.. needs an EncoderOnly.*EncoderDecoder"),
        (writer.embed, ["a"], "embed.. needs an EncoderOnly. Received: EncoderDecoder"),
        (writer.answer, ["a", "b"], "SpanHead.*Received: EncoderDecoder"),
        (writer.perplexity, ["a"], "is for language models, which read one text"),
        (vision.generate, ["a"], "need a model that writes text"),
        (vision.embed, ["a"], "embed.. needs an EncoderOnly. Received: ImageClassif"),
        (vision.answer, ["a", "b"], "SpanHead"),
        (vision.evaluate, ["a.tsv"], "The run is of images"),
        (encoder.evaluate, ["a.tsv"], "texts to write, and EncoderOnly writes none"),
        (lm.fit, ["a.tsv", "b"], "this run reads targets alone"),
    ]
    if not ON_JAX:
        calls += [
            (spans.classify, ["a"], "the model's head has no classes"),
            (writer.export, ["x", "onx"], "format must be one of .*'onx'"),
        ]
    for call, arguments, message in calls:
        with pytest.raises(UserError, match=message) as caught:
            call(*arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(not ON_JAX, reason="what JAX cannot")
def test_what_jax_cannot_is_one_sentence(encoder, lm_run):
    with pytest.raises(UserError, match=r"classify\(\) needs Keras on tensorflow"):
        encoder.classify("a")
    with pytest.raises(UserError, match=r"stream\(\) needs Keras on tensorflow"):
        rt.load(lm_run).stream("a")
    from remixer_tf.analysis import costs  # late: it imports TensorFlow

    sizes = {"batch_size": 1, "feature_lengths": {"inputs": 8}}
    with pytest.raises(UserError, match="Counting needs Keras on tensorflow"):
        costs.count(None, None, **sizes)
    with pytest.raises(UserError, match="Measuring needs Keras on tensorflow"):
        costs.measure(None, None, **sizes)


def test_pictures_of_encoders_read_what_training_reads(classifier_run, span_run):
    for folder in (classifier_run, span_run):
        assert rt.load(folder).pictures()
