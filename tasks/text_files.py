"""Finds and reads the files of plain text for the tasks of `text.py`.

A .txt file is cut at blank lines into documents of about 10,000 characters, and their
lines are joined; of a book of Project Gutenberg only what is between its START and END
lines is read. Of a table, such as JSON lines (see `table_files.py`), each row is a
document, by its column "text". Names may end in .gz.

The folder that tasks read which name no files is, in this order: what `set_directory`
was given (gin: `text_files.directory`), and the environment variable
REMIXER_TF_TEXT_DIR. All files below it called *.txt or *.jsonl, perhaps with .gz, are
read, in the order of their names.

Lines that are not UTF-8, rows that are not JSON, and documents without text are bad:
they stop the reading, or are left out and counted. All is held in memory: for more than
some hundred megabytes, name a dataset of TensorFlow Datasets.
"""

import functools
import os
import random
import re

import tensorflow as tf

from remixer_tf.checkpoints.paths import locate
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.tasks.bad_rows import BadRows
from remixer_tf.tasks.folders import DataFolder
from remixer_tf.tasks.table_files import is_utf8, read_table, read_text, split_lines

SPLITS = ("train", "validation")
_DOCUMENT = 10_000  # characters
_VALIDATION_SHARE = 0.02

data_folder = DataFolder("text_files", "REMIXER_TF_TEXT_DIR")


set_directory = data_folder.set


def read_split(split, skip=False):
    """Returns the documents of "train" or "validation", a list of str.

    Validation has the last 2% of each file's documents, at least one if there are two.
    The order of the training documents is shuffled, once and for all.

    Raises:
        FileNotFoundError: no folder is named, it does not exist, or has no text.
        ValueError: a file cannot be read, or there are bad rows, which `skip` leaves
            out.
    """
    directory, _ = data_folder.require("text files")
    return list(_read_folder(os.path.abspath(directory), skip)[split])


def read_files(patterns, skip=False):
    """Returns the documents of files, a list of str, shuffled once and for all.

    Args:
        patterns: a file's name, or a list of them; * stands for any letters.
        skip: bool, whether bad rows are left out.

    Raises:
        FileNotFoundError: a name has no file.
        ValueError: a file cannot be read, or there are bad rows or no documents.
    """
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    return list(_read_files(patterns, skip))


@functools.lru_cache(maxsize=1)
def _read_folder(directory, skip):
    """Returns {split: documents}."""
    splits = {split: [] for split in SPLITS}
    for documents in _read_all(_find(directory), skip):
        number = round(_VALIDATION_SHARE * len(documents))
        number = max(number, 1) if len(documents) > 1 else 0
        cut = len(documents) - number
        splits["train"] += documents[:cut]
        splits["validation"] += documents[cut:]
    random.Random(0).shuffle(splits["train"])
    return splits


@functools.lru_cache(maxsize=4)
def _read_files(patterns, skip):
    paths = []
    for pattern in patterns:
        pattern = locate(pattern)
        # Without a match it is read as a name, whose error tells the names nearby.
        paths += sorted(tf.io.gfile.glob(pattern)) or [pattern]
    documents = sum(_read_all(paths, skip), [])
    random.Random(0).shuffle(documents)
    return documents


def _read_all(paths, skip):
    """Returns a list of documents for each file; raises ValueErrors of `read_files`."""
    bad, read = BadRows("text files"), []
    for path in paths:
        name = path.removesuffix(".gz")
        read_one = _read_plain if name.endswith(".txt") else _read_rows
        read.append(list(read_one(path, functools.partial(bad.add, path))))
    documents = sum(map(len, read))
    how = "TASK = @text_task() and text_task.on_bad_rows = 'skip'"
    bad.tell({path: path for path in paths}, bad.count() + documents, skip, how)
    if not documents:
        raise UserError(
            f"There is no text in {', '.join(paths[:5])}"
            f"{', ...' if len(paths) > 5 else ''}: "
            f"{'the file is' if len(paths) == 1 else 'the files are'} empty."
        )
    return read


def _find(directory):
    paths = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if re.search(r"\.(txt|jsonl)(\.gz)?$", name)
    ]
    if not paths:
        raise MissingFileError(
            f"There is no *.txt, *.txt.gz, *.jsonl or *.jsonl.gz in {directory!r} or "
            "below. Correct text_files.directory or REMIXER_TF_TEXT_DIR."
        )
    return sorted(paths)


def _read_rows(path, add_bad):
    """Yields the documents of a table."""
    names, lines = read_table(path)
    if lines and "text" not in names:
        raise UserError(
            f"{path} has no column 'text'. It has: {', '.join(names) or 'none'}."
        )
    for line in lines:
        text = None if line.problem else (line.values.get("text") or "").strip()
        if text:
            yield line.values["text"]
        else:
            add_bad(line.problem or "no text", line.number)


def _read_plain(path, add_bad):
    """Yields the documents of a .txt file."""
    good = []
    for number, line in enumerate(split_lines(read_text(path)), 1):
        if is_utf8(line):
            good.append(line)
        else:
            add_bad("invalid UTF-8", number)
    text = "\n".join(good)
    book = re.search(
        r"\*\*\* ?START OF TH.*?\n(.*)\n[^\n]*\*\*\* ?END OF TH", text, re.DOTALL
    )
    document, size = [], 0
    for paragraph in re.split(r"\n\s*\n", book[1] if book else text):
        paragraph = " ".join(paragraph.split())
        if not paragraph:
            continue
        document.append(paragraph)
        size += len(paragraph) + 1
        if size >= _DOCUMENT:
            yield "\n".join(document)
            document, size = [], 0
    if document:
        yield "\n".join(document)
