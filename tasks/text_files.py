"""Reads files of plain text for the tasks of `text.py`.

A .txt file is cut at blank lines into documents of about 10,000 characters, and their
lines are joined. A book of Project Gutenberg is read between its START and END lines.
In a table, such as JSON lines (see `table_files.py`), the column "text" of each row is
a document. Names may end in .gz.

Tasks without files of their own read the folder `text_files.directory` (gin) or
REMIXER_TF_TEXT_DIR: all *.txt and *.jsonl files below it, perhaps with .gz, sorted by
name.

Bad are lines that are not UTF-8, rows that are not JSON, and documents without text:
they stop the reading, or are left out and counted. Texts are held in memory, or written
to a file that training reads (`stream_file`).
"""

import collections
import itertools
import os
import random
import re

import tensorflow as tf

from remixer_tf.arguments import Integer, PositiveInt, Text, checked
from remixer_tf.checkpoints.paths import locate
from remixer_tf.data.file_states import kept_while_unchanged
from remixer_tf.errors import MissingFileError, UserError, shorten
from remixer_tf.tasks.cells import is_utf8
from remixer_tf.tasks.folders import DataFolder, files_of
from remixer_tf.tasks.opening import open_text, plain_name
from remixer_tf.tasks.table_files import (
    TableFile,
    describe_columns,
    lines_of,
    read_text,
    report_bad_rows,
    shards_of,
)

SPLITS = ("train", "validation")
_DOCUMENT = 10_000  # characters
_BOOK = 2**23  # characters of a book that is read block by block
_VALIDATION_SHARE = 0.02

data_folder = DataFolder("text_files", variable="REMIXER_TF_TEXT_DIR")


def read_split(split, skip=False):
    """Returns the documents of "train" or "validation", as `read_files` does.

    Validation has the last 2% of each file's documents, at least one if there are two.
    """
    directory, _ = data_folder.require("text files")
    return list(_read_folder(os.path.abspath(directory), skip)[split])


@checked
def read_files(patterns, skip: bool = False):
    """Returns the documents of files, a list of str, shuffled once.

    `patterns` is a file's name, or a list of them; * stands for any letters. `skip`
    leaves out bad rows, which else are a ValueError.
    """
    return list(_read_files(_listed(patterns), skip))


def _listed(patterns):
    """Returns patterns, one or several, as a tuple of str."""
    patterns = [patterns] if isinstance(patterns, (str, os.PathLike)) else patterns
    if not isinstance(patterns, (list, tuple)) or not all(
        isinstance(pattern, (str, os.PathLike)) for pattern in patterns
    ):
        raise UserError(
            "Files of text are the name or pattern of a file, such as 'books/*.txt', "
            f"or a list of them. Received: {patterns!r:.200}"
        )
    return tuple(map(os.fspath, patterns))


@checked
def sample_texts(
    patterns,
    number: PositiveInt,
    seed: Integer = 0,
    column: Text = "text",
):
    """Draws texts of files, each with the same chance, and holds no others.

    Algorithm R of Vitter 1985 (Random sampling with a reservoir). Returns the texts, a
    list of str, and how many there are in the files. Bad rows are left out, and counted
    in a warning. Raises a ValueError if there is no text.

    Args:
        patterns: see `read_files`.
        number: int, texts to draw; all, in their order, if there are no more.
        seed: int.
        column: str, of tables, the column with the texts.
    """
    bad, drawn, total = collections.defaultdict(list), [], 0
    random_numbers = random.Random(seed)
    paths = files_of_patterns(patterns)
    for path in paths:
        plain = plain_name(path).endswith(".txt")
        for text in _read_plain(path, bad) if plain else _read_rows(path, bad, column):
            total += 1
            if len(drawn) < number:
                drawn.append(text)
            elif (place := random_numbers.randrange(total)) < number:
                drawn[place] = text
    _report(bad, paths, total, skip=True)
    if not drawn:
        raise UserError(f"There is no text in {shorten(paths)}.")
    return drawn, total


def stream_file(skip, split, path):
    """Yields the documents of a file, rows for `StreamedRows`.

    `skip` leaves out bad rows, which else are a ValueError. A .txt file of more than 8
    million characters is read as no book.
    """
    bad, number = collections.defaultdict(list), 0
    plain = plain_name(path).endswith(".txt")
    for text in _read_plain(path, bad, _BOOK) if plain else _read_rows(path, bad):
        number += 1
        yield (text,)
    _report(bad, [path], number, skip)


