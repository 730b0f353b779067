"""SQuAD: the files, and the scores of questions over their windows."""

import functools
import gzip
import json

import gin
import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
from keras import ops

from remixer_tf import configuration
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.spans import SpanFeatureConverter
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.decoding import best_span
from remixer_tf.engines.backend_engine import engine_of
from remixer_tf.evaluation.calls import call_on_examples
from remixer_tf.evaluation.decoded import DecodedExamples
from remixer_tf.evaluation.task_metrics import compute_metrics
from remixer_tf.serving.span_answers import SpanAnswerer
from remixer_tf.tasks import squad
from remixer_tf.tasks.squad import Question
from tests.settings import value_of
from tests.tasks import squad_reference as reference

CLS, NONE = [0, 0], []
LENGTHS = {"inputs": 13, "token_types": 13, "answerable": 13, "targets": 2}
LONG = {"inputs": 384, "token_types": 384, "answerable": 384, "targets": 2}


def question(name, text, context, *answers):
    answers = [{"text": a, "answer_start": context.index(a)} for a in answers]
    return {"id": name, "question": text, "context": context, "answers": answers}


def as_json(rows):
    """SQuAD's format, an article for each row."""
    articles = [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": row["context"],
                    "qas": [{k: row[k] for k in ("id", "question", "answers")}],
                }
            ],
        }
        for row in rows
    ]
    return json.dumps({"version": "1.1", "data": articles})


ROWS = [
    question("1", "who?", "it was Ann or Bo", "Ann", "Ann or Bo"),
    question("2", "wo?", "in Köln", "Köln"),
    question("3", "when?", "never"),
]


def scores(*windows, threshold=np.inf):
    """`squad_scores` of (id, answers, prediction, score, score of no answer)."""
    targets = [Question(name, answers) for name, answers, *_ in windows]
    predictions = [window[2] for window in windows]
    numbers = [[*window[3:], threshold] for window in windows]
    return squad.squad_scores(
        targets, predictions, {"scores": np.array(numbers, np.float32)}
    )


def test_the_best_window_counts():
    answers = ["Ann", "Ann or Bo"]
    windows = [("1", answers, "x", 3.0, 9.0), ("1", answers, "", -np.inf, 9.0)]
    assert scores(*windows) == {"em": 0, "f1": 0}
    windows.append(("1", answers, "the ann.", 4.0, 0.0))
    assert scores(*windows) == {"em": 100, "f1": 100}
    windows.append(("1", answers, "Bo", 5.0, 0.0))  # half of the second: 1 of 1, 1 of 3
    assert scores(*windows) == pytest.approx({"em": 0, "f1": 50})
    windows += [("2", ["Köln"], "Köln", -9.0, 0.0)]
    assert scores(*windows) == pytest.approx({"em": 50, "f1": 75})


def test_no_answer():
    """The least score of no answer in a question's windows counts."""
    ann = [("1", ["Ann"], "Ann", 2.0, 1.0), ("1", ["Ann"], "Bo", 1.0, 9.0)]
    none = [("3", NONE, "never", 2.0, 3.0)]
    assert scores(*ann, threshold=0.0) == {"em": 100, "f1": 100}
    assert scores(*ann, threshold=-2.0) == {"em": 0, "f1": 0}
    best = {"best_em": 100, "best_em_threshold": -1}
    best |= {"best_f1": 100, "best_f1_threshold": -1}
    for threshold, right in [(np.inf, 50), (1.0, 50), (0.5, 100), (-2.0, 50)]:
        found = scores(*ann, *none, threshold=threshold)
        assert found == pytest.approx({"em": right, "f1": right, **best})


