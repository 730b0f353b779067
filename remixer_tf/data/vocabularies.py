"""Vocabularies: bytes, or the pieces of a SentencePiece model."""

from typing import NamedTuple

import seqio
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from remixer_tf.arguments import NonNegativeInt, TheRun, checked
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.data.failures import files_near, is_a_folder
from remixer_tf.data.file_states import file_digest
from remixer_tf.data.kinds import Task
from remixer_tf.data.pieces import SentencePieceVocabulary
from remixer_tf.data.published_vocabulary import PublishedVocabulary
from remixer_tf.errors import MissingFileError, UserError, check_paths


@checked
def byte_vocabulary(extra_ids: NonNegativeInt | None = 0):
    """UTF-8 bytes: pad 0, EOS 1, unknown 2, byte b is b + 3; 259 ids, no file.

    `extra_ids` sentinels follow the bytes, see `sentencepiece_vocabulary`.
    """
    return seqio.ByteVocabulary(extra_ids)


# Path -> checksum of its file. seqio keeps a file's content under the file's name.
_read_by_seqio = {}


@checked
def sentencepiece_vocabulary(
    path: Located, extra_ids: NonNegativeInt | None = 0, added_tokens=()
):
    """The `SentencePieceVocabulary` of a file, checked at once.

    Raises a FileNotFoundError if there is no such file, and a ValueError if it is not a
    SentencePiece model, or has other special ids.

    Args:
        path: str, a SentencePiece model, local or gs://. Its ids must be T5's: pad 0,
            EOS 1, unknown 2. `python -m remixer_tf train_vocabulary` makes such files.
            Or the tokenizer.json of a T5 that transformers wrote.
        extra_ids: int, sentinels added after the pieces: 100 for T5's span corruption;
            an encoder needs 3, see `special_ids`. `<extra_id_0>` is the last id, in
            texts too.
        added_tokens: list of `AddedToken`, which follow the extra ids; import_weights
            sets it.
    """
    check_paths(path=path)
    run, path = getattr(path, "run", None), locate(path)
    if tf.io.gfile.isdir(path) or not tf.io.gfile.exists(path):
        if run:
            raise MissingFileError(
                f"There is no {path!r}, the vocabulary that the run {run} was trained "
                "with. Name a copy of this very file, whose checksum is compared, with "
                "--gin.VOCABULARY_FILE=FILE, or with the parameter that has the "
                "path in the run's operative_config.gin."
            )
        if tf.io.gfile.isdir(path):
            raise is_a_folder(path, "*.model")
        raise MissingFileError(
            f"There is no vocabulary file {path!r}.{files_near(path, '*.model')} To "
            "make one from a task's text: python -m remixer_tf train_vocabulary "
            f"--task=TASK --vocab_size=SIZE --output={path}"
        )
    if path.endswith(".json") or added_tokens:
        vocabulary = PublishedVocabulary(path, extra_ids, added_tokens)
    else:
        vocabulary = SentencePieceVocabulary(path, extra_ids=extra_ids)
    try:
        vocabulary.sha256 = file_digest(path)  # The file may change later.
        if _read_by_seqio.get(path) != vocabulary.sha256:
            seqio.vocabularies._load_model_internal.cache_clear()
            _read_by_seqio[path] = vocabulary.sha256
        vocabulary.load_model()
        tokenizer = vocabulary.tokenizer
        if not tokenizer.get_piece_size():
            raise UserError("it has no pieces")
        # SentencePiece loads a file that was cut between two pieces. The settings of
        # its training and normalization are the last fields.
        model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.sp_model)
        if not (model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
            raise UserError("its last fields are missing, as of a copy that was cut")
    except Exception as error:  # protobuf and SentencePiece raise kinds of their own
        if path.endswith(".json") or added_tokens:
            raise UserError(f"{path!r} cannot be read: {error}.") from error
        raise UserError(
            f"{path!r} is not a whole SentencePiece model: {error}. Expected the "
            "binary file that SentencePiece writes, usually called *.model. Copy it "
            "again, or delete it to train it anew."
        ) from error
    ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
    if ids != (0, 1, 2):
        raise UserError(
            f"The vocabulary {path!r} must have pad 0, EOS 1 and unknown 2, as T5's "
            f"have. Received: {ids} (-1 means none). Train it with --pad_id=0 "
            "--eos_id=1 --unk_id=2 --bos_id=-1, or with remixer_tf.train_vocabulary."
        )
    return vocabulary


def is_text(feature):
    """Whether a `seqio.Feature` holds the ids of a text."""
    vocabulary = getattr(feature, "vocabulary", None)
    return vocabulary is not None and not isinstance(
        vocabulary, seqio.PassThroughVocabulary
    )


@checked
def vocabulary_size(task: Task | None = None, *, run: TheRun | None = None):
    """Returns how many ids a model of a task needs, rounded up to a multiple of 128.

    VOCAB_SIZE = @vocabulary_size() in gin. The task has the model's vocabularies; None
    for the run's.
    """
    if task is None and run is None:
        raise UserError("vocabulary_size needs a task, or a run that has one.")
    task = run.get_task() if task is None else task
    features = filter(is_text, task.output_features.values())
    size = max(feature.vocabulary.vocab_size for feature in features)
    return -(-size // 128) * 128


@checked
def describe_vocabularies(task: Task):
    """Identifies the vocabularies of a task's (or mixture's) text.

    Returns {feature: {"kind", "size", "extra_ids"}}; a vocabulary of pieces also has
    "sha256" and "file", which only serves messages, and "added_tokens" if it has some.
    """
    return {
        name: describe_vocabulary(feature.vocabulary)
        for name, feature in task.output_features.items()
        if is_text(feature)
    }


def describe_vocabulary(vocabulary):
    """Identifies a `seqio.Vocabulary`, see `describe_vocabularies`."""
    described = {
        "kind": type(vocabulary).__name__,
        "size": vocabulary.vocab_size,
        "extra_ids": vocabulary.extra_ids,
    }
    path = getattr(vocabulary, "sentencepiece_model_file", None)
    if tokens := getattr(vocabulary, "added_tokens", ()):
        # As JSON gives them back.
        described["added_tokens"] = [list(token) for token in tokens]
    if path := path or getattr(vocabulary, "file", None):
        digest = getattr(vocabulary, "sha256", None) or file_digest(path)
        described |= {"sha256": digest, "file": path}
    return described


class SpecialIds(NamedTuple):
    """Special ids of an encoder, and the range of ordinary ids."""

    mask: int  # replaces a masked token: `<extra_id_0>`
    cls: int  # [CLS], starts a sequence: `<extra_id_1>`
    sep: int  # [SEP], ends each of several texts: `<extra_id_2>`
    first_ordinary: int  # after padding, EOS and unknown
    end_ordinary: int  # the first of the extra ids


def special_ids(vocabulary):
    """The `SpecialIds` of a vocabulary; fewer than three extra ids are a ValueError."""
    if hasattr(vocabulary, "special_ids"):  # WordPiece has its own
        return vocabulary.special_ids()
    extra = vocabulary.extra_ids
    if extra < 3:
        raise UserError(
            "An encoder needs ids for the mask, [CLS] and [SEP]: the last three of the "
            f"vocabulary's extra ids. Received: extra_ids={extra}. Set extra_ids = 3 "
            "at byte_vocabulary or sentencepiece_vocabulary, and name that in "
            "VOCABULARY."
        )
    ids = extra_id_range(vocabulary)
    return SpecialIds(*ids[:-4:-1], 3, ids.start)


def extra_id_range(vocabulary):
    """The extra ids of a vocabulary, a range; the last is that of <extra_id_0>."""
    end = getattr(vocabulary, "end_of_extra_ids", vocabulary.vocab_size)
    return range(end - vocabulary.extra_ids, end)
