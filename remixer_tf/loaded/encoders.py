"""Classes and vectors that a loaded encoder gives."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from remixer_tf.decoding import best_span
from remixer_tf.errors import UserError, check_choices
from remixer_tf.loaded.inputs import LongTexts, columns, image_bytes, listed
from remixer_tf.loaded.kept import kept
from remixer_tf.loaded.text import Texts
from remixer_tf.models import EncoderOnly, ImageClassifier, SpanHead
from remixer_tf.serving.image_to_class import image_to_class
from remixer_tf.serving.text_encoder import text_encoder
from remixer_tf.startup import check_backend

BATCH_SIZE = 64


class Class(NamedTuple):
    """The class of a text or an image, by `LoadedRun.classify`.

    Attributes:
        label: str, the likeliest class, or its number where classes have no names.
        probability: float, of that class.
        probabilities: float32 `[classes]`.
    """

    label: Any
    probability: float
    probabilities: np.ndarray


class EncoderMethods:
    """Methods of a `LoadedRun` whose model encodes texts or images."""

    def classify(self, inputs: Any, *, on_long: str = "warn") -> Class | list[Class]:
        """Says the class of texts or of images. TensorFlow only.

        Args:
            inputs: a text is a str, or a pair of str where the task has pairs. An image
                is a path of a JPEG or PNG, an array uint8 `[height, width, 3]`, or a
                PIL image. A list of texts or images is classified in its order.
            on_long: see `generate`.

        Returns:
            `Class`, or a list of them.

        Raises:
            FileNotFoundError: there is no such image.
            TypeError, ValueError: the model has no classes, or an input is something
                else.

        Examples:
            >>> found = encoder.classify("a charming journey")
            >>> found.label in ("negative", "positive") and 0 < found.probability <= 1
            True
        """
        if isinstance(self.model, ImageClassifier):
            check_choices(LongTexts.CHOICES, on_long=on_long)
            function = self.signature("classify_bytes")
            return classify_images(function, inputs)
        return self._encode("classify", inputs, classes, on_long)

    def embed(self, texts: Any, *, on_long: str = "warn") -> np.ndarray:
        """Vectors of texts. TensorFlow only.

        Args:
            texts, on_long: see `classify`.

        Returns:
            float32 `[width]`, or `[texts, width]`: the mean of the encoder's output
            over the tokens of a text, or what the model's `EmbeddingHead` makes of it,
            as imported from sentence-transformers.

        Raises:
            TypeError, ValueError: as `classify`.

        Examples:
            >>> encoder.embed(["a charming journey", "bleak"]).shape
            (2, 16)
        """
        rows = self._encode("embed", texts, lambda x: [*x["embeddings"]], on_long)
        if isinstance(rows, list) and not rows:
            return np.zeros([0, self.model.embedding_width], np.float32)
        return np.asarray(rows)

    def answer(
        self, question: Texts, text: Texts, *, on_long: str = "warn"
    ) -> str | list[str]:
        """Answers questions by the best span of a text, as SQuAD asks for.

        The text may have any length: it is read in overlapping windows (BERT's
        protocol, see `best_span`).

        Args:
            question: str, or list of str.
            text: str, for all questions; or list of str, as many as questions.
            on_long: of questions, see `generate`.

        Returns:
            str, or list of str; "" if the text has no answer.

        Raises:
            TypeError, ValueError: the model has no `SpanHead`, or there are more
                questions than texts, or fewer.

        Examples:
            >>> answer = spans.answer("who?", "it was Ann")
            >>> answer in "it was Ann"
            True
        """
        questions, one = listed(question)
        texts, one_text = listed(text)
        if one and not one_text:
            raise TypeError("answer() of one question takes one text, a str.")
        texts = texts * len(questions) if one_text else texts
        if len(questions) != len(texts):
            raise UserError(
                "answer() takes as many texts as questions, or one. Received: "
                f"{len(texts)} and {len(questions)}"
            )
        answerer = self._span_answerer()
        length = answerer.max_question_length
        long = LongTexts(on_long, f"questions are longer than {length} tokens")
        codec = self.run.codec(self.model)
        lengths = [len(codec.ids("inputs", text, eos=False)) for text in questions]
        long.count(questions, np.array(lengths) > length)
        pairs = list(zip(questions, texts, strict=True))
        found = [answer.text for answer in answerer(pairs)]
        long.warn()
        return found[0] if one else found

    @kept
    def _span_answerer(self):
        from remixer_tf.serving.span_answers import span_answerer

        if not isinstance(getattr(self.model, "head", None), SpanHead):
            kind = type(getattr(self.model, "head", self.model)).__name__
            raise UserError(
                "answer() needs an EncoderOnly with a SpanHead, as "
                f"runs/finetune_squad.gin trains it. Received: {kind}"
            )
        search = self.configuration.apart().bound(best_span)
        return span_answerer(self.run, self.model_dir, decode_fn=search)[0]

    @kept
    def signature(self, name: str) -> Any:
        """Returns a signature of an encoder's export, traced with gin's values.

        Args:
            name: str, such as "classify", "embed" or, of images, "classify_bytes".

        Returns:
            a `tf.function` of strings `[batch]`, which returns a dictionary of tensors.

        Raises:
            ValueError: the model lacks it, or Keras does not run on TensorFlow.

        Examples:
            >>> function = encoder.signature("embed")
            >>> [spec.name for spec in function.input_signature]
            ['inputs', 'inputs_b']
        """
        check_backend(f"{name}()")
        kind = text_encoder if self.run.task is not None else image_to_class
        model, _ = self.configuration.apart().call(kind, self.run, self.model_dir)
        found = model.signatures()
        if name not in found.functions:
            raise UserError(f"{name}(): {found.missing[name]}.")
        return found.functions[name]

    def _encode(self, name, inputs, read, on_long):
        """Calls a signature of an encoder of texts."""
        if not isinstance(self.model, EncoderOnly):
            raise UserError(
                f"{name}() needs an EncoderOnly. Received: {type(self.model).__name__}"
            )
        length = self.run.feature_lengths["inputs"]
        long = LongTexts(on_long, f"texts are longer than {length} tokens")
        found = encode(self.signature(name), inputs, read, long)
        long.warn()
        return found


def classes(found):
    """Returns a `Class` for each row of a signature's outputs, a dict of arrays."""
    labels = found["class_ids"].tolist()
    if "outputs" in found:
        labels = [name.decode() for name in found["outputs"]]
    return [
        Class(label, float(row.max()), row)
        for label, row in zip(labels, found["probabilities"], strict=True)
    ]


