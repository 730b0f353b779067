"""Texts to the ids that a model reads, and back."""

import functools
import hashlib
import re

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.arguments import Factory, checked
from remixer_tf.data.kinds import Task
from remixer_tf.data.pieces import SentencePieceVocabulary
from remixer_tf.data.published_vocabulary import PublishedVocabulary
from remixer_tf.data.vocabularies import extra_id_range
from remixer_tf.errors import check_choices

# transformers' `clean_up_tokenization` leaves out these blanks, in its order.
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
# Characters at the end of a text that clean up otherwise with more text behind them are
# fewer: 4 in 400,000 random texts.
UNSETTLED = 8


def keep_end(dataset, output_features, sequence_length=None):
    """A preprocessor before `append_eos_after_trim`: long inputs lose their start."""
    if sequence_length is None:
        return dataset
    room = sequence_length["inputs"] - int(output_features["inputs"].add_eos)
    return dataset.map(lambda example: {**example, "inputs": example["inputs"][-room:]})


class Codec(tf.Module):
    """Makes a model's ids from texts, as its task's training does.

    **The rule.** A feature's ids are those of its vocabulary, and EOS if the feature
    has `add_eos`. Ids over its length lose their end. EOS stays if the task appends it
    after trimming (`append_eos_after_trim`), and is lost if it appends it before
    (`append_eos`, as T5's own tasks): the model has never seen it there. Inputs of a
    task with `keep_end` lose their beginning. If tasks of a mixture differ, the rule
    that keeps more counts: EOS, or the end.

    A task with only targets is one of running text. Its inputs are the text before the
    targets, in the same row. Neither has EOS, and a long row loses its beginning.

    Bytes that are not UTF-8 have ids too: a SentencePiece vocabulary reads unknown
    characters.

    Args:
        task: a `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints, as in training; the attribute `lengths`.
        feature_converter: the `seqio.FeatureConverter` class of the model's batches,
            see `converter_for`; the attribute `converter`.
        trim: None, or "start": inputs of any task lose their beginning, as in
            lm-evaluation-harness; in a language model's row they then have all the room
            that targets leave. Another one is a ValueError.

    Attributes:
        one_row: bool, whether the model is a language model.
        row_length: int, the tokens that a language model reads.
        running_text: bool, whether the task has only targets.
        vocabulary: function of a feature's name; returns its `seqio.Vocabulary`.
        files: list of str, the files of SentencePiece vocabularies.
    """

    @checked
    def __init__(
        self,
        task: Task,
        feature_lengths,
        feature_converter: Factory = seqio.EncDecFeatureConverter,
        trim=None,
    ):
        super().__init__(name="codec")
        check_choices((None, "start"), trim=trim)
        features, known = task.output_features, []
        self.running_text = "inputs" not in features
        self.lengths = dict(feature_lengths)
        self.row_length = sum(self.lengths.values())
        self.converter = feature_converter
        self.one_row = isinstance(
            feature_converter(pack=False), seqio.LMFeatureConverter
        )
        vocabularies = {
            name: _savable(feature.vocabulary, known)
            for name, feature in features.items()
        }
        if self.running_text and "targets" in features:
            vocabularies["inputs"] = vocabularies["targets"]
        self.vocabulary = vocabularies.__getitem__
        # A SavedModel holds what an attribute refers to.
        self._tokenizers = [kept for one in known for kept in one.kept()]
        self.files = sorted({one.sentencepiece_model_file for one in known})
        with_eos = [name for name, one in features.items() if one.add_eos]
        self._with_eos = [] if self.running_text else with_eos
        after_trim = seqio.preprocessors.append_eos_after_trim
        self._keep_eos = with_eos if _has(task, after_trim) else []
        self._trim_starts = trim == "start" or self.running_text
        self._keep_ends = self._trim_starts or _has(task, keep_end)

    def encode(self, name, texts):
        """Strings `[batch]` of a feature to whole ids, in a graph or eagerly.

        Returns ragged int32 `[batch, (length)]`, EOS included, not trimmed.
        """
        vocabulary = self.vocabulary(name)
        end = [vocabulary.eos_id] if name in self._with_eos else []
        return tf.map_fn(
            lambda text: tf.concat([vocabulary.encode_tf(text), end], axis=0),
            texts,
            fn_output_signature=tf.RaggedTensorSpec([None], tf.int32),
        )

    def ids(self, name, text, eos=True):
        """The whole ids of one text, bytes or str, a list of int; EOS only if `eos`."""
        vocabulary = self.vocabulary(name)
        ids = vocabulary.encode_tf(tf.constant(text)).numpy().tolist()
        return ids + [vocabulary.eos_id] * (eos and name in self._with_eos)

    def trim(self, name, ids, length=None):
        """Trims whole ids, ragged `[batch, (length)]`, to the feature's length.

        `length` may replace it. Returns ragged ids, and bool `[batch]`, whether some
        are lost.
        """
        length = length or self.lengths[name]
        trimmed = ids.row_lengths() > length
        if name == "inputs" and self._keep_ends:
            return ids[:, -length:], trimmed
        if name in self._keep_eos:
            parts = [ids[:, : length - 1], ids[:, length - 1 :][:, -1:]]
            return tf.concat(parts, axis=1), trimmed
        return ids[:, :length], trimmed

    def read(self, name, texts, length=None):
        """Strings to a model's ids: `encode`, `trim`, `pad`.

        Returns int32 `[batch, length]`, and bool `[batch]`, whether some are lost.
        """
        length = length or self.lengths[name]
        ids, trimmed = self.trim(name, self.encode(name, texts), length)
        return pad(ids, length), trimmed

    def decode(
        self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    ):
        """Ids of targets, int32 `[batch, length]`, to strings `[batch]`.

        Ids after EOS are left out. `skip_special_tokens` also leaves out extra ids,
        such as <extra_id_0>, and special tokens that were added;
        `clean_up_tokenization_spaces` leaves out blanks, as in "yes .". Both do as
        transformers' tokenizers.
        """
        vocabulary = self.vocabulary("targets")
        if skip_special_tokens:
            extra = extra_id_range(vocabulary)
            special = (ids >= extra.start) & (ids < extra.stop)
            for token in getattr(vocabulary, "added_tokens", ()):
                if token.special:
                    special |= ids == token.id
            ids = tf.where(special, vocabulary.pad_id, ids)
        texts = vocabulary.decode_tf(ids)
        if clean_up_tokenization_spaces:
            for spaced in _SPACED:
                texts = tf.strings.regex_replace(
                    texts, re.escape(spaced), spaced.strip()
                )
        return texts

    def pairs(self, inputs, targets):
        """A batch to score targets with, in a graph or eagerly.

        `inputs` and `targets` are whole ids, ragged int32 `[batch, (length)]`. Returns
        the batch, a dictionary of int32 `[batch, length]` as `converter` makes it;
        int64 `[batch]`, the ids of each pair in it; bool `[batch]`, if some are lost.
        """
        whole = inputs.row_lengths() + targets.row_lengths()
        if self.one_row and self._trim_starts:
            targets = targets[:, : self.row_length]
            rows = tf.concat([inputs, targets], axis=1)[:, -self.row_length :]
        else:
            inputs, _ = self.trim("inputs", inputs)
            targets, _ = self.trim("targets", targets)
            rows = tf.concat([inputs, targets], axis=1)
        kept = rows.row_lengths()
        if self.one_row:
            starts = kept - targets.row_lengths()
            batch, tokens = {}, pad(rows, self.row_length)
        else:
            starts = tf.zeros_like(kept)
            batch = {"encoder_input_tokens": pad(inputs, self.lengths["inputs"])}
            tokens = pad(targets, self.lengths["targets"])
        places = tf.range(tokens.shape[1], dtype=tf.int64)
        is_target = (places >= starts[:, None]) & (tokens > 0)
        batch |= {
            "decoder_input_tokens": tf.pad(tokens, [[0, 0], [1, 0]])[:, :-1],
            "decoder_target_tokens": tokens,
            "decoder_loss_weights": tf.cast(is_target, tf.int32),
        }
        return batch, kept, kept < whole

    def converted(self, examples, **options):
        """Examples in memory as rows of the model's batches, each once, in order.

        `examples` is a list, not empty, of dictionaries of int arrays `[n]`; features
        without a length are left out. `options` are the feature converter's, as `pack`.
        """
        columns = {
            name: self.trim(name, ragged([example[name] for example in examples]))[0]
            for name in self.lengths
        }
        dataset = tf.data.Dataset.from_tensor_slices(columns)
        dataset = dataset.map(lambda row: {k: x[: tf.size(x)] for k, x in row.items()})
        return self.converter(**options)(dataset, dict(self.lengths))


