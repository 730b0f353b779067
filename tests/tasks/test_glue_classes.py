import numpy as np
import pytest

from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import benchmark_files
from tests.tasks.benchmark_layouts import write_glue

CLS, SEP = 260, 259
# A split, and the texts and the class of its first two examples.
EXPECTED = {
    "sst2_classes": (
        "validation",
        [("a charming journey . ", "positive", 1), ("bleak ", "negative", 0)],
    ),
    "mnli_classes": (
        "validation_mismatched",
        [("P.", "H.", "neutral", 1), ("Q.", "I.", "contradiction", 2)],
    ),
    "qnli_classes": (
        "validation",
        [("What?", "That.", "entailment", 0), ("Who?", "She.", "not_entailment", 1)],
    ),
    "rte_classes": (
        "validation",
        [("P.", "H.", "not_entailment", 1), ("Q.", "I.", "entailment", 0)],
    ),
}


@pytest.fixture
def folder(tmp_path):
    write_glue(tmp_path)
    benchmark_files.glue_folder.set(str(tmp_path))
    yield
    benchmark_files.glue_folder.set(None)


@pytest.mark.parametrize("name", EXPECTED)
def test_examples(folder, name):
    vocabulary = byte_vocabulary(extra_ids=3)
    task = get_task(name, vocabulary)
    assert not any(split.startswith("test") for split in task.splits)
    split, rows = EXPECTED[name]
    lengths = {"inputs": 64, "token_types": 64, "targets": 1}
    examples = task.get_dataset(lengths, split, shuffle=False).as_numpy_iterator()
    for i, (example, (*texts, class_, id_)) in enumerate(
        zip(examples, rows, strict=True)
    ):
        inputs, types = [CLS], [0]
        for number, text in enumerate(texts):
            ids = [*vocabulary.encode(text), SEP]
            inputs, types = inputs + ids, types + [number] * len(ids)
        names = ("inputs_pretokenized", "inputs_b_pretokenized")
        expected = dict(zip(names, (text.encode() for text in texts), strict=False))
        assert {k: np.asarray(v).tolist() for k, v in example.items()} == expected | {
            "inputs": inputs,
            "token_types": types,
            "targets": [id_],
            "targets_pretokenized": class_.encode(),
            "idx": i,
        }
