"""Training SentencePiece vocabularies on the text of tasks. The ids are T5's."""

import contextlib
import io
import os
import re
import tempfile
import unicodedata

import sentencepiece
import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.arguments import NonNegativeInt, Text, Texts, checked
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.checkpoints.whole_folder import whole_file
from remixer_tf.data.failures import reading
from remixer_tf.data.pipeline import check_split, get_task
from remixer_tf.data.texts import decode_text
from remixer_tf.data.vocabularies import byte_vocabulary, sentencepiece_vocabulary
from remixer_tf.errors import (
    StorageError,
    UserError,
    check_choices,
    check_integers,
    check_paths,
    check_range,
    check_unicode,
)

MODEL_TYPES = ("unigram", "bpe", "word")
SPECIAL_PIECES = 3
_LONGEST_WORD = 2**16 - 1  # characters that SentencePiece's "bpe" can number
_MOST_OF_ONE = 18  # characters that NFKC makes of one

_folder = None  # where `trained_vocabulary` writes instead of its `path`


@checked
def read_texts(
    task,
    split: Text = "train",
    features: Texts = ("inputs", "targets"),
    num_examples: NonNegativeInt | None = None,
):
    """Reads the texts of a task or mixture before tokenization, a list of str.

    The texts of the `features`, names, follow each other. `num_examples` are only the
    first of each task; None or 0 for all. Raises a ValueError if the task or split is
    unknown, keeps no such text or is empty.
    """
    # Bytes need no file; the task's own vocabulary may have to be downloaded.
    task, texts = get_task(task, byte_vocabulary()), []
    for subtask in seqio.get_subtasks(task):
        check_split(subtask, split)
        with reading(subtask, split):
            texts += _texts_of(subtask, split, features, num_examples)
    if not any(text.strip() for text in texts):
        raise UserError(
            f"{task.name}, split {split!r}, has no text in {list(features)}."
        )
    return texts


def _texts_of(task, split, features, num_examples):
    suffix, texts, number = "_pretokenized", [], 0

    def keep_texts(example):
        return [example[f"{name}{suffix}"] for name in features]

    dataset = task.get_dataset(None, split=split, shuffle=False)
    known = [name for name in dataset.element_spec if name.endswith(suffix)]
    if missing := [name for name in features if f"{name}{suffix}" not in known]:
        raise UserError(
            f"{task.name} keeps no text of {', '.join(missing)}. It keeps that "
            f"of: {', '.join(name.removesuffix(suffix) for name in known)}."
        )
    dataset = dataset.take(num_examples or -1).map(keep_texts).batch(1_000)
    for columns in dataset.as_numpy_iterator():
        for row in zip(*columns, strict=True):
            number += 1
            place = f"example {number}"
            texts += [decode_text(x, task, split, place) for x in row]
    return texts


def train_vocabulary(
    texts, output, vocab_size=None, model_type="unigram", character_coverage=1.0
):
    """Trains a SentencePiece model; returns its `seqio.SentencePieceVocabulary`.

    Raises a ValueError if no text has a word, "bpe" has one of 65,536 characters or
    more, `model_type` is unknown, or `vocab_size` missing, too small or too large for
    these texts; then the message has a size that fits.

    Args:
        texts: list of str, or another iterable of them.
        output: str, the path of the file. Missing folders are made.
        vocab_size: int, the number of pieces with pad, EOS and unknown; for "word"
            None takes every word.
        model_type: "unigram" (as T5's), "bpe", or "word", split at spaces.
        character_coverage: float in [0.98, 1], the share of all characters that get a
            piece; the rarest become unknown. Not for "word".
    """
    check_paths(output=output)
    texts = _without_reserved(_checked(texts))
    if model_type == "bpe":
        _check_words(texts)
    vocab_size, options = _size(texts, vocab_size, model_type)
    coverage = "a number in [0.98, 1]"
    check_range(
        "character_coverage", character_coverage, coverage, lambda x: 0.98 <= x <= 1
    )
    _check_output(output)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            # By default a longer text would be left out without a message. 10 is the
            # least that SentencePiece accepts.
            max_sentence_length=max(10, *(len(text.encode()) + 1 for text in texts)),
            minloglevel=1,
            **options,
        )
    except RuntimeError as error:
        raise UserError(_explain(error, vocab_size, model_type)) from error
    try:
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        with whole_file(output) as place, open(place, "wb") as file:
            file.write(model.getvalue())
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}.") from None
    return sentencepiece_vocabulary(output)


def _checked(texts):
    """The texts as a list of str; at least one has a word."""
    several = not isinstance(texts, (str, bytes, dict)) and hasattr(texts, "__iter__")
    texts = [*texts] if several else texts
    for text in texts if several else [texts]:
        if not (several and isinstance(text, str)):
            raise UserError(
                "texts must be a list of str. Received: "
                f"{'in the list, ' * several}{text!r:.200}"
            )
        check_unicode(text)
    if not any(text.strip() for text in texts):
        raise UserError(
            f"A vocabulary is trained on words, and none of {len(texts):,} texts has "
            "one."
        )
    return texts


