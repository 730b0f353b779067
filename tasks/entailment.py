"""The tasks `anli`, `conjnli`, `art`: inference as text to text, in T5's form.

    conjnli   conjnli hypothesis: H premise: P            entailment
    anli_r1   anli hypothesis: H premise: P               neutral
    art       art hypothesis_1: H hypothesis_2: I observation_1: O observation_2: P   2

- `anli_r1`, `anli_r2`, `anli_r3`: the rounds of Adversarial NLI (Nie et al., 2020),
  from tensorflow_datasets; `anli` is their mixture, in proportion to their examples,
  and scores each by itself.
- `conjnli`: ConjNLI (Saha et al., 2020). The folder that `conjnli.directory` (gin) or
  REMIXER_TF_CONJNLI_DIR names, or else the folder conjnli in REMIXER_TF_DATA, has the
  authors' files: adversarial_train_15k.tsv, conj_dev.tsv.
- `art`: abductive NLI (Bhagavatula et al., 2020). The folder that `art.directory` or
  REMIXER_TF_ART_DIR names, or else alphanli in REMIXER_TF_DATA, has train.jsonl,
  train-labels.lst, dev.jsonl and dev-labels.lst.

Any file may be compressed (.gz). The metric is accuracy, in percent. Source:
"Remixers", Table 3; the forms are ours, T5 has none of these sets.
"""

import csv
import functools
import json

import seqio

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks.folders import DataFolder, read_bytes
from remixer_tf.tasks.rows import RowSource
from remixer_tf.tasks.t5_tasks import t5

CLASSES = ["entailment", "neutral", "contradiction"]
conjnli_folder = DataFolder("conjnli", "REMIXER_TF_CONJNLI_DIR", "conjnli")
art_folder = DataFolder("art", "REMIXER_TF_ART_DIR", "alphanli")


def set_conjnli_directory(directory=None):
    """Names the folder of ConjNLI's files; None goes back to the environment."""
    conjnli_folder.set(directory)


def set_art_directory(directory=None):
    """Names the folder of ART's files; None goes back to the environment."""
    art_folder.set(directory)


def _read_lines(folder, name):
    """Returns (path, lines), decompressed."""
    path = folder.find_file(name, f"{name}.gz")
    try:
        return path, read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}.") from error


def read_conjnli(split):
    """Returns rows (hypothesis, premise, index in `CLASSES`) of a split.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: a line has no premise, hypothesis and label; the message names it.
    """
    name = {"train": "adversarial_train_15k.tsv", "validation": "conj_dev.tsv"}[split]
    path, lines = _read_lines(conjnli_folder, name)
    rows = []
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(reader, start=1):
        if number == 1 and row == ["Premise", "Hypothesis", "Label"]:
            continue
        if len(row) != 3 or row[2] not in CLASSES:
            raise ValueError(
                f"{path}, line {number}: expected premise, hypothesis and one of "
                f"{', '.join(CLASSES)}, separated by tabs. Received: {row}."
            )
        rows.append((row[1], row[0], CLASSES.index(row[2])))
    return rows


def read_art(split):
    """Returns rows (first and second hypothesis, first and second observation, 0 or 1).

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is not what is expected, or the files differ in length.
    """
    name = {"train": "train", "validation": "dev"}[split]
    path, lines = _read_lines(art_folder, f"{name}.jsonl")
    labels_path, labels = _read_lines(art_folder, f"{name}-labels.lst")
    if len(labels) != len(lines):
        raise ValueError(
            f"{labels_path} has {len(labels)} lines, and {path} has {len(lines)}. They "
            "go together line by line."
        )
    rows = []
    for number, (line, label) in enumerate(zip(lines, labels, strict=True), start=1):
        try:
            texts = [
                json.loads(line)[name] for name in ("hyp1", "hyp2", "obs1", "obs2")
            ]
            rows.append((*texts, ["1", "2"].index(label.strip())))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {path} and {labels_path}: expected a JSON object "
                f"with obs1, obs2, hyp1 and hyp2, and 1 or 2. Received: {line!r}, "
                f"{label!r} ({error!r})."
            ) from error
    return rows


@seqio.map_over_dataset
def _anli_names(example):
    return {
        "hypothesis": example["hypothesis"],
        "premise": example["context"],
        "label": example["label"],
    }


def _add_task(task, source, classes, benchmark=None, preprocessors=()):
    text = seqio.Feature(byte_vocabulary())
    seqio.TaskRegistry.add(
        task,
        source=source,
        preprocessors=[
            *preprocessors,
            functools.partial(
                t5.data.preprocessors.glue,
                benchmark_name=benchmark or task,
                label_names=classes,
                id_key=None,
            ),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={"inputs": text, "targets": text},
        postprocess_fn=functools.partial(
            t5.data.postprocessors.string_label_to_class_id, label_classes=classes
        ),
        metric_fns=[t5.evaluation.metrics.accuracy],
        shuffle_buffer_size=200_000,  # more than any of them has
    )


_ROUNDS = ["r1", "r2", "r3"]
for _round in _ROUNDS:
    _add_task(
        f"anli_{_round}",
        seqio.TfdsDataSource(
            f"anli/{_round}:0.1.0", splits=["train", "validation", "test"]
        ),
        CLASSES,
        benchmark="anli",
        preprocessors=[_anli_names],
    )
seqio.MixtureRegistry.add(
    "anli",
    [f"anli_{name}" for name in _ROUNDS],
    default_rate=seqio.mixing_rate_num_examples,
)
_SPLITS = ("train", "validation")
_add_task(
    "conjnli",
    RowSource(read_conjnli, _SPLITS, names=("hypothesis", "premise", "label")),
    CLASSES,
)
_add_task(
    "art",
    RowSource(
        read_art,
        _SPLITS,
        names=(
            "hypothesis_1",
            "hypothesis_2",
            "observation_1",
            "observation_2",
            "label",
        ),
    ),
    ["1", "2"],
)