def ragged(rows):
    """Sequences of int as ragged int32 `[len(rows), (length)]`."""
    flat = [np.asarray(row, np.int32) for row in rows]
    return tf.RaggedTensor.from_row_lengths(
        np.concatenate([np.zeros([0], np.int32), *flat]), [*map(len, flat)]
    )


def pad(ids, length):
    """Ragged ids, none above `length`, as int32 `[batch, length]`, filled with 0."""
    return ids.to_tensor(shape=[None, length])


def _has(task, preprocessor):
    """Whether a task has a preprocessor, perhaps in a `functools.partial`."""
    return any(
        preprocessor is (one.func if isinstance(one, functools.partial) else one)
        for subtask in seqio.get_subtasks(task)
        for one in subtask.preprocessors
    )


class _KeepsTokenizers:
    """Lets a SentencePiece vocabulary always give the same TensorFlow tokenizers.

    seqio's parses the model anew in every call; in a graph, it cannot be saved.
    """

    def __init__(self, vocabulary):
        self.__setstate__(vocabulary.__getstate__())
        self._model = vocabulary._model_context()  # The file may have changed.
        self._kept = {
            name: _saved_once(getattr(vocabulary, name))
            for name in ("tf_tokenizer", "tf_pieces", "tf_normalizer")
            if hasattr(type(vocabulary), name)
        }

    def __getstate__(self):
        # Vocabularies are equal where this is.
        state = super().__getstate__()
        del state["_kept"]
        return state

    def kept(self):
        """The tokenizers, a list."""
        return [*self._kept.values()]

    def _keep(self, name):
        if tf.executing_eagerly():
            try:
                self._kept[name].vocab_size()
            except tf.errors.NotFoundError:  # tf.random.set_seed frees the model.
                self._kept[name] = _saved_once(getattr(super(), name))
        return self._kept[name]

    tf_tokenizer = property(lambda self: self._keep("tf_tokenizer"))
    tf_pieces = property(lambda self: self._keep("tf_pieces"))
    tf_normalizer = property(lambda self: self._keep("tf_normalizer"))


