"""A trained model from strings to strings, tokenizer included.

`python -m remixer_tf.infer` calls a `TextToText`, `python -m remixer_tf.export` saves
one, so that both give the same answers; evaluation's predictions are these too.
"""

import seqio
import tensorflow as tf

from remixer_tf.checkpoints import reading
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.decoding import check_writes, greedy_decode
from remixer_tf.models.build import build_model
from remixer_tf.serving.token_graph import TokenGraph

_STRINGS = tf.TensorSpec([None], tf.string, name="inputs")


def text_to_text(
    model_dir,
    model,
    task,
    *,
    feature_lengths,
    step=None,
    dtype_policy="float32",
    vocabulary=None,
    max_decode_length=None,
    decode_fn=greedy_decode,
    weights="float32",
):
    """Restores a checkpoint of a run as a `TextToText`.

    Args:
        model_dir: folder of the run.
        model: a factory, as in `train`: `model()` is a `keras.Model`, and its `build()`
            makes all variables.
        task: registered name, `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints, as in training.
        step: int, the step of the checkpoint; None for the newest.
        dtype_policy: "float32" or "mixed_bfloat16".
        vocabulary: None, or the `seqio.Vocabulary` to use in place of the task's.
        max_decode_length: int, tokens decoded at most; None for the targets' length.
            Where a task has targets alone, as raw text, prompt and answer share that
            length, half of it each unless this says otherwise.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        weights: str, the type that an export stores them in, see `StoredWeights`.

    Returns:
        the `TextToText`, and the checkpoint's step, an int.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint is of another model or vocabulary, the model writes
            no text, the task is unknown or has no targets, or `max_decode_length`
            leaves no room for a prompt.
    """
    model, task = build_for_run(model_dir, model, task, dtype_policy, vocabulary)
    step = reading.restore_model(model_dir, model, step)
    input_length, max_decode_length = _lengths(task, feature_lengths, max_decode_length)
    answer = TextToText(
        model,
        task,
        input_length=input_length,
        max_decode_length=max_decode_length,
        decode_fn=decode_fn,
        weights=weights,
    )
    return answer, step


def build_for_run(model_dir, model, task, dtype_policy, vocabulary):
    """Builds a model that writes text, to be restored from a run.

    Args: see `text_to_text`.

    Returns:
        the built `keras.Model`, and the `seqio.Task` or `seqio.Mixture`.

    Raises:
        ValueError: the run has another vocabulary, the model writes no text, or the
            task is unknown.
    """
    task = get_task(task, vocabulary)
    check_vocabularies(model_dir, describe_vocabularies(task))
    model = build_model(model, dtype_policy)
    check_writes(model)
    return model, task


def _lengths(task, feature_lengths, max_decode_length):
    """The tokens of a prompt and of an answer, at most."""
    length = feature_lengths["targets"]
    if "inputs" in task.output_features:
        return feature_lengths["inputs"], max_decode_length or length
    max_decode_length = max_decode_length or length // 2
    if not max_decode_length < length:
        raise ValueError(
            f"Prompt and answer share the {length} tokens of a text of {task.name}, so "
            f"max_decode_length must be less. Received: {max_decode_length}"
        )
    return length - max_decode_length, max_decode_length


class TextToText(tf.Module):
    """Answers strings with strings; `tf.saved_model.save` can save it.

    A string becomes what evaluation makes of a task's `inputs`: the vocabulary's ids,
    EOS if the feature has it, padding up to `input_length`. A longer one is cut there
    and loses its EOS, unless the task's preprocessors have `append_eos_after_trim`.
    Where a task has targets alone, as raw text, the string is the beginning of a text
    to go on with, and has no EOS. Any bytes have an answer: a vocabulary of bytes reads
    them as they are, and SentencePiece reads what is not UTF-8 as unknown characters.

    Args:
        model: a built and restored model that `decode_fn` can decode with.
        task: a `seqio.Task` or `seqio.Mixture` with the feature targets, and inputs if
            it is not of a language model.
        input_length: int, the tokens that the model reads, EOS included.
        max_decode_length, decode_fn, weights: see `TokenGraph`, which is `tokens`.

    Call arguments:
        inputs: string `[batch]`.

    Returns:
        dictionary with `outputs`, string `[batch]`, and `scores`, float32 `[batch]`,
        the log-probability of the answer's tokens. Where `decode_fn` gives several
        answers, also `all_outputs` and `all_scores`, `[batch, answers]`.

    Raises:
        ValueError: the task has no targets.
    """

    def __init__(
        self,
        model,
        task,
        *,
        input_length,
        max_decode_length,
        decode_fn=greedy_decode,
        weights="float32",
    ):
        super().__init__(name="text_to_text")
        features = task.output_features
        if "targets" not in features:
            raise ValueError(
                f"{task.name} has the features {', '.join(features)}. Answering needs "
                "a task with targets."
            )
        self.tokens = TokenGraph(
            model,
            input_length=input_length,
            max_decode_length=max_decode_length,
            decode_fn=decode_fn,
            weights=weights,
        )
        self.input_length = input_length
        self._add_eos = "inputs" in features and features["inputs"].add_eos
        self._keep_eos = self._add_eos and keeps_eos(task, "inputs")
        writes = features["targets"].vocabulary
        reads = features["inputs"].vocabulary if "inputs" in features else writes
        self._reads = _with_one_tokenizer(reads)
        self._writes = self._reads if writes == reads else _with_one_tokenizer(writes)
        # A SavedModel holds what is an attribute here.
        models = [
            v for v in (self._reads, self._writes) if isinstance(v, _OneTokenizer)
        ]
        self._tokenizers = [vocabulary.tf_tokenizer for vocabulary in models]
        self.vocabulary_files = sorted({v.sentencepiece_model_file for v in models})

    @tf.function(input_signature=[_STRINGS], autograph=False)
    def __call__(self, inputs):
        tokens = tf.map_fn(
            self._encode,
            inputs,
            fn_output_signature=tf.TensorSpec([self.input_length], tf.int32),
        )
        decoded = self.tokens.decode(tokens)
        answers = {
            "outputs": self._writes.decode_tf(decoded.tokens),
            "scores": decoded.scores,
        }
        if decoded.answers:
            _, number, length = decoded.answers.tokens.shape
            texts = tf.reshape(decoded.answers.tokens, [-1, length])
            texts = self._writes.decode_tf(texts)
            answers["all_outputs"] = tf.reshape(texts, [-1, number])
            answers["all_scores"] = decoded.answers.scores
        return answers

    @tf.function(input_signature=[_STRINGS])
    def count_tokens(self, inputs):
        """Counts the tokens of strings `[batch]`, EOS included: int32 `[batch]`.

        Of more than `input_length`, a call reads only the first.
        """
        return tf.map_fn(
            lambda text: tf.size(self._reads.encode_tf(text)) + int(self._add_eos),
            inputs,
            fn_output_signature=tf.int32,
        )

    def _encode(self, text):
        """One string to its ids, cut and padded: int32 `[input_length]`."""
        ids = self._reads.encode_tf(text)
        if self._keep_eos:
            ids = ids[: self.input_length - 1]
        if self._add_eos:
            ids = tf.concat([ids, [self._reads.eos_id]], axis=0)
        ids = ids[: self.input_length]
        return tf.pad(ids, [[0, self.input_length - tf.size(ids)]])


def keeps_eos(task, feature):
    """Whether a feature of a task that is cut keeps its EOS."""
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


def _with_one_tokenizer(vocabulary):
    """Returns the vocabulary such that `TextToText` can save it."""
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return _OneTokenizer(vocabulary)
    return vocabulary