NOTHING = [  # texts of which normalising leaves nothing, and others
    ("1", [".", "Ann"], "-", 0.5),
    ("2", [".", "the"], "-", 0.25),
    ("3", ["Ann", "."], "Ann Bo", 0.125),
    ("4", ["an apple."], "", 0.75),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bound", [np.inf, 0.4, -1.0])
def test_answers_that_normalise_to_nothing(version, bound):
    """Equal to the official script of the version of the questions."""
    rows = NOTHING + [("5", [], "-", 0.375), ("6", [], "", 0.0)] * (version == 2)
    windows = [(*row[:3], 0.0, row[3]) for row in rows]
    found = scores(*windows, threshold=bound)
    questions = [(text, no_answer, golds) for _, golds, text, no_answer in rows]
    expected = reference.official(questions, bound, version)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    if version == 2:
        best, at = reference.official_best_f1(questions)
        assert found["best_f1"] == pytest.approx(best)
        assert found["best_f1_threshold"] == at


@pytest.fixture
def toy():
    source = squad.question_source(lambda split: ROWS, ["dev"])
    squad.add_task("toy_squad", source, max_question_length=5, stride=3)
    yield get_task("toy_squad")
    seqio.TaskRegistry.remove("toy_squad")


@pytest.mark.slow
def test_windows_of_the_files(toy):
    examples = read_examples(toy, "dev", LENGTHS)
    assert [(e["id"].decode(), e["targets"].tolist()) for e in examples] == [
        ("1", CLS),  # it was
        ("1", CLS),  # was An
        ("1", [7, 9]),  # _Ann o
        ("1", CLS),  # n or B
        ("1", CLS),  # r Bo
        ("2", CLS),  # in Köl
        ("2", [5, 9]),  # Köln
        ("3", CLS),  # never
    ]


def random_questions(rng, number):
    """Of one-letter words, so that any span of them has some F1."""
    for i in range(number):
        context = " ".join(rng.choice(list("bcdefgh"), rng.integers(1, 25)))
        start = 2 * rng.integers((len(context) + 1) // 2)
        answers = [context[start : start + n] for n in (1, 5)] if i % 6 else []
        yield {
            "id": str(i),
            "question": "?" * rng.integers(1, 6),
            "context": context,
            "answers": [{"text": a, "answer_start": start} for a in answers],
        }


class RandomLogits(keras.Model):
    """Logits as a `SpanHead` gives them, by token and place; [CLS] has high ones."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.by_token = rng.normal(size=(2, 262)).astype("float32")
        self.by_place = rng.normal(size=(2, LENGTHS["inputs"])).astype("float32")
        self.by_place[:, 0] += 2

    def call(self, batch, training=False):
        tokens = batch["encoder_input_tokens"]
        logits = ops.moveaxis(ops.take(self.by_token, tokens, axis=1), 0, 1)
        logits += self.by_place[:, : tokens.shape[1]]
        window = ops.cast(ops.sum(tokens, axis=1) % 7, "float32")
        logits += window[:, None, None] / 4  # windows differ in all, [CLS] too
        return ops.where(tokens[:, None] > 0, logits, -1e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "threshold, num_best, longest",
    [
        pytest.param(None, 20, 30, marks=pytest.mark.slower),
        pytest.param(0.0, 20, 30, marks=pytest.mark.slower),
        (1.5, 4, 3),
    ],
)
def test_the_protocol_is_berts(toy, threshold, num_best, longest):
    """A whole evaluation of random logits, against the protocol in plain Python."""
    rng = np.random.default_rng(0)
    rows = list(random_questions(rng, 40))
    if threshold is None:  # SQuAD 1.1
        rows = [row for row in rows if row["answers"]]
    model = RandomLogits()
    task = toy.replace(source=squad.question_source(lambda split: rows, ["dev"]))
    examples = read_examples(task, "dev", LENGTHS)
    decode = functools.partial(
        best_span,
        model,
        max_length=2,
        max_span_length=longest,
        num_best=num_best,
        null_threshold=threshold,
    )
    decoded = call_on_examples(
        lambda batch: tf.nest.map_structure(np.asarray, decode(batch)),
        examples,
        Codec(task, LENGTHS, SpanFeatureConverter),
        length_buckets=None,
        batch_size=8,
        description="decoding",
    )
    found = compute_metrics(
        task, examples, DecodedExamples(decoded.tokens, decoded.scores).outputs()
    )

    questions = []
    for row in rows:
        context, before = row["context"], len(row["question"]) + 2
        spans = reference.doc_spans(len(context), LENGTHS["inputs"] - before - 1, 3)
        windows = [
            np.array(model({"encoder_input_tokens": e["inputs"][None]}))[0]
            for e in examples
            if e["id"].decode() == row["id"]
        ]
        assert len(windows) == len(spans)
        span, no_answer = reference.answer(windows, before, spans, num_best, longest)
        text = context[span[0] : span[1] + 1].strip() if span else ""
        questions.append((text, no_answer, [a["text"] for a in row["answers"]]))
    bound = np.inf if threshold is None else threshold
    answer = SpanAnswerer(
        engine_of(model),
        task,
        LENGTHS,
        functools.partial(
            best_span,
            max_span_length=longest,
            num_best=num_best,
            null_threshold=threshold,
        ),
    )
    answers = answer([(row["question"], row["context"]) for row in rows])
    assert [a.text for a in answers] == [
        "" if no_answer > bound else text for text, no_answer, _ in questions
    ]
    assert [a.no_answer for a in answers] == pytest.approx(
        [no_answer for _, no_answer, _ in questions], abs=1e-3
    )
    expected = reference.scores(questions, bound)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)
    if threshold is None:
        assert found.keys() == {"em", "f1"}
        return
    at_best = reference.scores(questions, found["best_f1_threshold"] + 1e-5)
    assert at_best["f1"] == pytest.approx(found["best_f1"], abs=1e-3)


@pytest.mark.slow
def test_answers_of_windows_and_of_other_tasks(toy):
    model, pairs = RandomLogits(), [("who?", ""), ("who?", "Ann")]
    answer = SpanAnswerer(engine_of(model), toy, LENGTHS)
    assert answer([]) == []
    none, some = answer(pairs)
    assert none.text == "" and some.text in "Ann" and some.text
    with pytest.raises(ValueError, match="answers of mini_cogs are no spans"):
        SpanAnswerer(engine_of(model), get_task("mini_cogs"), LENGTHS)


def test_tfds_gives_what_the_files_give():
    with tfds.testing.mock_data(num_examples=1):
        source = get_task("squad_spans").source
        spec = source.get_dataset("validation", shuffle=False).element_spec
    rows = squad.question_source(lambda split: ROWS, ["dev"])
    expected = rows.get_dataset("dev", shuffle=False).element_spec

    def flat(spec):
        spec = {**spec, **spec["answers"]}
        names = ("id", "question", "context", "text", "answer_start")
        return {name: (spec[name].dtype, spec[name].shape) for name in names}

    assert str(flat(spec)) == str(flat(expected))
    assert set(source.splits) == {"train", "validation"}


def test_files_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REMIXER_TF_SQUAD_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"one file train\*\.json .*none"):
        squad.read_split("train")
    (tmp_path / "train-v2.0.json").write_text(as_json(ROWS))
    with gzip.open(tmp_path / "dev-v1.1.json.gz", "wt") as file:
        file.write(as_json(ROWS[:2]))
    assert squad.read_split("validation") == ROWS[:2]
    assert sorted(squad.read_split("train"), key=lambda r: r["id"]) == ROWS
    examples = read_examples(
        get_task("squad_files_spans"),
        "validation",
        LONG,
    )
    assert [e["targets_pretokenized"] for e in examples] == [b"Ann", "Köln".encode()]
    (tmp_path / "train-v1.1.json").write_text(as_json(ROWS))
    with pytest.raises(FileNotFoundError, match="train-v1.1.json, train-v2.0.json"):
        squad.read_split("train")
    monkeypatch.delenv("REMIXER_TF_SQUAD_DIR")
    with pytest.raises(FileNotFoundError, match="squad_files.directory"):
        squad.read_split("train")


def test_gin_names_the_folder(tmp_path):
    (tmp_path / "dev.json").write_text(as_json(ROWS))
    bindings = [f"squad_files.directory = '{tmp_path}'", "INITIAL_CHECKPOINT = 'mlm'"]
    files = ["models/gmlp_tiny_mlm.gin", "runs/finetune_squad.gin"]
    try:
        bindings.append("VOCABULARY_FILE = 'a.model'")
        settings = configuration.read(files, bindings)
        put_into_gin(settings)
        search = value_of(settings, "DecodedEvaluation.decode_fn")
        assert search.__name__ == "best_span"
        assert squad.read_split("validation") == ROWS
    finally:
        gin.clear_config()
        squad.data_folder.set(None)


def with_answer(**changes):
    """A file of a question, in which a part is of another kind."""
    answer = {"text": "Ann", "answer_start": 0} | changes
    qa = {"id": "1", "question": "who?", "answers": [answer]} | changes
    paragraph = {"context": "Ann won", "qas": [qa]} | changes
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"data": [{"paragraphs": 1}]}',
        *(with_answer(**{name: 5}) for name in ("id", "question", "context", "text")),
        with_answer(id=["1"]),
        with_answer(answers=["Ann"]),
        with_answer(answers=None),
        with_answer(answer_start="0"),
        with_answer(answer_start=None),
        with_answer(text="\ud800"),
    ],
    ids=range(13),
)
def test_a_file_of_another_format(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match="a.json is not of SQuAD's format"):
        squad.read_json(str(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("start", "text", "right"),
    [(0, "Ann", True), (4, "won", True), (1, "Ann", False), (-7, "Ann", False),
     (99, "won", False), (5, "won", False)],
)  # fmt: skip
def test_answers_that_stand_elsewhere_are_told(tmp_path, caplog, start, text, right):
    """As of a file that counts bytes."""
    content = with_answer(answer_start=start, text=text)
    (tmp_path / "a.json").write_text(content)
    assert len(squad.read_json(str(tmp_path / "a.json"))) == 1
    words = "answers of 1 of 1 questions do not stand at answer_start"
    assert (words in caplog.text) == (not right)


def test_an_id_names_one_question(tmp_path):
    (tmp_path / "a.json").write_text(as_json([ROWS[0], ROWS[0]]))
    with pytest.raises(ValueError, match="an id must name one question"):
        squad.read_json(str(tmp_path / "a.json"))


@pytest.mark.real_data
@pytest.mark.slower
def test_the_target_spans_of_xquad_score_well(real_data_dir, toy):
    """T5's pieces hold more than some answers, mostly what the scores leave out."""
    path = str(real_data_dir / "squad" / "xquad.en.json")
    source = squad.question_source(lambda split: squad.read_json(path), ["dev"])
    task = get_task(
        toy.replace(source=source),
        sentencepiece_vocabulary(
            real_data_dir / "sentencepiece" / "t5_spiece.model", extra_ids=3
        ),
    )
    examples = read_examples(task, "dev", LONG)
    spans = np.stack([example["targets"] for example in examples])
    scores = np.zeros([len(spans), 3], np.float32)
    # A window without the whole answer has no span.
    scores[:, 0] = np.where(spans.any(axis=1), 0.0, -np.inf)
    decoded = DecodedExamples(spans, scores)
    found = compute_metrics(task, examples, decoded.outputs())
    assert found["em"] > 99.9 and found["f1"] > 99.9
