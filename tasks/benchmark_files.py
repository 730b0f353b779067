"""GLUE's, SuperGLUE's and DPR's own files, in place of TensorFlow Datasets (TFDS).

A task of T5's reads the folder that the user named, or TFDS if none is named. Text,
targets and metrics are T5's in both cases. The folders are as the benchmarks ship them;
files may end in .gz:

    super_glue.directory   BoolQ, CB, COPA, MultiRC, ReCoRD, RTE, WiC, WSC, each with
                           {train,val,test}.jsonl; AX-b/AX-b.jsonl, AX-g/AX-g.jsonl;
                           DPR/{train,test}.c.txt (Rahman and Ng, 2012), which T5's
                           mixture has as well as WSC
    glue.directory         CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE, WNLI, each
                           with {train,dev,test}.tsv; MNLI {dev,test}_matched.tsv and
                           {dev,test}_mismatched.tsv; diagnostic/diagnostic.tsv

`glue.directory` is a name in gin; REMIXER_TF_GLUE_DIR and REMIXER_TF_SUPER_GLUE_DIR
serve too, or glue and superglue in the folder REMIXER_TF_DATA. A set's folder may also
have its name in small letters without a hyphen, as sst2. SQuAD's files: `squad.py`.
"""

import csv
import os
import random
import tempfile

import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.data.file_states import kept_while_unchanged
from remixer_tf.errors import UserError
from remixer_tf.tasks import squad
from remixer_tf.tasks.entailment import read_pairs
from remixer_tf.tasks.folders import DataFolder, FilesOrTfds, read_bytes

glue_folder = DataFolder("glue", "glue")
super_glue_folder = DataFolder("super_glue", "superglue")


def _files_source(dataset, folder, subfolder, names):
    """A source of the files of a set, read as TFDS reads them and held in memory."""
    # `names` are those of each split's file.
    subfolders = dict.fromkeys((subfolder, subfolder.lower().replace("-", "")))

    def dataset_fn(split, shuffle_files=False, seed=None):
        paths = (os.path.join(x, name) for name in names[split] for x in subfolders)
        rows = _read(dataset, folder.find_file(*paths), split)
        return tf.data.Dataset.from_tensor_slices(rows)

    return seqio.FunctionDataSource(dataset_fn, list(names))


# TFDS raises these for a file of another set.
_OTHER_FILE = (
    *(AssertionError, AttributeError, KeyError, IndexError, TypeError, ValueError),
    csv.Error,
)


@kept_while_unchanged(lambda dataset, path, split: [path], maxsize=64)
def _read(dataset, path, split):
    """Returns the examples of a file, {feature: tensor of all}, as TFDS has them."""
    import tensorflow_datasets as tfds  # late: `remixer_tf.imports`

    builder = tfds.builder(dataset)
    features = builder.info.features
    rows = []
    try:
        for row in _generate(builder, path, split):
            rows.append(features.encode_example(row))
        if not rows:
            raise UserError("it has no examples")
        if not split.startswith("test") and all(row.get("label") == -1 for row in rows):
            raise UserError("no example has a label")
    except _OTHER_FILE as error:
        raise UserError(
            f"{path}, after {len(rows):,} examples: this is not the file that the "
            f"benchmark ships for {dataset} {split}, with {', '.join(features)} "
            f"({error!r})."
        ) from error
    last = rows[-1].get("idx")
    if not isinstance(last, dict) and dataset.startswith("glue") and last >= len(rows):
        logging.warning(
            "%s: rows with too few columns are left out, as TFDS does: %d",
            path,
            last + 1 - len(rows),
        )
    logging.info("%s %s: %d examples of %s", dataset, split, len(rows), path)
    if split == "train":  # Some files are sorted, and a task's buffer is too short.
        random.Random(0).shuffle(rows)
    return _stack(rows, features)


def _generate(builder, path, split):
    """Yields the examples of a file, not yet encoded."""
    if path.removesuffix(".gz").endswith(".jsonl") and builder.name == "glue":
        labels = builder.info.features["label"].names
        names = ("hypothesis", "premise", "label")
        for i, row in enumerate(read_pairs(path, labels)):
            yield {**dict(zip(names, row, strict=True)), "idx": i}
        return
    with tempfile.TemporaryDirectory() as folder:
        if path.endswith(".gz"):
            copy = os.path.join(folder, "file")
            with open(copy, "wb") as file:
                file.write(read_bytes(path))
            path = copy
        if builder.builder_config and builder.builder_config.name == "mrpc":
            yield from _mrpc(path)
            return
        takes_split = builder.name in ("glue", "super_glue")
        examples = builder._generate_examples(path, *[split] * takes_split)
        yield from (example for _, example in examples)


