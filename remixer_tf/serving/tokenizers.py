"""A task's vocabularies inside graphs, such that a SavedModel can hold them."""

import seqio
import tensorflow as tf


class Tokenizers(tf.Module):
    """From strings to the ids that a task's features have, and back.

    A task that has targets alone is one of running text: its inputs are the beginning
    of targets, and EOS stands behind neither. Any bytes have ids: a vocabulary of
    bytes reads them as they are, and SentencePiece reads what is not UTF-8 as unknown
    characters.

    Args:
        task: a `seqio.Task` or `seqio.Mixture`.

    Attributes:
        files: list of str, the vocabularies' files.
        keep_eos: list of the features that keep their EOS when they are cut.
        vocabulary: function of "inputs" or "targets" that gives its vocabulary.
    """

    def __init__(self, task):
        super().__init__(name="tokenizers")
        features, known = task.output_features, []
        vocabularies = {
            name: _savable(feature.vocabulary, known)
            for name, feature in features.items()
        }
        self._add_eos, self.keep_eos = [], []
        if "inputs" in features:
            self._add_eos = [n for n, feature in features.items() if feature.add_eos]
            self.keep_eos = [n for n in features if keeps_eos(task, n)]
        else:
            vocabularies["inputs"] = vocabularies["targets"]
        self.vocabulary = vocabularies.__getitem__
        # A SavedModel holds what is an attribute here.
        self._tokenizers = [one.tf_tokenizer for one in known]
        self.files = sorted({one.sentencepiece_model_file for one in known})

    def encode(self, name, texts):
        """Strings `[batch]` to ids, a ragged int32 `[batch, (length)]`, not cut."""
        vocabulary = self.vocabulary(name)
        end = [vocabulary.eos_id] if name in self._add_eos else []
        return tf.map_fn(
            lambda text: tf.concat([vocabulary.encode_tf(text), end], axis=0),
            texts,
            fn_output_signature=tf.RaggedTensorSpec([None], tf.int32),
        )


def cut(ids, length, keep_eos):
    """Cuts ragged ids as tasks do: their end is lost.

    Args:
        ids: ragged int32 `[batch, (length)]`.
        length: int.
        keep_eos: bool, whether the last id, EOS, stays, see `keeps_eos`.
    """
    if not keep_eos:
        return ids[:, :length]
    return tf.concat([ids[:, : length - 1], ids[:, length - 1 :][:, -1:]], axis=1)


def pad(ids, length):
    """Ragged ids, none longer than `length`, as int32 `[batch, length]`, filled with 0.

    Args:
        ids: ragged int32 `[batch, (length)]`.
        length: int.
    """
    return ids.to_tensor(shape=[None, length])


def keeps_eos(task, feature):
    """Whether a feature of a task that is cut keeps its EOS.

    It does where the task has `append_eos_after_trim`.
    """
    return task.output_features[feature].add_eos and any(
        seqio.preprocessors.append_eos_after_trim in subtask.preprocessors
        for subtask in seqio.get_subtasks(task)
    )


class _OneTokenizer(seqio.SentencePieceVocabulary):
    """A SentencePiece vocabulary that always gives the same TensorFlow tokenizer.

    seqio's makes another one in every call: in a graph, one that cannot be saved.
    """

    def __init__(self, vocabulary):
        self.__setstate__(vocabulary.__getstate__())
        self._tokenizer = vocabulary.tf_tokenizer

    @property
    def tf_tokenizer(self):
        return self._tokenizer


def _savable(vocabulary, known):
    """The vocabulary, of which `known` holds one tokenizer: equal ones share it."""
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary
    for one in known:
        if vocabulary == one:
            return one
    known.append(_OneTokenizer(vocabulary))
    return known[-1]
