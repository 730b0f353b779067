"""The tasks `anli`, `conjnli`, `snli`, `art`, `hans`: inference as text to text.

    anli_r1   anli hypothesis: H premise: P           neutral
    conjnli   conjnli hypothesis: H premise: P        entailment
    snli      snli hypothesis: H premise: P           contradiction
    hans      mnli hypothesis: H premise: P           non-entailment
    art       art hypothesis_1: H hypothesis_2: I observation_1: O observation_2: P   2

- `anli_r1`, `anli_r2`, `anli_r3`: the rounds of Adversarial NLI (Nie et al., 2020);
  `anli` is their mixture, in proportion to their examples, and scores each separately.
  Files: R1/train.jsonl, R1/dev.jsonl, R1/test.jsonl and so on from the authors'
  archive.
- `conjnli`: ConjNLI (Saha et al., 2020). Files: adversarial_train_15k.tsv,
  conj_dev.tsv and conj_test.tsv, which has no labels.
- `snli`: SNLI (Bowman et al., 2015). Files: snli_1.0_train.jsonl and so on.
- `art`: abductive NLI (Bhagavatula et al., 2020). Files: train.jsonl, train-labels.lst,
  dev.jsonl and dev-labels.lst.
- `hans`: HANS (McCoy et al., "Right for the Wrong Reasons", ACL 2019), pairs that
  deceive three heuristics, for models trained on MNLI: neutral and contradiction count
  as non-entailment. Files: heuristics_train_set.txt, heuristics_evaluation_set.txt.

MNLI and QNLI are T5's `glue_mnli_v002` and `glue_qnli_v002`, see `benchmark_files.py`.

Folders: `anli.directory` in gin, REMIXER_TF_ANLI_DIR and so on, or anli, conjnli, snli,
alphanli, hans_perturbed in REMIXER_TF_DATA. Files may be compressed (.gz). If no folder
is named, ANLI and SNLI come from tensorflow_datasets. The metric is accuracy, in
percent. Source: "Remixers", Table 3; the forms are ours, T5 has none of these sets.
"""

import functools
import json
from typing import NamedTuple

import seqio

from remixer_tf.errors import UserError
from remixer_tf.tasks import text_metrics
from remixer_tf.tasks.files_or_tfds import FilesOrTfds
from remixer_tf.tasks.folders import DataFolder
from remixer_tf.tasks.inference_files import THREE_CLASSES, pair_source
from remixer_tf.tasks.rows import TOKENIZE, RowSource, byte_features
from remixer_tf.tasks.t5_library import function_of_t5
from remixer_tf.tasks.table_files import is_utf8, read_text, split_lines

anli_folder = DataFolder("anli", "anli")
conjnli_folder = DataFolder("conjnli", "conjnli")
snli_folder = DataFolder("snli", "snli")
art_folder = DataFolder("art", "alphanli")
hans_folder = DataFolder("hans", "hans_perturbed")

# The names that the file of a split may have; the authors' own come first.
CONJNLI_FILES = {
    "train": ["adversarial_train_15k.tsv"],
    "validation": ["conj_dev.tsv"],
    "test": ["conj_test.tsv"],
}
SNLI_FILES = {
    "train": ["snli_1.0_train.jsonl", "train.jsonl"],
    "validation": ["snli_1.0_dev.jsonl", "dev.jsonl"],
    "test": ["snli_1.0_test.jsonl", "test.jsonl", "snli_1.0_test_hard.jsonl"],
}
HANS_FILES = {
    "train": ["heuristics_train_set.txt"],
    "validation": ["heuristics_evaluation_set.txt", "val.tsv"],
    "test": ["eval.tsv"],
}
HANS_CLASSES = ["entailment", "non-entailment"]


def _add_task(
    name, source, classes=THREE_CLASSES, preprocessors=(), form=None, **options
):
    """Registers a task; `form` are arguments of T5's preprocessor `glue`."""
    form = {"benchmark_name": name, "id_key": None} | (form or {})
    to_text = functools.partial(
        function_of_t5("data.preprocessors", "glue"), label_names=classes, **form
    )
    to_class = functools.partial(
        function_of_t5("data.postprocessors", "string_label_to_class_id"),
        label_classes=classes,
    )
    options = {
        "postprocess_fn": to_class,
        "metric_fns": [text_metrics.accuracy],
        "shuffle_buffer_size": 600_000,  # more than any of them has
    } | options
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[*preprocessors, to_text, *TOKENIZE],
        output_features=byte_features(),
        **options,
    )


def _read_lines(name):
    path = art_folder.find_file(name)
    lines = split_lines(read_text(path))
    if not all(map(is_utf8, lines)):
        raise UserError(f"{path} is not UTF-8.")
    return path, lines


