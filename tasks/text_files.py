"""Finds and reads the files of plain text for the tasks of `text.py`.

The folder is, in this order: what `set_directory` was given (gin:
`text_files.directory`), and the environment variable REMIXER_TF_TEXT_DIR. All files
below it called *.txt or *.jsonl, perhaps with .gz, are read, in the order of their
names. A line of a .jsonl file is a document, by its field "text". A .txt file is cut
at blank lines into documents of about 10,000 characters, and their lines are joined; of
a book of Project Gutenberg only what is between its START and END lines is read. All is
held in memory: for more than some hundred megabytes, register a seqio task of your own
with the preprocessors of `text.py`.
"""

import functools
import gzip
import json
import os
import random
import re

from remixer_tf.tasks.folders import DataFolder

SPLITS = ("train", "validation")
_DOCUMENT = 10_000  # characters
_VALIDATION_SHARE = 0.02

data_folder = DataFolder("text_files", "REMIXER_TF_TEXT_DIR")


def set_directory(directory=None):
    """Names the folder of the text files; None goes back to the environment."""
    data_folder.set(directory)


def read_split(split):
    """Returns the documents of "train" or "validation", a list of str.

    Validation has the last 2% of each file's documents, at least one if there are two.
    The order of the training documents is shuffled, once and for all.

    Raises:
        FileNotFoundError: no folder is named, it does not exist, or has no text.
    """
    directory, _ = data_folder.require("text files")
    return list(_read(os.path.abspath(directory))[split])


@functools.lru_cache(maxsize=1)
def _read(directory):
    """Returns {split: documents}."""
    splits = {split: [] for split in SPLITS}
    for path in _find(directory):
        documents = list(_documents(path))
        number = round(_VALIDATION_SHARE * len(documents))
        number = max(number, 1) if len(documents) > 1 else 0
        cut = len(documents) - number
        splits["train"] += documents[:cut]
        splits["validation"] += documents[cut:]
    random.Random(0).shuffle(splits["train"])
    return splits


def _find(directory):
    paths = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if re.search(r"\.(txt|jsonl)(\.gz)?$", name)
    ]
    if not paths:
        raise FileNotFoundError(
            f"There is no *.txt, *.txt.gz, *.jsonl or *.jsonl.gz in {directory!r} or "
            "below. Correct text_files.directory or REMIXER_TF_TEXT_DIR."
        )
    return sorted(paths)


def _documents(path):
    open_file = gzip.open if path.endswith(".gz") else open
    with open_file(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        if ".jsonl" in os.path.basename(path):
            yield from (json.loads(line)["text"] for line in file if line.strip())
            return
        text = file.read()
    book = re.search(
        r"\*\*\* ?START OF TH.*?\n(.*)\n[^\n]*\*\*\* ?END OF TH", text, re.DOTALL
    )
    paragraphs = re.split(r"\n\s*\n", book[1] if book else text)
    document, size = [], 0
    for paragraph in paragraphs:
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
