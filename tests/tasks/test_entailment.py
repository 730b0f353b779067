"""Sets of inference as text: the files, the form, the score."""

import gzip
import json

import gin
import numpy as np
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from remixer_tf import configuration
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.pipeline import get_task
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.tasks import entailment

CONJNLI = (
    '\ufeffPremise\tHypothesis\tLabel\nA and "B".\tB.\tentailment\nC.\tÖ.\tneutral\n'
)
ART = [
    {"obs1": "He ran.", "obs2": "He fell.", "hyp1": "Ice lay.", "hyp2": "It was dry."},
    {"obs1": "o", "obs2": "p", "hyp1": "h", "hyp2": "i", "story_id": "x"},
]


ANLI = {"uid": "u", "context": "C.", "hypothesis": "H.", "label": "c", "reason": ""}
SNLI = [
    {"gold_label": label, "sentence1": "P.", "sentence2": "H.", "pairID": "x"}
    for label in ("-", "neutral")
]
HANS = (
    "gold_label\tsentence1_parse\tsentence1\tsentence2\theuristic\n"
    "non-entailment\t(P)\tP.\tH.\tsubsequence\n"
)
FOLDERS = (
    entailment.anli_folder,
    entailment.art_folder,
    entailment.conjnli_folder,
    entailment.hans_folder,
    entailment.snli_folder,
)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path):
    with gzip.open(tmp_path / "adversarial_train_15k.tsv.gz", "wt") as file:
        file.write(CONJNLI)
    (tmp_path / "conj_dev.tsv").write_text(CONJNLI)
    (tmp_path / "conj_test.tsv").write_text("Premise\tHypothesis\nP.\tH.\n")
    write_lines(tmp_path / "dev.jsonl", ART)
    (tmp_path / "dev-labels.lst").write_text("1\n2\n")
    (tmp_path / "R2").mkdir()
    write_lines(tmp_path / "R2" / "train.jsonl", [ANLI])
    write_lines(tmp_path / "snli_1.0_dev.jsonl", SNLI)
    (tmp_path / "heuristics_evaluation_set.txt").write_text(HANS)
    for data_folder in FOLDERS:
        data_folder.set(str(tmp_path))
    yield tmp_path
    for data_folder in FOLDERS:
        data_folder.set(None)


def read(task, split):
    """The examples of a split as pairs of texts; the rest must follow from them."""
    task = get_task(task)
    vocabulary = task.output_features["inputs"].vocabulary
    texts = []
    for example in task.get_dataset(None, split, shuffle=False).as_numpy_iterator():
        pair = [
            example.pop(f"{name}_pretokenized").decode()
            for name in ("inputs", "targets")
        ]
        ids = [[*vocabulary.encode(text), 1] for text in pair]
        ids = dict(zip(("inputs", "targets"), ids, strict=True))
        assert {name: x.tolist() for name, x in example.items()} == ids
        texts.append(tuple(pair))
    return texts


def test_snli_test_is_the_plain_one_and_another_file_is_told(tmp_path, caplog):
    entailment.snli_folder.set(str(tmp_path))
    rows = {name: SNLI[1] | {"sentence1": name} for name in ("hard", "plain", "own")}
    names = ("snli_1.0_test_hard.jsonl", "test.jsonl", "snli_1.0_test.jsonl")
    source = get_task("snli").source
    for (name, row), file in zip(rows.items(), names, strict=True):
        caplog.clear()
        write_lines(tmp_path / file, [row])
        (example,) = source.get_dataset("test").as_numpy_iterator()
        assert example["premise"] == name.encode()
        told = f"{file} is read, not the set's own snli_1.0_test.jsonl" in caplog.text
        assert told == (name != "own")
    entailment.snli_folder.set()


def test_a_line_of_art_may_hold_other_line_breaks(folder):
    rows = [ART[0] | {"obs1": "a\u2028b"}, ART[1]]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "dev.jsonl").write_text("\n".join([*lines, "", ""]))
    assert [row[2] for row in entailment.read_art("validation")] == ["a\u2028b", "o"]


def test_splits_without_a_file_are_left_out_unless_asked_for(folder, caplog):
    lengths = {"inputs": 4, "targets": 4}
    evaluation = LossEvaluation("hans", feature_lengths=lengths)
    assert evaluation.parts() == [("hans", "validation")]
    assert "hans test is left out: There is no eval.tsv" in caplog.text
    asked = LossEvaluation("hans", feature_lengths=lengths, splits=["test"])
    with pytest.raises(FileNotFoundError, match="no eval.tsv"):
        asked.check(str(folder))
    (folder / "heuristics_evaluation_set.txt").unlink()
    with pytest.raises(FileNotFoundError, match="no heuristics_evaluation_set.txt"):
        LossEvaluation("hans", feature_lengths=lengths).parts()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_conjnli(folder, split):
    assert read("conjnli", split) == [
        ('conjnli hypothesis: B. premise: A and "B".', "entailment"),
        ("conjnli hypothesis: Ö. premise: C.", "neutral"),
    ]


def test_art(folder):
    first, second = read("art", "validation")
    assert first == (
        "art hypothesis_1: Ice lay. hypothesis_2: It was dry. "
        "observation_1: He ran. observation_2: He fell.",
        "1",
    )
    assert second[1] == "2"
    with pytest.raises(FileNotFoundError, match=r"no train\.jsonl or train\.jsonl\.gz"):
        entailment.read_art("train")


def test_sets_of_files(folder):
    assert read("conjnli", "test") == [
        ("conjnli hypothesis: H. premise: P.", "<unk>")  # Without labels.
    ]
    assert read("anli_r2", "train") == [
        ("anli hypothesis: H. premise: C.", "contradiction")
    ]
    assert read("snli", "validation") == [  # Without the pair that is disputed.
        ("snli hypothesis: H. premise: P.", "neutral")
    ]


