"""A trained model with its tokenizer, from strings to strings.

`infer` calls a `TextToText` and `export` saves one, so both give the same answers.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import (
    converter_for,
    padded_lengths,
    writes_in_float32,
    xla_of_answers,
)
from remixer_tf.data.language_model import check_reads_inputs
from remixer_tf.data.lengths import check_feature_lengths
from remixer_tf.decoding import check_scores, check_writes, greedy_decode, score
from remixer_tf.decoding.row_settings import DTYPES
from remixer_tf.decoding.sampling import Sampling
from remixer_tf.engines.backend_engine import engine_of
from remixer_tf.errors import UserError, check_integers
from remixer_tf.serving.continuous import ContinuousSearch
from remixer_tf.serving.places import answer_list
from remixer_tf.serving.requests import Setting
from remixer_tf.serving.saved_model import Signatures
from remixer_tf.serving.text_answers import STRINGS, TextAnswers
from remixer_tf.serving.token_graph import TokenGraph, searchable

AHEAD = 16  # batches that callers of `answer_all` read before the first answer
LONG_LIST = 3  # batches, from which on texts take the places of others
_TARGETS = tf.TensorSpec([None], tf.string, name="targets")


def text_to_text(
    run,
    model_dir,
    *,
    step=None,
    max_length=None,
    decode_fn=greedy_decode,
    skip_special_tokens=False,
    clean_up_tokenization_spaces=False,
    weights="float32",
    jit_compile: bool | None = None,
):
    """Restores a checkpoint of a run as a `TextToText`.

    Returns it, and the checkpoint's step, an int. Errors are those of `Run.restore` and
    `TextToText`; a model that writes no text is a ValueError.

    Args:
        run: a `Run` of text. Exports need TensorFlow's engine on one device.
        model_dir, step: see `Run.restore`.
        max_length: int, tokens decoded at most; None for the targets' length. If
            a task has targets alone, prompt and answer share that length, and the
            answer's default is half of it.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        skip_special_tokens: bool, whether answers leave out <extra_id_0> and its kin.
        clean_up_tokenization_spaces: bool, whether answers leave out the blank of "yes
            .", "do n't" and their kin, as transformers' tokenizers with this setting.
        weights: str, the type that an export stores, see `StoredWeights`.
        jit_compile: see `TokenGraph`. An export keeps it.
    """
    engine, step = run.restore(model_dir, step, check_writes)
    answer = TextToText(
        engine.model,
        run.get_task(),
        feature_lengths=run.feature_lengths,
        engine=engine,
        max_length=max_length,
        decode_fn=decode_fn,
        skip_special_tokens=skip_special_tokens,
        clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        weights=weights,
        jit_compile=jit_compile,
    )
    return answer, step


def _lengths(task, feature_lengths, max_length):
    """Returns the most tokens of a prompt and of an answer."""
    if max_length is not None:
        check_integers(max_length=max_length)
    length = feature_lengths["targets"]
    if "inputs" in task.output_features:
        return feature_lengths["inputs"], max_length or length
    max_length = max_length or length // 2
    if not max_length < length:
        raise UserError(
            f"Prompt and answer share the {length} tokens of a text of {task.name}, so "
            f"max_length must be less. Received: {max_length}"
        )
    return length - max_length, max_length


class TextToText(TextAnswers):
    """Answers strings with strings; `signatures` are what an export writes.

    Questions are padded as little as gives the same answers, see `padded_lengths`.

    A string is read as `inputs` of the task, see `Codec`. If the task has targets
    alone, the model continues the string. A task without targets is a ValueError, and
    a `max_length` that leaves no room for a prompt.

    Args:
        model: a built and restored model that `decode_fn` can decode with.
        task: a `seqio.Task` or `seqio.Mixture` with targets. A language model's may
            have no inputs.
        feature_lengths: dictionary of ints, as in training.
        max_length, skip_special_tokens, clean_up_tokenization_spaces: see
            `text_to_text`.
        decode_fn, weights, jit_compile: see `TokenGraph`, the attribute `tokens`. In
            this process XLA compiles the search of a float32 model unless `jit_compile`
            says no, see `Engine.compile`.
        engine: the `Engine` of the model. None for one device.

    For a call see `TextAnswers`.

    Attributes:
        arguments: dictionary of arguments of `decode_fn`, such as `sampling` and
            `seed`: what the signature `generate` takes where a request has no other.
        lengths: list of ints, what questions are padded to, the least first.
    """

    arguments = {}

    def __init__(
        self,
        model,
        task,
        *,
        feature_lengths,
        max_length=None,
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
        decode_fn=greedy_decode,
        weights="float32",
        jit_compile: bool | None = None,
        engine=None,
    ):
        features = task.output_features
        if "targets" not in features:
            raise UserError(
                f"{task.name} has the features {', '.join(features)}. Answering needs "
                "a task with targets."
            )
        check_feature_lengths(feature_lengths, converter_for(model))
        check_reads_inputs(task, feature_lengths, converter_for(model))
        reads, writes = _lengths(task, feature_lengths, max_length)
        super().__init__(
            Codec(task, feature_lengths, converter_for(model)),
            reads,
            skip_special_tokens,
            clean_up_tokenization_spaces,
            name="text_to_text",
        )
        self._engine = engine or engine_of(model)
        if weights != "float32" and self._no_export():
            raise UserError(
                f"text_to_text.weights={weights!r} is for TensorFlow on one device. "
                "Leave it out, or unset KERAS_BACKEND and choose one device."
            )
        self.tokens = TokenGraph(
            model,
            input_length=reads,
            max_length=writes,
            decode_fn=decode_fn,
            weights=weights,
            jit_compile=jit_compile,
        )
        self._model = lambda: model  # As an attribute, Keras would save it too.
        xla = xla_of_answers(model, jit_compile)
        self._decode = self._engine.compile(self.tokens.search, any_rows=True, xla=xla)
        self.lengths = [x["inputs"] for x in padded_lengths(model, {"inputs": reads})]
        self._takes_xla = functools.partial(self._engine.takes_xla, xla)
        self._search_of = functools.cache(self._search)

    def _batch(self, tokens, settings):
        return searchable(tokens[:, : self.padded_length(tokens)], settings)

    def padded_length(self, tokens):
        """The one of `lengths` that ids `[batch, input_length]` are cut to."""
        longest = np.max(np.flatnonzero(tokens.any(axis=0)), initial=0)
        return next(length for length in self.lengths if longest < length)

    def _answer_long_list(self, texts, batch_size, settings):
        """Answers texts, of which each takes the place of one that has ended."""
        # In other precisions another batch may have other answers.
        fits = not self._no_export() and writes_in_float32(self._model())
        if not fits or len(texts) < LONG_LIST * batch_size:
            return None
        settings = {name: np.asarray(x) for name, x in (settings or {}).items()}
        shapes = frozenset((name, x.shape) for name, x in settings.items())
        search = self._search_of(shapes)
        xla = bool(self._engine.answer_programs) and self._takes_xla()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        tokens, trimmed = self.tokens_of(tf.constant([texts[i] for i in order]))
        rows = {
            name: np.broadcast_to(x, (len(texts), *x.shape))
            for name, x in settings.items()
        }
        try:
            decoded = answer_list(search, tokens, rows, batch_size, xla)
        except (UserError, tf.errors.OpError):  # Rows keep in step, or XLA cannot.
            return None
        decoded = keras.tree.map_structure(tf.constant, decoded)
        places = np.argsort(order)
        answers = self.written(decoded, trimmed)
        return {name: x.numpy()[places] for name, x in answers.items()}

    def _search(self, shapes):
        """The `ContinuousSearch` with inputs of these names and shapes."""
        settings = {name: np.ones(shape, DTYPES[name]) for name, shape in shapes}
        return ContinuousSearch(self._model(), self.tokens, self.lengths, settings)

    def _answer(self, inputs):
        """A call as a part of an export's graph."""
        tokens, trimmed = self.read(inputs)
        return self.written(self.tokens.decode(searchable(tokens)), trimmed)

    def signatures(self):
        """Returns the `Signatures` of an export.

        - `serving_default`: a call. Its answers are UTF-8, as TensorFlow Serving's REST
          interface needs them: seqio's decoding drops other bytes.
        - `generate`: a call that also takes settings, one number or `[batch]`, in
          place of the search's own: `max_length`, int32, tokens of an answer at most;
          and if `sample` decodes, `temperature` and `top_p`, float32, `top_k`, int32, 0
          for all tokens, and `seed`, int64.
        - `score` takes `inputs` and `targets`, strings `[batch]`. It returns, each
          `[batch]`, `scores`, float32, the log-likelihood of the targets given the
          inputs, `num_tokens`, int32, `greedy`, bool (see `Scores`), and `trimmed`,
          bool. Its `token_scores`, float32, and `tokens`, int32, `[batch, length]`,
          have each target token, and 0 after the last.
        - `predict_tokens`: see `TokenGraph.function`.

        Raises a ValueError on JAX and for several devices, which no graph can hold.
        """
        if self._no_export():
            raise UserError(
                "An export is a graph of TensorFlow's on one device. Unset "
                "KERAS_BACKEND and choose one device to write it: the checkpoint is "
                "the same."
            )
        model = self._model()

        @tf.function(input_signature=[STRINGS, _TARGETS], autograph=False)
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

        settings = self._settings()

        @tf.function(
            input_signature=[STRINGS, *(setting.spec for setting in settings)],
            autograph=False,
        )
        def generate(inputs, *values):
            tokens, trimmed = self.read(inputs)
            batch = searchable(tokens)
            for setting, value in zip(settings, values, strict=True):
                batch[setting.spec.name] = value
            if "seed" in batch:
                seed = tf.bitcast(batch.pop("seed"), tf.uint32)  # low word first
                batch["seeds"] = tf.reshape(seed, [-1, 2])
            return self.written(self.tokens.decode(batch), trimmed)

        @tf.function(input_signature=[STRINGS], autograph=False)
        def answer(inputs):
            if len(settings) > 1:  # Draws of any top_k would sort the vocabulary.
                return self._answer(inputs)
            (longest,) = settings
            return generate(inputs, tf.fill(tf.shape(inputs), longest.default))

        functions = {
            "serving_default": answer,
            "generate": generate,
            "score": score_texts,
            "predict_tokens": self.tokens.function(),
        }
        missing = {}
        if reason := self.tokens.cannot_decode():
            answering = "serving_default", "generate", "predict_tokens"
            missing = dict.fromkeys(answering, reason)
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
            settings=settings,
        )

    def _no_export(self):
        on_jax = keras.backend.backend() == "jax"
        return on_jax or self._engine.num_replicas > 1

    def _settings(self):
        """The `Setting`s of the signature `generate`."""
        longest = self.tokens.max_length
        numbers = [("max_length", tf.int32, longest, 1, longest)]
        if getattr(self.tokens.decode_fn, "__name__", "") == "sample":
            own = self.arguments.get("sampling") or Sampling()
            seed = self.arguments.get("seed", 0) % 2**64
            ids, of_seeds = self._model().vocab_size, (tf.int64.min, tf.int64.max)
            numbers += [
                ("temperature", tf.float32, own.temperature, 0.0, 1e30),
                ("top_k", tf.int32, own.top_k or 0, 0, own.top_k or ids),
                ("top_p", tf.float32, own.top_p, 0.0, 1.0),
                ("seed", tf.int64, seed - 2**64 * (seed >= 2**63), *of_seeds),
            ]
        return [
            Setting(tf.TensorSpec([None], dtype, name), default, low, high)
            for name, dtype, default, low, high in numbers
        ]
