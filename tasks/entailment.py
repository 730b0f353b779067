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
from typing import NamedTuple

import seqio
from absl import logging

from remixer_tf.errors import UserError
from remixer_tf.tasks import text_metrics
from remixer_tf.tasks.folders import DataFolder, FilesOrTfds
from remixer_tf.tasks.rows import TOKENIZE, RowSource, byte_features
from remixer_tf.tasks.t5_library import function_of_t5
from remixer_tf.tasks.table_files import (
    describe_columns,
    read_table,
    read_text,
    split_lines,
)

# The sets' names of columns.
PREMISE = ("premise", "Premise", "sentence1", "context")
HYPOTHESIS = ("hypothesis", "Hypothesis", "sentence2", "statement")
LABEL = ("label", "Label", "gold_label")
NO_LABEL = -1  # as in TensorFlow Datasets
# Classes in the order of their ids in GLUE and TensorFlow Datasets.
THREE_CLASSES = ["entailment", "neutral", "contradiction"]
TWO_CLASSES = ["entailment", "not_entailment"]

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


def pair_source(folder, files, classes, premise="premise", where=None, columns=()):
    """A `RowSource` of pairs: "hypothesis", the premise, "label", and the columns.

    `files` has for each split the names that its file may have, see `find_file`;
    `premise` is the premise's name in an example. For the others see `read_pairs`.
    """

    def read_rows(split):
        path = folder.find_file(*files[split])
        return read_pairs(path, classes, where, columns)

    names = ("hypothesis", premise, "label", *columns)
    return RowSource(read_rows, tuple(files), names)


def read_pairs(path, classes, where=None, columns=()):
    """Reads the pairs of a file for `read_table`.

    Returns a list of (hypothesis, premise, index in `classes`, *values of `columns`).
    The index is `NO_LABEL` if the file has no labels. Pairs labelled "-", on which
    SNLI's and MultiNLI's annotators disagreed, are left out and counted in the log.

    Args:
        classes: list of str, the labels; a file may have their first letters.
        where: None, or a function of a row, a dictionary: False leaves it out.
        columns: names of further columns to read.
    """
    names, lines = read_table(path)
    premise, hypothesis, *_ = (
        _find(path, names, wanted)
        for wanted in (PREMISE, HYPOTHESIS, *((column,) for column in columns))
    )
    label = next((name for name in LABEL if name in names), None)
    numbers = {name: i for i, name in enumerate(classes)}
    numbers |= {name[0]: i for i, name in enumerate(classes)} | {None: NO_LABEL}
    pairs, disputed = [], 0
    for line in lines:
        try:
            if line.problem:
                raise UserError(line.problem)
            word = line.text(label) if label else None
            texts = {name: line.text(name) for name in (hypothesis, premise, *columns)}
            if label and word != "-" and (word or "") not in numbers:
                raise UserError(f"{label} {word!r} is none of {', '.join(classes)}")
            if missing := [name for name, text in texts.items() if text is None]:
                raise UserError(f"no value of {missing[0]}")
        except UserError as error:
            raise UserError(f"{path}, line {line.number}: {error}.") from None
        if where and not where(line.values):
            continue
        if word == "-":
            disputed += 1
        else:
            more = (texts[column] for column in columns)
            pairs.append((texts[hypothesis], texts[premise], numbers[word], *more))
    if disputed:
        logging.info("%s: %d pairs labelled '-' are left out", path, disputed)
    return pairs


def _find(path, names, wanted):
    for name in wanted:
        if name in names:
            return name
    raise UserError(
        f"{path} has no column {' or '.join(wanted)}. {describe_columns(names)}"
    )


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


def read_art(split):
    """Returns rows: two hypotheses, two observations, and 0 or 1."""
    name = {"train": "train", "validation": "dev"}[split]
    path = art_folder.find_file(f"{name}.jsonl")
    labels_path = art_folder.find_file(f"{name}-labels.lst")
    _, lines = read_table(path)
    labels = split_lines(read_text(labels_path))
    if len(labels) != len(lines):
        raise UserError(
            f"{labels_path} has {len(labels)} lines, and {path} has {len(lines)}. They "
            "go together line by line."
        )
    rows = []
    for line, label in zip(lines, labels, strict=True):
        names = ("hyp1", "hyp2", "obs1", "obs2")
        texts = [line.text(name) for name in names] if line.values else [None]
        if None in texts or label.strip() not in ("1", "2"):
            raise UserError(
                f"Line {line.number} of {path} and {labels_path}: expected a JSON "
                "object with obs1, obs2, hyp1 and hyp2, and 1 or 2. Received: "
                f"{line.problem or line.values}, {label!r}."
            )
        rows.append((*texts, int(label) - 1))
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