def _in_folder(directory, skip=False):
    """The paths of the files of text below a folder."""
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if re.search(r"\.(txt|jsonl)(\.gz)?$", name)
    )


@kept_while_unchanged(_in_folder, maxsize=1)
def _read_folder(directory, skip):
    """Returns {split: documents}."""
    paths = _in_folder(directory)
    if not paths:
        raise MissingFileError(
            f"There is no *.txt, *.txt.gz, *.jsonl or *.jsonl.gz in {directory!r} or "
            "below. Correct text_files.directory or REMIXER_TF_TEXT_DIR."
        )
    splits = {split: [] for split in SPLITS}
    for documents in _read_all(paths, skip):
        number = round(_VALIDATION_SHARE * len(documents))
        cut = len(documents) - (max(number, 1) if len(documents) > 1 else 0)
        splits["train"] += documents[:cut]
        splits["validation"] += documents[cut:]
    random.Random(0).shuffle(splits["train"])
    return splits


def files_of_patterns(patterns, skip=False):
    """Returns the paths of the files of patterns, see `read_files`."""
    patterns = _listed(patterns)
    # A pattern without a match is read as a name; the error lists similar names.
    found = (files_of(pattern) or [pattern] for pattern in map(locate, patterns))
    return [path for paths in found for path in paths]


@kept_while_unchanged(files_of_patterns, maxsize=4)
def _read_files(patterns, skip):
    documents = sum(_read_all(files_of_patterns(patterns), skip), [])
    random.Random(0).shuffle(documents)
    return documents


def _read_all(paths, skip):
    """Returns a list of documents for each file."""
    bad, read = collections.defaultdict(list), []
    for path in paths:
        plain = plain_name(path).endswith(".txt")
        read.append(list((_read_plain if plain else _read_rows)(path, bad)))
    documents = sum(map(len, read))
    _report(bad, paths, documents, skip)
    if not documents:
        raise UserError(
            f"There is no text in {shorten(paths)}: "
            f"{'the file is' if len(paths) == 1 else 'the files are'} empty."
        )
    return read


def _report(bad, paths, documents, skip):
    how = "TASK = @text_task() and text_task.on_bad_rows = 'skip'"
    rows = sum(map(len, bad.values())) + documents
    report_bad_rows("text files", bad, paths, rows, how, skip)


def _read_rows(path, bad, column="text"):
    """Yields the documents of a table."""
    files = [TableFile(x, fields=[column]) for x in shards_of(path)]
    for file in files:
        names, place = file.first_columns()
        if names and column not in names:
            raise UserError(
                f"{place} has no column {column!r}. {describe_columns(names)}"
            )
        for line in itertools.chain.from_iterable(file.records()):
            problem, text = line.problem, None
            try:
                text = None if problem else line.text(column)
            except UserError as error:
                problem = str(error)
            if text and text.strip():
                yield text
            else:
                bad[path, problem or "no text"].append((file.path, line.number))


def _read_plain(path, bad, most=None):
    """Yields the documents of a .txt file; of `most` characters if it is a book."""
    if not tf.io.gfile.exists(path):
        read_text(path)  # raises
    with open_text(path) as file:
        lines = _good_lines(file, path, bad)
        head, size = [], 0
        for line in lines:
            head.append(line)
            size += len(line) + 1
            if most and size > most:
                break
        else:
            text = "\n".join(head)
            book = re.search(
                r"\*\*\* ?START OF TH.*?\n(.*)\n[^\n]*\*\*\* ?END OF TH",
                text,
                re.DOTALL,
            )
            head = (book[1] if book else text).split("\n")
        document, size = [], 0
        for paragraph in _paragraphs(itertools.chain(head, lines)):
            document.append(paragraph)
            size += len(paragraph) + 1
            if size >= _DOCUMENT:
                yield "\n".join(document)
                document, size = [], 0
        if document:
            yield "\n".join(document)


def _good_lines(file, path, bad):
    for number, line in enumerate(lines_of(file), 1):
        if is_utf8(line):
            yield line
        else:
            bad[path, "invalid UTF-8"].append((path, number))


def _paragraphs(lines):
    """Yields the texts between blank lines, each with single blanks in it."""
    paragraph = []
    for line in lines:
        words = line.split()
        if words:
            paragraph += words
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)
