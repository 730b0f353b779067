"""A trained encoder from strings to classes and vectors, tokenizer included."""

import tensorflow as tf

from remixer_tf.data.classification import ClassNames, join_ids
from remixer_tf.data.codec import Codec
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.errors import UserError
from remixer_tf.models import EncoderOnly
from remixer_tf.serving.saved_model import Signatures
from remixer_tf.serving.stored_weights import StoredWeights


def text_encoder(run, model_dir, *, step=None, weights="float32", cls=True):
    """Restores a checkpoint of a run as a `TextEncoder`.

    Arguments and errors are those of `Run.restore` and `TextEncoder`. Returns the
    `TextEncoder`, and the checkpoint's step, an int.
    """
    engine, step = run.restore(model_dir, step)
    task, length = run.get_task(), run.feature_lengths["inputs"]
    return TextEncoder(engine.model, task, length, weights, cls), step


class TextEncoder(tf.Module):
    """Says the class of a text, or of a pair of texts, and gives its vector.

    A text is read as in training: `[CLS] inputs`. Tasks of `join_texts` have BERT's
    form of one or two texts, where an empty second text counts as none. Long texts are
    cut. Raises a ValueError if the model is no encoder, or the vocabulary has no [CLS].

    Args:
        model: a built and restored `EncoderOnly`.
        task: a `seqio.Task` or `seqio.Mixture` with the feature inputs.
        input_length: int, the tokens that the model reads.
        weights: str, the type they are stored in, see `StoredWeights`.
        cls: bool, whether [CLS] stands before a text. If not, it is read as T5 reads
            it: the text and EOS, as its task has them.
    """

    def __init__(self, model, task, input_length, weights="float32", cls=True):
        super().__init__(name="text_encoder")
        if not isinstance(model, EncoderOnly):
            raise UserError(
                f"text_encoder exports an EncoderOnly. Received: {type(model).__name__}"
            )
        self.input_length = input_length
        self.weights = StoredWeights(model, weights)
        self.codec = Codec(task, {"inputs": input_length})
        features = task.output_features
        self._special = special_ids(features["inputs"].vocabulary) if cls else None
        self._joins = "token_types" in features
        # A model of one token type reads one text.
        self._pairs = "inputs_b" in features and model.num_token_types != 1
        self._model = lambda batch: model(batch, training=False)
        self._vectors = model.embed
        self._num_classes = model.num_classes
        names = features["targets"].vocabulary if "targets" in features else None
        self._names = names.names if isinstance(names, ClassNames) else []

    def signatures(self):
        """Returns the `Signatures` of an export.

        All take strings `[batch]`: `inputs`, and `inputs_b` if the task has pairs. All
        return `trimmed`, bool `[batch]`, whether texts were cut.

        - `classify`, also the default: `probabilities`, float32 `[batch, classes]`.
          `class_ids`, int32 `[batch]`, are the likeliest classes. `outputs`, string
          `[batch]`, are their names, if the task has names.
        - `embed`: `embeddings`, float32 `[batch, width]`: the mean of the encoder's
          output over real tokens, or what an `EmbeddingHead` makes of it.
        """
        classify, embed = self._function(self._classify), self._function(self._embed)
        functions = {"serving_default": embed, "embed": embed}
        missing = {}
        if self._num_classes:
            functions |= {"serving_default": classify, "classify": classify}
        else:
            missing["classify"] = "the model's head has no classes"
        resources = [self.weights, self.codec]
        return Signatures(functions, missing, resources, files=self.codec.files)

    def _function(self, compute):
        """Returns a `tf.function` of strings; `compute` takes the model's batch."""
        names = ["inputs", "inputs_b"] if self._pairs else ["inputs"]
        strings = [tf.TensorSpec([None], tf.string, name=name) for name in names]

        @tf.function(input_signature=strings, autograph=False)
        def function(*texts):
            batch, trimmed = self.batch(*texts)
            with self.weights.reading():
                return {**compute(batch), "trimmed": trimmed}

        return function

    def batch(self, *texts):
        """Returns the model's batch of one or two strings `[batch]`, and what was cut.

        It is a dictionary of int32 `[batch, length]`, and bool `[batch]`.
        """
        if self._special is None:
            tokens, trimmed = self.codec.read("inputs", texts[0])
            return {"encoder_input_tokens": tokens}, trimmed
        return self._read(texts)

    def _read(self, texts):
        """The model's batch of texts, with [CLS], and whether each was cut."""
        tokens, types, trimmed = tf.map_fn(
            self._read_one,
            texts,
            fn_output_signature=(
                tf.TensorSpec([self.input_length], tf.int32),
                tf.TensorSpec([self.input_length], tf.int32),
                tf.TensorSpec([], tf.bool),
            ),
        )
        return {"encoder_input_tokens": tokens, "encoder_token_types": types}, trimmed

    def _read_one(self, texts):
        """One example's ids and token types, padded, and whether it was cut."""
        length, special = self.input_length, self._special
        first, *rest = (
            self.codec.vocabulary("inputs").encode_tf(text) for text in texts
        )
        second = rest[0] if rest else tf.zeros([0], tf.int32)
        if self._joins:
            tokens, types = tf.cond(
                tf.size(second) > 0,
                lambda: join_ids(first, second, length, special),
                lambda: join_ids(first, None, length, special),
            )
            whole = tf.size(first) + 2 + tf.size(second)
            whole += tf.cast(tf.size(second) > 0, tf.int32)
        else:
            whole = tf.size(first) + 1
            tokens = tf.concat([[special.cls], first], axis=0)[:length]
            types = tf.zeros_like(tokens)
        padding = [[0, length - tf.size(tokens)]]
        return tf.pad(tokens, padding), tf.pad(types, padding), whole > length

    def _classify(self, batch):
        return class_answers(self._model(batch)[:, 0], self._names)

    def _embed(self, batch):
        return {"embeddings": self._vectors(batch)}


def class_answers(logits, names=()):
    """Returns probabilities and likeliest classes of logits `[batch, classes]`.

    With `names`, a list of str, `outputs` are the names of the likeliest.
    """
    answers = {
        "probabilities": tf.nn.softmax(logits),
        "class_ids": tf.argmax(logits, axis=-1, output_type=tf.int32),
    }
    if names:
        answers["outputs"] = tf.gather(names, answers["class_ids"])
    return answers
