"""SQuAD: the files, and the scores of questions over their windows."""

import gzip
import json

import gin
import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from remixer_tf import configuration
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.evaluation.scoring import DecodedExamples, compute_metrics
from remixer_tf.tasks import squad, squad_files
from remixer_tf.tasks.squad import Question

CLS, NONE = [0, 0], []
LENGTHS = {"inputs": 13, "token_types": 13, "targets": 2}


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


def scores(*windows):
    """`squad_scores` of (id, answers, prediction, score)."""
    targets = [Question(name, answers) for name, answers, _, _ in windows]
    predictions = [window[2] for window in windows]
    aux = {"scores": np.array([window[3] for window in windows], np.float32)}
    return squad.squad_scores(targets, predictions, aux)


def test_the_best_window_that_gives_an_answer_counts():
    answers = ["Ann", "Ann or Bo"]
    windows = [("1", answers, "x", -3.0), ("1", answers, "", -0.1)]
    assert scores(*windows) == {"em": 0, "f1": 0}
    windows.append(("1", answers, "the ann.", -2.0))
    assert scores(*windows) == {"em": 100, "f1": 100}
    windows.append(("1", answers, "Bo", -1.0))  # half of the second: 1 of 1, 1 of 3
    assert scores(*windows) == pytest.approx({"em": 0, "f1": 50})
    windows += [("2", ["Köln"], "Köln", -9.0), ("2", ["Köln"], "", -1.0)]
    assert scores(*windows) == pytest.approx({"em": 50, "f1": 75})


def test_no_answer():
    assert scores(("1", ["Ann"], "", -1.0)) == {"em": 0, "f1": 0}
    assert scores(("3", NONE, "", -1.0)) == {"em": 100, "f1": 100}
    right, wrong = ("3", NONE, "", -1.0), ("4", NONE, "never", -1.0)
    assert scores(right, wrong) == {"em": 50, "f1": 50}
    ann = ("1", ["Ann", "Ann or Bo"], "Bo", -1.0)
    assert scores(right, wrong, ann) == pytest.approx({"em": 100 / 3, "f1": 50})


@pytest.fixture
def toy():
    source = squad.question_source(lambda split: ROWS, ["dev"])
    squad.add_task("toy_squad", source, max_question_length=5, stride=3)
    yield get_task("toy_squad")
    seqio.TaskRegistry.remove("toy_squad")


def test_spans_of_windows_become_scores(toy):
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
    spans = [CLS, [10, 11], [7, 9], [1, 2], [8, 9], [5, 6], [5, 9], CLS]
    log_probs = [-0.1, -2, -1, 0, -3, -1, -2, 0]
    decoded = DecodedExamples(np.array(spans), np.array(log_probs, np.float32), 1.0)
    # Ann, in and nothing: of two questions right.
    expected = {"em": 200 / 3, "f1": 200 / 3}
    assert compute_metrics(toy, examples, decoded) == pytest.approx(expected)


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
        squad_files.read_split("train")
    (tmp_path / "train-v2.0.json").write_text(as_json(ROWS))
    with gzip.open(tmp_path / "dev-v1.1.json.gz", "wt") as file:
        file.write(as_json(ROWS[:2]))
    assert squad_files.read_split("validation") == ROWS[:2]
    assert sorted(squad_files.read_split("train"), key=lambda r: r["id"]) == ROWS
    examples = read_examples(
        get_task("squad_files_spans"),
        "validation",
        {"inputs": 384, "token_types": 384, "targets": 2},
    )
    assert [e["targets_pretokenized"] for e in examples] == [b"Ann", "Köln".encode()]
    (tmp_path / "train-v1.1.json").write_text(as_json(ROWS))
    with pytest.raises(FileNotFoundError, match="train-v1.1.json, train-v2.0.json"):
        squad_files.read_split("train")
    monkeypatch.delenv("REMIXER_TF_SQUAD_DIR")
    with pytest.raises(FileNotFoundError, match="squad_files.directory"):
        squad_files.read_split("train")


def test_gin_names_the_folder(tmp_path):
    (tmp_path / "dev.json").write_text(as_json(ROWS))
    bindings = [f"squad_files.directory = '{tmp_path}'", "INITIAL_CHECKPOINT = 'mlm'"]
    files = ["models/gmlp_tiny_mlm.gin", "runs/finetune_squad.gin"]
    try:
        configuration.parse_gin(files, [*bindings, "VOCABULARY_FILE = 'a.model'"])
        for name in ("DecodedEvaluation", "evaluate"):
            assert gin.query_parameter(f"{name}.decode_fn").selector == "best_span"
        assert squad_files.read_split("validation") == ROWS
    finally:
        gin.clear_config()
        squad.set_directory(None)


@pytest.mark.parametrize("content", ["{", "[]", '{"data": [{"paragraphs": 1}]}'])
def test_a_file_of_another_format(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match="a.json is not of SQuAD's format"):
        squad.read_json(str(tmp_path / "a.json"))


def test_an_id_names_one_question(tmp_path):
    (tmp_path / "a.json").write_text(as_json([ROWS[0], ROWS[0]]))
    with pytest.raises(ValueError, match="an id must name one question"):
        squad.read_json(str(tmp_path / "a.json"))


@pytest.mark.real_data
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
    lengths = {"inputs": 384, "token_types": 384, "targets": 2}
    examples = read_examples(task, "dev", lengths)
    spans = np.stack([example["targets"] for example in examples])
    decoded = DecodedExamples(spans, np.zeros(len(spans), np.float32), 1.0)
    found = compute_metrics(task, examples, decoded)
    assert found["em"] > 99.9 and found["f1"] > 99.9