class _Pieces(_KeepsTokenizers, seqio.SentencePieceVocabulary):
    pass


class _OurPieces(_KeepsTokenizers, SentencePieceVocabulary):
    pass


class _PublishedPieces(_KeepsTokenizers, PublishedVocabulary):
    pass


# The first kind that a vocabulary is of, and the class that keeps its tokenizers.
_KEEPING = {
    PublishedVocabulary: _PublishedPieces,
    SentencePieceVocabulary: _OurPieces,
    seqio.SentencePieceVocabulary: _Pieces,
}


def _saved_once(tokenizer):
    """Lets a SavedModel hold the tokenizer's vocabulary once."""
    # TensorFlow Text gives it to an op, which `tf.saved_model.save` writes into the
    # main graph and into a function that makes the resource. Both call one here.
    resource = tokenizer._model_resource
    # The op's name is the key of the model in a process: other models need others.
    digest = hashlib.sha256(resource._model).hexdigest()
    resource._name = f"sentencepiece_{digest[:16]}"
    create = tf.function(resource._create_resource, autograph=False)
    resource._create_resource = create.get_concrete_function()
    return tokenizer


def _savable(vocabulary, known):
    """The vocabulary with a tokenizer that equal ones in `known` share."""
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary
    for one in known:
        if vocabulary == one:
            return one
    kind = next(x for x in _KEEPING if isinstance(vocabulary, x))
    known.append(_KEEPING[kind](vocabulary))
    return known[-1]