def test_rounds_in_one_file(folder):
    rows = [
        {"premise": f"P{n}", "hypothesis": "H", "label": "neutral", "tag": f"r{n}_test"}
        for n in (1, 2, 3, 3)
    ]
    write_lines(folder / "test_r1r2r3.jsonl", rows)
    sources = [get_task(f"anli_r{n}").source for n in (1, 2, 3)]
    assert [s.num_input_examples("test") for s in sources] == [1, 1, 2]


def test_hans(folder):
    task = get_task("hans")
    (example,) = read_examples(task, "validation", {})
    vocabulary = task.output_features["inputs"].vocabulary
    text, target = "mnli hypothesis: H. premise: P.", "non-entailment"
    assert {name: np.asarray(x).tolist() for name, x in example.items()} == {
        "inputs": [*vocabulary.encode(text), 1],
        "targets": [*vocabulary.encode(target), 1],
        "inputs_pretokenized": text.encode(),
        "targets_pretokenized": target.encode(),
        "idx": b"subsequence",
    }
    of = task.postprocess_fn(target, example=example, is_target=True)
    assert of == (1, "subsequence")
    words = ["entailment", "neutral", "contradiction", "non-entailment", "yes"]
    said = [task.postprocess_fn(word) for word in words]
    assert said == [0, 1, 1, 1, -1]
    (metric,) = task.metric_fns
    heuristics = ("subsequence", "constituent")
    other = [entailment.HansTarget(0, heuristic) for heuristic in heuristics]
    assert metric([of, of, of, *other], said) == {
        "accuracy": 40.0,
        "accuracy/entailed/constituent": 0.0,
        "accuracy/entailed/subsequence": 0.0,
        "accuracy/non-entailed/subsequence": pytest.approx(200 / 3),
    }
    file = folder / "heuristics_evaluation_set.txt"
    file.write_text(HANS.replace("heuristic", "subcase"))
    with pytest.raises(ValueError, match="has no column heuristic. It has: gold_label"):
        task.num_input_examples("validation")


def test_anli_and_snli_of_tfds():
    """The rows that TFDS describes, whose files are not at hand."""
    features = tfds.builder("anli/r2:0.1.0").info.features
    assert [name[0] for name in entailment.THREE_CLASSES] == features["label"].names
    rows = {name: [f"the {name}"] for name in features if name != "label"}
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices(
            {**rows, "label": [2]}
        ),
        ["dev"],
    )
    task = get_task("anli_r2").replace(source=source)
    assert read(task, "dev") == [
        ("anli hypothesis: the hypothesis premise: the context", "contradiction")
    ]
    tasks = seqio.get_subtasks(get_task("anli"))
    assert [task.name for task in tasks] == ["anli_r1", "anli_r2", "anli_r3"]
    assert tasks[1].source.tfds_dataset.name == "anli/r2:0.1.0"
    assert set(tasks[1].splits) == {"train", "validation", "test"}
    features = tfds.builder("snli:1.1.0").info.features
    assert features["label"].names == entailment.THREE_CLASSES
    rows = {"premise": ["P", "P"], "hypothesis": ["H", "H"], "label": [-1, 0]}
    assert set(features) == set(rows)
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices(rows), ["dev"]
    )
    assert read(get_task("snli").replace(source=source), "dev") == [
        ("snli hypothesis: H premise: P", "entailment")
    ]


def test_accuracy():
    task = get_task("conjnli")
    said, right = ["neutral", "a lot", "contradiction"], ["neutral"] * 3
    (metric,) = task.metric_fns
    ids = [[task.postprocess_fn(text) for text in texts] for texts in (right, said)]
    assert ids == [[1, 1, 1], [1, -1, 2]]
    assert metric(*ids) == {"accuracy": pytest.approx(100 / 3)}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("conj_dev.tsv", "a\tb\n", "no column premise or .* It has: a, b"),
        ("conj_dev.tsv", CONJNLI + "c\td\tyes\n", "line 4: Label 'yes' is none of ent"),
        ("conj_dev.tsv", CONJNLI + "c\td\n", "line 4: wrong column count"),
        ("dev.jsonl", "{}\n{}\n", "Line 1 of .*JSON object with obs1"),
        ("dev.jsonl", "{}\n", "dev-labels.lst has 2 lines, and .* has 1"),
        ("dev-labels.lst", "3\n1\n", "Line 1 of .*and 1 or 2"),
    ],
)
def test_wrong_files(folder, name, content, words):
    (folder / name).write_text(content)
    task = get_task("art" if name.startswith("dev") else "conjnli")
    with pytest.raises(ValueError, match=words):
        task.num_input_examples("validation")


def test_not_text(folder):
    rows = CONJNLI.encode() + "Prämisse\tH\tneutral\n".encode("latin-1")
    (folder / "conj_dev.tsv").write_bytes(rows)
    with pytest.raises(ValueError, match="conj_dev.tsv, line 4: invalid UTF-8"):
        get_task("conjnli").num_input_examples("validation")


def test_gin_names_the_folder(folder):
    entailment.conjnli_folder.set(None)
    bindings = [f"conjnli.directory = '{folder}'", "INITIAL_CHECKPOINT = 'run'"]
    files = ["models/t5_1_1_base.gin", "runs/finetune_entailment.gin"]
    try:
        put_into_gin(configuration.read(files, [*bindings, "TASK = 'conjnli'"]))
        assert get_task("conjnli").num_input_examples("validation") == 2
    finally:
        gin.clear_config()


def test_no_folder(monkeypatch):
    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="conjnli.directory.*CONJNLI_DIR"):
        get_task("conjnli").num_input_examples("train")
