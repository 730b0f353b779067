"""GLUE, SuperGLUE, DPR and SQuAD from their own files, against TensorFlow Datasets."""

import gzip
import json

import numpy as np
import pytest
import requests
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from remixer_tf import configuration
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.data.failures import how_to_fetch
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import benchmark_files, squad
from remixer_tf.tasks.folders import FilesOrTfds
from tests.tasks.benchmark_layouts import write_glue, write_squad, write_super_glue

FOLDERS = (
    benchmark_files.glue_folder,
    benchmark_files.super_glue_folder,
    squad.data_folder,
)
# For each set a task, a split, and its first example but for the ids of its texts.
EXAMPLES = {
    ("super_glue_boolq_v102", "validation"): {
        "inputs_pretokenized": "boolq passage: It — is. question: is it",
        "targets_pretokenized": "True",
        "idx": 0,
    },
    ("super_glue_cb_v102", "validation"): {
        "inputs_pretokenized": "cb hypothesis: H premise: P.",
        "targets_pretokenized": "contradiction",
        "idx": 0,
    },
    ("super_glue_copa_v102", "validation"): {
        "inputs_pretokenized": "copa choice1: A. choice2: B. premise: P. "
        "question: cause",
        "targets_pretokenized": "choice2",
        "idx": 0,
    },
    ("super_glue_multirc_v102", "validation"): {
        "inputs_pretokenized": "multirc question: What fell? answer: Rain "
        "paragraph: Sent 1: It rained. ",
        "targets_pretokenized": "True",
        "idx/paragraph": 0,
        "idx/question": 3,
        "idx/answer": 7,
    },
    ("super_glue_record_v102", "validation"): {
        "inputs_pretokenized": "record query: @placeholder left. entities: Ann, Bo "
        'passage: Ann met "Bo" in Rome. Bo went home',
        "targets_pretokenized": "Ann",
        "answers": ["Ann", "Bo"],
        "idx/passage": 0,
        "idx/query": 5,
    },
    ("super_glue_rte_v102", "test"): {
        "inputs_pretokenized": "rte hypothesis: H. premise: P.",
        "targets_pretokenized": "<unk>",
        "idx": 0,
    },
    ("super_glue_wic_v102", "validation"): {
        "inputs_pretokenized": "wic sentence1: My place. sentence2: A place. "
        "word: place",
        "targets_pretokenized": "False",
        "idx": 0,
    },
    ("super_glue_axb_v102", "test"): {
        "inputs_pretokenized": "rte hypothesis: H. premise: P.",
        "targets_pretokenized": "entailment",
        "idx": 0,
    },
    ("super_glue_wsc_v102_simple_train", "train"): {
        "inputs_pretokenized": "wsc: Mark told Pete lies. *He* should have been "
        "careful.",
        "targets_pretokenized": "Pete",
        "label": 1,
        "idx": 1,
    },
    ("super_glue_wsc_v102_simple_eval", "validation"): {
        "inputs_pretokenized": "wsc: Mark told Pete lies. *He* should have been "
        "careful.",
        "targets_pretokenized": "Mark",  # As TFDS mends "mark".
        "label": 0,
        "idx": 0,
    },
    ("dpr_v001_simple", "test"): {
        "inputs_pretokenized": "wsc: Bob asked Tom if *he* can lend money.",
        "targets_pretokenized": "Tom",
    },
    ("glue_cola_v002", "validation"): {
        "inputs_pretokenized": "cola sentence: The sailors rode.",
        "targets_pretokenized": "acceptable",
        "idx": 0,
    },
    ("glue_sst2_v002", "validation"): {
        "inputs_pretokenized": "sst2 sentence: a charming journey . ",
        "targets_pretokenized": "positive",
        "idx": 0,
    },
    ("glue_mrpc_v002", "validation"): {
        "inputs_pretokenized": 'mrpc sentence1: He said "no. sentence2: He said no.',
        "targets_pretokenized": "equivalent",
        "idx": 0,
    },
    ("glue_qqp_v002", "validation"): {
        "inputs_pretokenized": "qqp question1: How? question2: How so?",
        "targets_pretokenized": "duplicate",
        "idx": 0,
    },
    ("glue_stsb_v002", "validation"): {
        "inputs_pretokenized": "stsb sentence1: A plane. sentence2: An air plane.",
        "targets_pretokenized": "4.8",
        "idx": 0,
    },
    ("glue_mnli_v002", "validation_mismatched"): {
        "inputs_pretokenized": "mnli hypothesis: H. premise: P.",
        "targets_pretokenized": "neutral",
        "idx": 0,
    },
    ("glue_qnli_v002", "validation"): {
        "inputs_pretokenized": "qnli question: What? sentence: That.",
        "targets_pretokenized": "entailment",
        "idx": 0,
    },
    ("glue_rte_v002", "validation"): {
        "inputs_pretokenized": "rte sentence1: P. sentence2: H.",
        "targets_pretokenized": "not_entailment",
        "idx": 0,
    },
    ("glue_wnli_v002_simple_eval", "validation"): {
        "inputs_pretokenized": "wsc: The fish ate the worm. *It* was tasty.",
        "targets_pretokenized": "The worm",
        "premise": "The fish ate the worm. It was tasty.",
        "hypothesis": "The worm was tasty.",
        "label": 1,
        "idx": 0,
    },
    ("glue_ax_v002", "test"): {
        "inputs_pretokenized": "mnli hypothesis: H. premise: P.",
        "targets_pretokenized": "<unk>",
        "idx": 0,
    },
    ("squad_v010_allanswers", "validation"): {
        "inputs_pretokenized": "question: Where ? context: Ann was in Rome . ",
        "targets_pretokenized": "Rome",
        "question": "Where ? ",
        "context": "Ann was in Rome . ",
        "answers": ["Rome", "in Rome"],
        "id": "q1",
    },
}
QUICK = ("super_glue_record_v102", "glue_stsb_v002")
# Sets in which something is not a plain column.
QUIRKS = [
    "super_glue_multirc_v102",
    "super_glue_record_v102",
    "super_glue_wsc_v102_simple_eval",
    "dpr_v001_simple",
    *(f"glue_{name}_v002" for name in "cola qqp stsb mnli".split()),
    "squad_v010_allanswers",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the files of all."""
    root = tmp_path_factory.mktemp("benchmarks")
    write_glue(root / "glue")
    write_super_glue(root / "superglue")
    write_squad(root / "squad")
    return root


@pytest.fixture
def files(root, monkeypatch):
    """The same, and the tasks read it."""
    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    for folder, name in zip(FOLDERS, ("glue", "superglue", "squad"), strict=True):
        folder.set(str(root / name))
    yield root
    for folder in FOLDERS:
        folder.set(None)


def serve_to_tfds(root, monkeypatch):
    """Lets TFDS take what it would download from the folder."""

    def fetch(manager, urls):
        if isinstance(urls, dict):
            return {name: fetch(manager, url) for name, url in urls.items()}
        name = urls.rsplit("/", 1)[-1]
        if name.endswith(".c.txt"):
            return str(root / "superglue" / "DPR" / name)
        if name.endswith(".json"):
            return str(root / "squad" / name)
        return str(root / ("superglue" if "superglue" in urls else "glue"))

    tfds.disable_progress_bar()
    for method in ("download", "download_and_extract"):
        monkeypatch.setattr(tfds.download.DownloadManager, method, fetch)


def plain(value):
    """A value as text that can be sorted and compared, types included."""
    if isinstance(value, dict):
        return repr({k: plain(v) for k, v in sorted(value.items()) if k != "title"})
    return f"{np.asarray(value).dtype} {np.asarray(value).tolist()}"


def dtypes(dataset):
    """The types of a dataset's features but SQuAD's title, which no task reads."""
    spec = {k: v for k, v in dataset.element_spec.items() if k != "title"}
    return tf.nest.map_structure(lambda x: x.dtype, spec)


def text(value):
    """Bytes as str, arrays as lists."""
    if isinstance(value, np.ndarray):
        return [text(x) for x in value.tolist()]
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize(
    ("task", "split"),
    [
        pytest.param(*key, marks=[] if key[0] in QUICK else pytest.mark.slow)
        for key in EXAMPLES
    ],
)
def test_the_first_example(files, task, split):
    vocabulary = byte_vocabulary()
    examples = get_task(task, vocabulary).get_dataset(None, split, shuffle=False)
    example = next(examples.as_numpy_iterator())
    expected = EXAMPLES[task, split]
    ids = {
        name: [*vocabulary.encode(expected[f"{name}_pretokenized"]), 1]
        for name in ("inputs", "targets")
    }
    assert {k: text(v) for k, v in example.items()} == expected | ids


@pytest.mark.slow
def test_tfds_gives_equal_examples(files, tmp_path, monkeypatch):
    """Every example of every split, as it comes to T5's preprocessors."""
    serve_to_tfds(files, monkeypatch)
    compared = {}
    for name in QUIRKS:
        source = seqio.TaskRegistry.get(name).source
        # This TFDS prepares no other version of GLUE than the newest.
        dataset = source.tfds_dataset.name.replace("1.0.0", "2.0.0")
        builder = tfds.builder(dataset, data_dir=tmp_path)
        builder.download_and_prepare(file_format="tfrecord")
        assert set(source.splits) <= set(builder.info.splits)
        for split in source.splits:
            ours = source.get_dataset(split)
            theirs = builder.as_dataset(split=split)
            assert dtypes(ours) == dtypes(theirs), dataset
            examples = [
                sorted(map(plain, d.as_numpy_iterator())) for d in (ours, theirs)
            ]
            compared[f"{name} {split}"] = len(examples[0])
            assert len(examples[0]) == source.num_input_examples(split)
            assert examples[0] == examples[1], (dataset, split)
    assert compared["glue_qqp_v002 train"] == 2  # Without the row that is too short.
    assert sum(compared.values()) == 42


def test_gin_names_the_folders_and_the_mixtures_read_them(root, monkeypatch, clear_gin):
    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    files = ["models/t5_1_1_tiny.gin", "runs/finetune_superglue.gin"]
    folders = zip(FOLDERS, ("glue", "superglue", "squad"), strict=True)
    bindings = [f"{folder.option} = '{root / name}'" for folder, name in folders]
    bindings.append("INITIAL_CHECKPOINT = 'run'")
    put_into_gin(configuration.read(files, bindings))
    counts = {
        mixture: get_task(mixture).num_input_examples("train")
        for mixture in ("super_glue_v102_proportional", "glue_v002_proportional")
    }
    assert counts == {
        "super_glue_v102_proportional": 17,
        "glue_v002_proportional": 16,
    }


def test_a_compressed_file_and_t5s_name_of_the_folder(files, tmp_path):
    content = (files / "glue" / "SST-2" / "dev.tsv").read_bytes()
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "dev.tsv.gz").write_bytes(gzip.compress(content))
    benchmark_files.glue_folder.set(str(tmp_path))
    source = seqio.TaskRegistry.get("glue_sst2_v002").source
    assert [
        text(e["sentence"])
        for e in source.get_dataset("validation").as_numpy_iterator()
    ] == [
        "a charming journey . ",
        "bleak ",
    ]


