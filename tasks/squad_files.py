"""Finds and reads SQuAD's JSON files for the task `squad_files_spans`.

The folder is, in this order: what gin names (`squad_files.directory`), and the
environment variable REMIXER_TF_SQUAD_DIR. Its file
train*.json is the split "train" and dev*.json is "validation", both perhaps with .gz.
They are of version 1.1, or of 2.0, which has questions without answers.
"""

import json
import os
import random
import re

import seqio
import tensorflow as tf

from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.tasks.folders import DataFolder, read_bytes

SPLITS = {"train": "train", "validation": "dev"}  # the names of files begin so

data_folder = DataFolder("squad_files", "REMIXER_TF_SQUAD_DIR")


def read_split(split):
    """Returns the rows of "train" or "validation", see `read_json`.

    Those of train, which the file has by article, are shuffled, once and for all.

    Raises:
        FileNotFoundError: no folder is named, or it has not one file of the split.
        ValueError: see `read_json`.
    """
    directory, _ = data_folder.require("SQuAD's JSON files")
    pattern = rf"{SPLITS[split]}.*\.json(\.gz)?"
    names = sorted(os.listdir(directory))
    found = [name for name in names if re.fullmatch(pattern, name)]
    if len(found) != 1:
        raise MissingFileError(
            f"{directory!r} must hold one file {SPLITS[split]}*.json or "
            f"{SPLITS[split]}*.json.gz. Received: {', '.join(found) or 'none'}."
        )
    rows = read_json(os.path.join(directory, found[0]))
    if split == "train":
        random.Random(0).shuffle(rows)
    return rows


def read_json(path):
    """Reads a file of SQuAD 1.1 or 2.0, decompressed if its name ends in .gz.

    Returns:
        list of dictionaries, one for each question: "id", "question" and "context",
        str, and "answers", a list of dictionaries with "text" and "answer_start", in
        characters; empty where the context has no answer.

    Raises:
        ValueError: the file is of another format, or two questions share an id.
    """
    data = read_bytes(path)
    try:
        rows = [
            {
                "id": question["id"],
                "question": question["question"],
                "context": paragraph["context"],
                "answers": question["answers"],
            }
            for article in json.loads(data)["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not of SQuAD's format: {error!r}. Expected JSON: data, a "
            "list of articles with paragraphs, each with context and qas."
        ) from error
    if len({row["id"] for row in rows}) < len(rows):
        raise UserError(f"{path}: an id must name one question, some name several.")
    return rows


def question_source(read_rows, splits):
    """A source of questions in memory, in the shape of TFDS' SQuAD.

    `read_rows` returns what `read_json` does of a split's name. It is called when the
    split is read.
    """

    def dataset_fn(split, shuffle_files=False, seed=None):
        rows = read_rows(split)
        texts = {
            name: tf.constant([row[name] for row in rows], tf.string)
            for name in ("id", "question", "context")
        }

        def ragged(name, dtype):
            values = [[answer[name] for answer in row["answers"]] for row in rows]
            return tf.ragged.constant(values, dtype, ragged_rank=1)

        answers = {
            "text": ragged("text", tf.string),
            "answer_start": ragged("answer_start", tf.int32),
        }
        return tf.data.Dataset.from_tensor_slices({**texts, "answers": answers})

    return seqio.FunctionDataSource(dataset_fn, splits)