def encode(function, inputs, read, long):
    """Calls a signature of an encoder on a text, a pair, or a list of these.

    `read` makes the list of results of a dictionary of arrays. `long` is a `LongTexts`.
    """
    pair = isinstance(inputs, tuple) and len(inputs) == 2
    if pair or isinstance(inputs, str):
        return encode(function, [inputs], read, long)[0]
    if isinstance(inputs, (bytes, dict)) or not hasattr(inputs, "__iter__"):
        raise TypeError(
            "Expected: a str, a pair of str, or a list of these. Received: "
            f"{inputs!r:.200}"
        )
    rows, results = list(inputs), []
    for start in range(0, len(rows), BATCH_SIZE):
        batch = rows[start : start + BATCH_SIZE]
        texts = columns(batch, len(function.input_signature))
        found = function(*map(tf.constant, texts))
        found = {key: value.numpy() for key, value in found.items()}
        long.count(batch, found["trimmed"])
        results += read(found)
    return results


def classify_images(function, images):
    """Calls the signature `classify_bytes` on an image, or on a list of images."""
    if not isinstance(images, (list, tuple)):
        return classify_images(function, [images])[0]
    results = []
    for image in images:
        data = image_bytes(image)
        try:
            found = function(tf.constant([data]))
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{image!s:.200} cannot be decoded: {error.message[:200]}"
            ) from None
        results += classes({key: value.numpy() for key, value in found.items()})
    return results