def _mrpc(path):
    """MRPC as divided by GLUE's scripts; TFDS reads the files before the division."""
    with open(path, encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        for i, row in enumerate(reader):
            yield {
                "sentence1": row["#1 String"],
                "sentence2": row["#2 String"],
                "label": int(row.get("Quality", -1)),
                "idx": i,
            }


def _stack(rows, feature):
    """All values of a feature as tensors, for `from_tensor_slices`."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.FeaturesDict):
        return {
            name: _stack([row[name] for row in rows], feature[name]) for name in feature
        }
    if isinstance(feature, tfds.features.Sequence):
        values = [list(row) for row in rows]
        return tf.ragged.constant(values, feature.feature.tf_dtype, ragged_rank=1)
    return tf.constant(rows, feature.tf_dtype)


_TSV = {"train": ["train.tsv"], "validation": ["dev.tsv"], "test": ["test.tsv"]}
_JSON = {"train": ["train.jsonl"], "validation": ["val.jsonl"], "test": ["test.jsonl"]}
# The second names are parts of MultiNLI in JSON lines, and FewGLUE's.
_MATCHED = {
    "validation": ["dev_matched.tsv", "dev_matched.jsonl"],
    "test": ["test_matched.tsv"],
}
_MISMATCHED = {
    "validation": ["dev_mismatched.tsv", "dev_mismatched_hard.jsonl"],
    "test": ["test_mismatched.tsv"],
}
_MNLI = {
    "train": ["train.tsv", "train_10k.jsonl"],
    **{f"{split}_matched": names for split, names in _MATCHED.items()},
    **{f"{split}_mismatched": names for split, names in _MISMATCHED.items()},
}
_BOOLQ = _JSON | {"train": ["train.jsonl", "train_fewglue32.jsonl"]}
_RECORD = _BOOLQ | {"validation": ["val.jsonl", "train_fewglue_dev32.jsonl"]}

# TFDS' name of a set, its folder, and the names of its files.
_GLUE = {
    "cola": ("CoLA", _TSV),
    "sst2": ("SST-2", _TSV),
    "mrpc": ("MRPC", _TSV),
    "qqp": ("QQP", _TSV),
    "stsb": ("STS-B", _TSV),
    "mnli": ("MNLI", _MNLI),
    "mnli_matched": ("MNLI", _MATCHED),
    "mnli_mismatched": ("MNLI", _MISMATCHED),
    "qnli": ("QNLI", _TSV),
    "rte": ("RTE", _TSV),
    "wnli": ("WNLI", _TSV),
    "ax": ("diagnostic", {"test": ["diagnostic.tsv"]}),
}
_SUPER_GLUE = {
    "boolq": ("BoolQ", _BOOLQ),
    "cb": ("CB", _JSON),
    "copa": ("COPA", _JSON),
    "multirc": ("MultiRC", _JSON),
    "record": ("ReCoRD", _RECORD),
    "rte": ("RTE", _JSON),
    "wic": ("WiC", _JSON),
    "wsc.fixed": ("WSC", _JSON),
    "axb": ("AX-b", {"test": ["AX-b.jsonl"]}),
    "axg": ("AX-g", {"test": ["AX-g.jsonl"]}),
}
_DPR = {"": ("DPR", {"train": ["train.c.txt"], "test": ["test.c.txt"]})}


def use_files(task):
    """Lets a task of T5's read files, see `FilesOrTfds`, if its set has any.

    It changes the task itself: T5's mixtures hold the tasks, not their names.
    """
    if not isinstance(task.source, seqio.TfdsDataSource):
        return
    dataset = task.source.tfds_dataset.name
    benchmark, _, name = dataset.partition(":")[0].partition("/")
    if dataset.startswith("squad/v1.1"):
        folder = squad.data_folder
        files = squad.question_source(_read_squad, list(squad.SPLITS))
    elif benchmark in ("glue", "super_glue", "definite_pronoun_resolution"):
        folder = glue_folder if benchmark == "glue" else super_glue_folder
        known = {"glue": _GLUE, "super_glue": _SUPER_GLUE}.get(benchmark, _DPR)
        files = _files_source(dataset, folder, *known[name])
    else:
        return
    splits = task.source._splits or None
    task._source = FilesOrTfds(dataset, folder, files, splits)


def _read_squad(split):
    """`read_split`'s questions, all of which must have an answer."""
    rows = squad.read_split(split)
    unanswerable = sum(not row["answers"] for row in rows)
    if unanswerable:
        raise UserError(
            f"{unanswerable:,} of the {len(rows):,} questions of SQuAD's {split} have "
            "no answer: the file is of version 2.0, and T5's task is of 1.1. Name a "
            "folder with files of 1.1, or use the task squad_files_spans."
        )
    return rows
