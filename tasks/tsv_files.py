"""The task `tsv_files`: questions and answers in files of the user's own.

Its folder (gin: `tsv_files.directory`, else the environment variable
REMIXER_TF_TSV_DIR) has train.tsv, validation.tsv or test.tsv, perhaps with .gz: in each
line a question, a tab and its answer. All is held in memory. The metric is T5's
accuracy: the percentage of answers that are equal to the file's. `tables.py` reads
other formats, by gin.

Answering (`infer`, `export`) needs no file: a line is a question as it is.
"""

import seqio
from t5.evaluation.metrics import accuracy

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks.folders import DataFolder, read_bytes
from remixer_tf.tasks.rows import RowSource

__all__ = ["data_folder", "read_rows"]

SPLITS = ("train", "validation", "test")

data_folder = DataFolder("tsv_files", "REMIXER_TF_TSV_DIR")


def read_rows(split):
    """Returns the rows of a split: (inputs, targets).

    Raises:
        FileNotFoundError: no folder is named, or it has no such file.
        ValueError: a line is no question and answer.
    """
    path = data_folder.find_file(f"{split}.tsv", f"{split}.tsv.gz")
    rows = []
    for number, line in enumerate(read_bytes(path).decode().splitlines(), 1):
        row = tuple(line.split("\t"))
        if len(row) != 2:
            raise ValueError(
                f"{path}, line {number}: expected a question, a tab and an answer. "
                f"Received {len(row) - 1} tabs: {line[:80]!r}"
            )
        rows.append(row)
    return rows


seqio.TaskRegistry.add(
    "tsv_files",
    source=RowSource(read_rows, SPLITS, names=("inputs", "targets")),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={
        name: seqio.Feature(byte_vocabulary()) for name in ("inputs", "targets")
    },
    metric_fns=[accuracy],
    shuffle_buffer_size=10_000,
)