def test_mnli_in_json_lines(files, tmp_path, caplog):
    (tmp_path / "mnli").mkdir()
    (tmp_path / "mnli" / "train_10k.jsonl").write_text(
        json.dumps({"premise": "P", "hypothesis": "H", "label": "contradiction"})
    )
    benchmark_files.glue_folder.set(str(tmp_path))
    source = seqio.TaskRegistry.get("glue_mnli_v002").source
    (example,) = source.get_dataset("train").as_numpy_iterator()
    assert {k: text(v) for k, v in example.items()} == {
        "premise": "P",
        "hypothesis": "H",
        "label": 2,
        "idx": 0,
    }
    assert "train_10k.jsonl is read, not the set's own train.tsv" in caplog.text


@pytest.mark.parametrize(
    ("task", "name", "content", "words"),
    [
        (
            "super_glue_boolq_v102",
            "BoolQ",
            '{"question": "q"}\n',
            "after 0 examples.*KeyError",
        ),
        ("super_glue_boolq_v102", "BoolQ", "not JSON\n", "boolq:1.0.2 validation"),
        (
            "super_glue_boolq_v102",
            "BoolQ",
            '{"question": "q", "passage": "p", "idx": 0}\n',
            "AssertionError",
        ),
        ("super_glue_boolq_v102", "BoolQ", "", "no example"),
    ],
)
def test_wrong_files(files, tmp_path, task, name, content, words):
    (tmp_path / name).mkdir()
    (tmp_path / name / "val.jsonl").write_text(content)
    benchmark_files.super_glue_folder.set(str(tmp_path))
    with pytest.raises(ValueError, match=f"{name}/val.jsonl, .*{words}") as error:
        seqio.TaskRegistry.get(task).source.get_dataset("validation")
    assert isinstance(error.value, configuration.UserError)


