"""A trained model from strings to strings, tokenizer included.

`infer` calls a `TextToText` and `export` saves one, so that both give the same answers.
Evaluation's predictions are these too.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import converter_for
from remixer_tf.decoding import check_scores, check_writes, greedy_decode, score
from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers
from remixer_tf.serving.saved_model import Signatures
from remixer_tf.serving.token_graph import TokenGraph

_STRINGS = tf.TensorSpec([None], tf.string, name="inputs")
_TARGETS = tf.TensorSpec([None], tf.string, name="targets")


def text_to_text(
    run,
    model_dir,
    *,
    step=None,
    max_decode_length=None,
    decode_fn=greedy_decode,
    skip_special_tokens=False,
    weights="float32",
    jit_compile=None,
):
    """Restores a checkpoint of a run as a `TextToText`.

    Args:
        run: a `Run` of text. Only TensorFlow's engine on one device gives what can be
            exported.
        model_dir, step: see `Run.restore`.
        max_decode_length: int, tokens decoded at most; None for the targets' length.
            Where a task has targets alone, as raw text, prompt and answer share that
            length, half of it each unless this says otherwise.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        skip_special_tokens: bool, whether answers leave out <extra_id_0> and its kin.
        weights: str, the type that an export stores them in, see `StoredWeights`.
        jit_compile: see `TokenGraph`. An export keeps it.

    Returns:
        the `TextToText`, and the checkpoint's step, an int.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: what `Run.restore` and `TextToText` raise, or the model writes no
            text.
    """
    engine, step = run.restore(model_dir, step, check_writes)
    one_graph = keras.backend.backend() == "tensorflow" and engine.num_replicas == 1
    kind = TextToText if one_graph else functools.partial(TextThroughArrays, engine)
    answer = kind(
        engine.model,
        run.get_task(),
        feature_lengths=run.feature_lengths,
        max_decode_length=max_decode_length,
        decode_fn=decode_fn,
        skip_special_tokens=skip_special_tokens,
        weights=weights,
        jit_compile=jit_compile,
    )
    return answer, step


def _lengths(task, feature_lengths, max_decode_length):
    """The tokens of a prompt and of an answer, at most."""
    if max_decode_length is not None:
        check_integers(max_decode_length=max_decode_length)
    length = feature_lengths["targets"]
    if "inputs" in task.output_features:
        return feature_lengths["inputs"], max_decode_length or length
    max_decode_length = max_decode_length or length // 2
    if not max_decode_length < length:
        raise UserError(
            f"Prompt and answer share the {length} tokens of a text of {task.name}, so "
            f"max_decode_length must be less. Received: {max_decode_length}"
        )
    return length - max_decode_length, max_decode_length


class TextToText(tf.Module):
    """Answers strings with strings; `signatures` are what an export writes.

    A string becomes what training makes of a task's `inputs`, see `Codec`: ids, EOS if
    the feature has it, padding up to the inputs' length; a longer one is trimmed. Where
    a task has targets alone, as raw text, the string is the beginning of a text to go
    on with, and a longer one loses its beginning.

    Args:
        model: a built and restored model that `decode_fn` can decode with.
        task: a `seqio.Task` or `seqio.Mixture` with the feature targets, and inputs if
            it is not of a language model.
        feature_lengths: dictionary of ints, as in training.
        max_decode_length, skip_special_tokens: see `text_to_text`.
        decode_fn, weights, jit_compile: see `TokenGraph`, the attribute `tokens`.

    A call takes `inputs`, string `[batch]`. It returns a dictionary with `outputs`,
    string `[batch]`; `scores`, float32 `[batch]`, the log-probability of the answer's
    tokens; and `trimmed`, bool `[batch]`, whether the model could not read the input
    whole. Where `decode_fn` gives several answers, also `all_outputs` and `all_scores`,
    `[batch, answers]`.

    Raises:
        ValueError: the task has no targets, or `max_decode_length` leaves no room for a
            prompt.
    """

    def __init__(
        self,
        model,
        task,
        *,
        feature_lengths,
        max_decode_length=None,
        decode_fn=greedy_decode,
        skip_special_tokens=False,
        weights="float32",
        jit_compile=None,
    ):
        super().__init__(name="text_to_text")
        features = task.output_features
        if "targets" not in features:
            raise UserError(
                f"{task.name} has the features {', '.join(features)}. Answering needs "
                "a task with targets."
            )
        input_length, max_decode_length = _lengths(
            task, feature_lengths, max_decode_length
        )
        self.tokens = TokenGraph(
            model,
            input_length=input_length,
            max_decode_length=max_decode_length,
            decode_fn=decode_fn,
            weights=weights,
            jit_compile=jit_compile,
        )
        self.codec = Codec(task, feature_lengths, converter_for(model))
        self._decode_ids = functools.partial(
            self.codec.decode, skip_special_tokens=skip_special_tokens
        )
        self._model = lambda: model  # As an attribute, Keras would save it too.

    @tf.function(input_signature=[_STRINGS], autograph=False)
    def __call__(self, inputs):
        tokens, trimmed = self.read(inputs)
        return self._write(self.tokens.decode(tokens), trimmed)

    def _write(self, decoded, trimmed):
        """What a call returns, of a `Decoded` of tensors."""
        answers = {
            "outputs": self._decode_ids(decoded.tokens),
            "scores": decoded.scores,
            "trimmed": trimmed,
        }
        if decoded.answers:
            _, number, length = decoded.answers.tokens.shape
            tokens = tf.reshape(decoded.answers.tokens, [-1, length])
            texts = self._decode_ids(tokens)
            answers["all_outputs"] = tf.reshape(texts, [-1, number])
            answers["all_scores"] = decoded.answers.scores
        return answers

    def read(self, texts):
        """What the model reads of strings `[batch]`.

        Returns:
            int32 `[batch, length of the inputs]`, and bool `[batch]`, whether it is
            not all.
        """
        return self.codec.read("inputs", texts, self.tokens.input_length)

    def signatures(self):
        """What an export has: `Signatures`.

        - `serving_default`: a call. Its answers are UTF-8, as TensorFlow Serving's REST
          interface needs them: seqio's decoding drops bytes that are not.
        - `score`: of `inputs` and `targets`, strings `[batch]`, the `scores`, float32
          `[batch]`, the log-likelihood of the targets given the inputs; `num_tokens`,
          int32 `[batch]`, how many tokens these are; `greedy`, bool `[batch]`, see
          `remixer_tf.decoding.Scores`; `trimmed`, bool `[batch]`, whether the model
          could not read both whole; and `token_scores`, float32 `[batch, length]`, of
          each target token, `tokens`, int32 of the same shape. Both are 0 where a row
          has none.
        - `predict_tokens`: see `TokenGraph.function`.
        """
        model = self._model()

        @tf.function(input_signature=[_STRINGS], autograph=False)
        def answer(inputs):
            return self(inputs)

        @tf.function(input_signature=[_STRINGS, _TARGETS], autograph=False)
        def score_texts(inputs, targets):
            inputs = self.codec.encode("inputs", inputs)
            targets = self.codec.encode("targets", targets)
            batch, _, trimmed = self.codec.pairs(inputs, targets)
            with self.tokens.weights.reading():
                scores = score(model, batch)
            return {
                "scores": scores.sums,
                "num_tokens": scores.num_tokens,
                "greedy": scores.greedy,
                "trimmed": trimmed,
                "token_scores": scores.log_probs,
                "tokens": batch["decoder_target_tokens"]
                * batch["decoder_loss_weights"],
            }

        functions = {
            "serving_default": answer,
            "score": score_texts,
            "predict_tokens": self.tokens.function(),
        }
        missing = {}
        if reason := self.tokens.cannot_decode():
            missing = {n: reason for n in ("serving_default", "predict_tokens")}
        try:
            check_scores(model)
        except ValueError as error:
            missing["score"] = str(error)
        if len(missing) == len(functions):
            raise UserError(f"There is nothing to export. {' '.join(missing.values())}")
        return Signatures(
            {n: f for n, f in functions.items() if n not in missing},
            missing,
            [self.tokens.weights, self.codec],
            files=self.codec.files,
            num_ids=model.vocab_size,
        )


class TextThroughArrays(TextToText):
    """A `TextToText` whose model runs on JAX, or on several devices of its `engine`.

    The same tokenizers read and write around it. No graph holds both, so that it has no
    signatures to export, and no weights of half the size.
    """

    def __init__(self, engine, model, task, *, weights="float32", **options):
        if weights != "float32":
            raise UserError(
                f"text_to_text.weights={weights!r} is for TensorFlow on one device. "
                "Leave it out, or unset KERAS_BACKEND and choose one device."
            )
        super().__init__(model, task, **options)
        self._replicas = engine.num_replicas
        self._decode = engine.compile(self.tokens.search, any_rows=True)

    def __call__(self, inputs):
        tokens, trimmed = self.read(inputs)
        rows = len(tokens)
        # The replicas share the rows: the last one is repeated until they can.
        fill = [(0, -rows % self._replicas), (0, 0)]
        tokens = np.pad(tokens, fill, mode="edge" if rows else "constant")
        decoded = self._decode({"encoder_input_tokens": tokens})
        tensors = keras.tree.map_structure(lambda x: tf.constant(x[:rows]), decoded)
        return self._write(tensors, trimmed)

    def signatures(self):
        """Raises a ValueError."""
        raise UserError(
            "An export is a graph of TensorFlow's on one device. Unset KERAS_BACKEND "
            "and choose one device to write it: the checkpoint is the same."
        )
