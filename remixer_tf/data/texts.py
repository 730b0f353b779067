"""Texts of examples: their UTF-8, and what a vocabulary gives back of them."""

import seqio
import tensorflow as tf

from remixer_tf.data.vocabularies import is_text
from remixer_tf.errors import UserError

# How much `describe_changes` reads at most: 0.1 s of SentencePiece.
MOST_TARGETS, _MOST_CHARACTERS = 1_000, 200_000


def decode_text(data, task, split, place):
    """Returns the bytes of a text as str.

    Raises a ValueError if they are not UTF-8. It has the task's name, and the file and
    line if the source reads lines, else the `place`, such as "example 3".
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        place = _first_bad_line(task.source, split) or place
        raise UserError(
            f"{task.name} {split}, {place}: a text is not UTF-8: {error.reason} at "
            f"byte {error.start} of {data!r:.100}. Save the file as UTF-8, for "
            "instance with: iconv -f latin1 -t utf-8 FILE > NEW_FILE"
        ) from None


def _first_bad_line(source, split):
    if not isinstance(source, seqio.TextLineDataSource):
        return None
    for path in source.list_shards(split):
        with tf.io.gfile.GFile(path, "rb") as file:
            for number, line in enumerate(file.read().split(b"\n"), 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return f"{path}, line {number}"
    return None


def features_of_text(task):
    """Returns the names of a `seqio.Task`'s features whose texts must be UTF-8.

    Pieces have no ids for other bytes, and metrics compare targets as str. Other bytes
    may be whatever they are to a byte vocabulary.
    """
    return [
        name
        for name, feature in task.output_features.items()
        if is_text(feature)
        and (
            not isinstance(feature.vocabulary, seqio.ByteVocabulary)
            or (name == "targets" and writes_answers(task))
        )
    ]


def writes_answers(task):
    """Whether a `seqio.Task` has inputs, and texts as targets."""
    features = task.output_features
    return "inputs" in features and is_text(features.get("targets"))


def describe_changes(task, split, targets):
    """Says which targets a task's vocabulary does not give back; None if it gives all.

    `targets` are texts before tokenization. SentencePiece loses blanks at both ends and
    next to each other, line breaks and tabs, writes some characters otherwise (NFKC),
    and has no pieces for others. At most `MOST_TARGETS` are looked at.
    """
    vocabulary = task.output_features["targets"].vocabulary
    seen = characters = number = 0
    changed = {}
    for text in targets[:MOST_TARGETS]:
        seen += 1
        if (back := _back(vocabulary, text)) != text:
            number += 1
            changed[text] = back
        characters += len(text)
        if characters > _MOST_CHARACTERS:
            break
    if not number:
        return None
    return (
        f"{task.name} {split}: the vocabulary changes {number:,} of the first {seen:,} "
        f"targets when it encodes and decodes them: {_examples(changed)}. No answer "
        "can equal them, unless the task's metrics overlook the difference"
    )


def describe_changed_answers(vocabulary, answers):
    """Says which allowed answers a vocabulary writes otherwise; None if it writes all.

    At most `MOST_TARGETS` are looked at.
    """
    backs = {text: _back(vocabulary, text) for text in answers[:MOST_TARGETS]}
    changed = {text: back for text, back in backs.items() if back != text}
    if not changed:
        return None
    return (
        f"the vocabulary changes {len(changed):,} of {len(answers):,} allowed answers: "
        f"{_examples(changed)}. Answers are written so"
    )


def _back(vocabulary, text):
    return vocabulary.decode(vocabulary.encode(text))


def _examples(changed):
    pairs = [*changed.items()][:3]
    return ", ".join(f"{text!r:.60} becomes {back!r:.60}" for text, back in pairs)