def test_a_test_set_without_examples(files, tmp_path):
    (tmp_path / "BoolQ").mkdir()
    (tmp_path / "BoolQ" / "test.jsonl").touch()
    benchmark_files.super_glue_folder.set(str(tmp_path))
    with pytest.raises(configuration.UserError, match="it has no examples"):
        seqio.TaskRegistry.get("super_glue_boolq_v102").source.get_dataset("test")


def test_a_column_without_labels_is_no_training_file(files, tmp_path):
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tclass\nfine\t1\n")
    benchmark_files.glue_folder.set(str(tmp_path))
    with pytest.raises(ValueError, match="no example has a label"):
        seqio.TaskRegistry.get("glue_sst2_v002").source.get_dataset("train")


def test_missing_files_slices_and_squad_2(files, tmp_path):
    source = seqio.TaskRegistry.get("super_glue_boolq_v102").source
    with pytest.raises(ValueError, match="whole splits are read: train, validation"):
        source.get_dataset("train[:2]")
    benchmark_files.super_glue_folder.set(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no BoolQ/train.jsonl or .*holds: no"):
        source.get_dataset("train")
    rows = json.loads((files / "squad" / "dev-v1.1.json").read_text())
    rows["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(rows))
    squad.data_folder.set(str(tmp_path))
    with pytest.raises(ValueError, match="1 of the 1 questions.*squad_files_spans"):
        seqio.TaskRegistry.get("squad_v010_allanswers").source.get_dataset("validation")


def test_no_folder_and_no_network(monkeypatch, tmp_path):
    def fail(url, timeout):
        raise requests.ConnectionError("no network")

    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    monkeypatch.setattr(requests, "head", fail)
    folder = benchmark_files.super_glue_folder
    source = FilesOrTfds("super_glue/cb:1.0.2", folder, None)
    source.tfds_dataset.override_data_dir(str(tmp_path))
    for ask in (source.get_dataset, source.num_input_examples, source.list_shards):
        with pytest.raises(FileNotFoundError, match="super_glue.directory") as error:
            ask("train")
        assert str(error.value).endswith(
            f"Or fetch it: {how_to_fetch('super_glue/cb:1.0.2')}"
        )