def _without_reserved(texts):
    """The texts with blanks for U+2585: SentencePiece leaves out texts that have it."""
    reserved = "\u2585"
    found = sum(reserved in text for text in texts)
    if found:
        logging.warning(
            "%s of %s texts have the character U+2585 (%s), which SentencePiece "
            "reserves. It has no piece and is read as unknown; the rest of these texts "
            "is trained on.",
            f"{found:,}",
            f"{len(texts):,}",
            reserved,
        )
    return [text.replace(reserved, " ") for text in texts] if found else texts


def _check_words(texts):
    """Raises a UserError for a word at which SentencePiece would end the process."""
    for number, text in enumerate(texts, 1):
        if _MOST_OF_ONE * len(text) <= _LONGEST_WORD:
            continue
        words = unicodedata.normalize("NFKC", text).split()
        if (longest := max(map(len, words), default=0)) > _LONGEST_WORD:
            raise UserError(
                f"text {number:,} has a word of {longest:,} characters, and "
                f"model_type='bpe' takes at most {_LONGEST_WORD:,}. Leave such words "
                "out, or train a unigram vocabulary."
            )


def _size(texts, vocab_size, model_type):
    """Checks both arguments; returns the number of pieces to request, and options."""
    check_choices(MODEL_TYPES, model_type=model_type)
    if vocab_size is not None:
        check_integers(vocab_size=vocab_size)
    options = {}
    if model_type == "word":
        known = len({word for text in texts for word in text.split()}) + SPECIAL_PIECES
        if vocab_size is None:
            # `known` may be too many: words can be equal once they are normalized.
            vocab_size, options = known, {"use_all_vocab": True}
        if SPECIAL_PIECES < vocab_size < known:
            logging.warning(
                "A vocabulary of %d pieces lacks the %d rarest words of the text; "
                "%d would hold them all.",
                vocab_size,
                known - vocab_size,
                known,
            )
    if vocab_size is None or vocab_size <= SPECIAL_PIECES:
        raise UserError(
            f"vocab_size must be more than {SPECIAL_PIECES} (pad, EOS, unknown); it "
            "may be left out for model_type word, which then takes every word. "
            f"Received: {vocab_size}."
        )
    return vocab_size, options


def _check_output(output):
    """Raises before training if the file cannot be written."""
    if os.path.isdir(output):
        raise UserError(f"output must be a file. Received the folder {output!r}.")
    there = os.path.dirname(os.path.abspath(output))
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK):
        raise StorageError(f"cannot write {output}: {there} is no folder to write in.")


def trained_vocabulary(
    task, path: Located, vocab_size=None, model_type="unigram", extra_ids=0
):
    """The vocabulary of a file, which is trained on a task's text if it is missing.

    An existing file is not changed: delete it to train another one. Commands that read
    a run train none. Errors are those of `read_texts`, `train_vocabulary` and
    `sentencepiece_vocabulary`.

    Args:
        task: see `get_task`; its split "train" has the text.
        path: str, the SentencePiece model.
        vocab_size, model_type: see `train_vocabulary`.
        extra_ids: int, added to `vocab_size`, see `sentencepiece_vocabulary`.
    """
    if getattr(path, "run", None):
        return sentencepiece_vocabulary(path, extra_ids)
    path = locate(path)
    if _folder and not os.path.exists(path):
        path = os.path.join(_folder, os.path.basename(path))
    if not os.path.exists(path):
        # A model that asks for its vocabulary's size may be declared in a graph.
        with tf.__internal__.eager_context.eager_mode():
            texts = read_texts(task)
        trained = train_vocabulary(texts, path, vocab_size, model_type)
        logging.warning(
            "Trained the vocabulary %s of %d pieces on %d texts.",
            path,
            trained.vocab_size,
            len(texts),
        )
    return sentencepiece_vocabulary(path, extra_ids)


@contextlib.contextmanager
def vocabularies_for_a_while():
    """In this block `trained_vocabulary` writes into a temporary folder."""
    global _folder
    with tempfile.TemporaryDirectory() as _folder:
        try:
            yield
        finally:
            _folder = None


def _explain(error, vocab_size, model_type):
    """SentencePiece's message about a size, with the size to set."""
    if largest := re.search(r"too high.* value <= (\d+)", str(error)):
        return (
            f"vocab_size={vocab_size} is more than this text gives a {model_type} "
            f"vocabulary. Set it to {largest[1]} or less, or add text."
        )
    if smallest := re.search(r"required_chars. \d+ vs (\d+)", str(error)):
        return (
            f"vocab_size={vocab_size} has no room for every character of the text. "
            f"Set it to {smallest[1]} or more, or lower character_coverage."
        )
    return f"SentencePiece could not train the vocabulary: {error}"
