"""Sets of inference as text: the files, the form, the score."""

import collections
import gzip
import json

import gin
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from remixer_tf import configuration
from remixer_tf.data.pipeline import get_task
from remixer_tf.tasks import entailment

CONJNLI = (
    '\ufeffPremise\tHypothesis\tLabel\nA and "B".\tB.\tentailment\nC.\tÖ.\tneutral\n'
)
ART = [
    {"obs1": "He ran.", "obs2": "He fell.", "hyp1": "Ice lay.", "hyp2": "It was dry."},
    {"obs1": "o", "obs2": "p", "hyp1": "h", "hyp2": "i", "story_id": "x"},
]


@pytest.fixture
def folder(tmp_path):
    with gzip.open(tmp_path / "adversarial_train_15k.tsv.gz", "wt") as file:
        file.write(CONJNLI)
    (tmp_path / "conj_dev.tsv").write_text(CONJNLI)
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, ART)) + "\n")
    (tmp_path / "dev-labels.lst").write_text("1\n2\n")
    entailment.set_conjnli_directory(str(tmp_path))
    entailment.set_art_directory(str(tmp_path))
    yield tmp_path
    entailment.set_conjnli_directory(None)
    entailment.set_art_directory(None)


def read(task, split):
    """The examples of a split as pairs of texts, and the task."""
    task = get_task(task)
    lengths = {"inputs": 128, "targets": 32}
    examples = task.get_dataset(lengths, split, shuffle=False).as_numpy_iterator()
    return [
        tuple(e[f"{name}_pretokenized"].decode() for name in ("inputs", "targets"))
        for e in examples
    ]


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


def test_anli():
    """The rows that TFDS describes, whose files are not at hand."""
    features = tfds.builder("anli/r2:0.1.0").info.features
    assert [name[0] for name in entailment.CLASSES] == features["label"].names
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
        ("conj_dev.tsv", "a\tb\n", "line 1: expected premise, hypothesis and one of"),
        ("conj_dev.tsv", "a\tb\tneutral\nc\td\tyes\n", "line 2: .*'yes'"),
        ("dev.jsonl", "{}\n{}\n", "Line 1 of .*KeyError"),
        ("dev.jsonl", "{}\n", "dev-labels.lst has 2 lines, and .* has 1"),
        ("dev-labels.lst", "3\n1\n", "Line 1 of .*and 1 or 2"),
    ],
)
def test_wrong_files(folder, name, content, words):
    (folder / name).write_text(content)
    read = entailment.read_art if name.startswith("dev") else entailment.read_conjnli
    with pytest.raises(ValueError, match=words):
        read("validation")


def test_not_text(folder):
    (folder / "conj_dev.tsv").write_bytes("Prämisse".encode("latin-1"))
    with pytest.raises(ValueError, match="conj_dev.tsv is not UTF-8"):
        entailment.read_conjnli("validation")


def test_gin_names_the_folder(folder):
    entailment.set_conjnli_directory(None)
    bindings = [f"conjnli.directory = '{folder}'", "INITIAL_CHECKPOINT = 'run'"]
    files = ["models/t5_1_1_base.gin", "runs/finetune_entailment.gin"]
    try:
        configuration.parse_gin(files, [*bindings, "TASK = 'conjnli'"])
        assert len(entailment.read_conjnli("validation")) == 2
    finally:
        gin.clear_config()


def test_no_folder(monkeypatch):
    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="conjnli.directory.*CONJNLI_DIR"):
        entailment.read_conjnli("train")


@pytest.mark.real_data
def test_the_real_sets(real_data_dir, monkeypatch):
    monkeypatch.setenv("REMIXER_TF_DATA", str(real_data_dir))
    counts = collections.Counter(row[-1] for row in entailment.read_conjnli("train"))
    assert counts == {0: 5820, 1: 6757, 2: 2423}
    counts = collections.Counter(
        row[-1] for row in entailment.read_conjnli("validation")
    )
    assert counts == {0: 204, 1: 281, 2: 138}
    counts = collections.Counter(row[-1] for row in entailment.read_art("validation"))
    assert counts == {0: 781, 1: 751}