def read_art(split):
    """Returns rows (first and second hypothesis, first and second observation, 0 or 1).

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is not what is expected, or the files differ in length.
    """
    name = {"train": "train", "validation": "dev"}[split]
    path, lines = _read_lines(f"{name}.jsonl")
    labels_path, labels = _read_lines(f"{name}-labels.lst")
    if len(labels) != len(lines):
        raise UserError(
            f"{labels_path} has {len(labels)} lines, and {path} has {len(lines)}. They "
            "go together line by line."
        )
    rows = []
    for number, (line, label) in enumerate(zip(lines, labels, strict=True), start=1):
        try:
            row = json.loads(line)
            texts = [row[name] for name in ("hyp1", "hyp2", "obs1", "obs2")]
            rows.append((*texts, ["1", "2"].index(label.strip())))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"Line {number} of {path} and {labels_path}: expected a JSON object "
                f"with obs1, obs2, hyp1 and hyp2, and 1 or 2. Received: {line!r}, "
                f"{label!r} ({error!r})."
            ) from error
    return rows


class HansTarget(NamedTuple):
    """The class of a pair, an index in `HANS_CLASSES`, and the heuristic it tests."""

    label: int
    heuristic: str


def postprocess_hans(text, example=None, is_target=False):
    """seqio postprocessor: an index in `HANS_CLASSES`, -1 for other text.

    A target becomes a `HansTarget`.
    """
    text = "non-entailment" if text in THREE_CLASSES[1:] else text
    label = HANS_CLASSES.index(text) if text in HANS_CLASSES else -1
    return HansTarget(label, example["idx"].decode()) if is_target else label


def hans_accuracies(targets, predictions):
    """Accuracy in percent, over all pairs and by class and heuristic, as in the paper.

    Targets are `HansTarget`s, predictions indices in `HANS_CLASSES`. Returns
    {"accuracy": float, "accuracy/entailed/lexical_overlap": float, ...}.
    """
    return text_metrics.percentages(
        (name, target.label == prediction)
        for target, prediction in zip(targets, predictions, strict=True)
        for name in (
            "accuracy",
            f"accuracy/{'non-' * target.label}entailed/{target.heuristic}",
        )
    )


@seqio.map_over_dataset
def _anli_names(example):
    names = {"hypothesis": "hypothesis", "premise": "context", "label": "label"}
    return {name: example[theirs] for name, theirs in names.items()}


def _drop_disputed(dataset):
    """Leaves out the pairs on whose class SNLI's annotators did not agree."""
    return dataset.filter(lambda example: example["label"] >= 0)


def _add_anli(number):
    """Registers a round of ANLI."""
    files = {
        "train": [f"R{number}/train.jsonl"],
        "validation": [f"R{number}/dev.jsonl", f"dev_r{number}.jsonl"],
        "test": [f"R{number}/test.jsonl", "test_r1r2r3.jsonl"],
    }

    def of_round(row):  # Only files of several rounds have a tag.
        return row.get("tag", f"r{number}").startswith(f"r{number}")

    files = pair_source(anli_folder, files, THREE_CLASSES, "context", of_round)
    source = FilesOrTfds(f"anli/r{number}:0.1.0", anli_folder, files)
    form = {"benchmark_name": "anli"}
    _add_task(f"anli_r{number}", source, preprocessors=[_anli_names], form=form)


for _number in (1, 2, 3):
    _add_anli(_number)
seqio.MixtureRegistry.add(
    "anli",
    [f"anli_r{number}" for number in (1, 2, 3)],
    default_rate=seqio.mixing_rate_num_examples,
)
_add_task("conjnli", pair_source(conjnli_folder, CONJNLI_FILES, THREE_CLASSES))
_files = pair_source(snli_folder, SNLI_FILES, THREE_CLASSES)
_add_task(
    "snli",
    FilesOrTfds("snli:1.1.0", snli_folder, _files),
    preprocessors=[_drop_disputed],
)
_texts = ("hypothesis_1", "hypothesis_2", "observation_1", "observation_2")
_add_task(
    "art",
    RowSource(read_art, ("train", "validation"), names=(*_texts, "label")),
    ["1", "2"],
)
_add_task(
    "hans",
    pair_source(hans_folder, HANS_FILES, HANS_CLASSES, columns=("heuristic",)),
    HANS_CLASSES,
    form={
        "benchmark_name": "mnli",
        "feature_names": ["hypothesis", "premise"],
        "id_key": "heuristic",  # under "idx"
    },
    postprocess_fn=postprocess_hans,
    metric_fns=[hans_accuracies],
    shuffle_buffer_size=30_000,
)
