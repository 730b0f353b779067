"""Answers to questions about a text: spans of it, found by an encoder."""

import functools
from typing import NamedTuple

import seqio
import tensorflow as tf

from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import batch_examples
from remixer_tf.data.spans import SpanFeatureConverter, cut_span, span_windows
from remixer_tf.decoding import best_span
from remixer_tf.errors import UserError

_WINDOWS = 8  # of texts, computed together


class SpanAnswer(NamedTuple):
    """The answer to a question about a text.

    Attributes:
        text: str, a span of the text; "" if the text does not answer the question.
        score: float, the sum of the span's two logits; -inf without a span.
        no_answer: float, by how much the logits of no answer exceed `score`.
    """

    text: str
    score: float
    no_answer: float


def span_answerer(run, model_dir, *, step=None, decode_fn=best_span):
    """Restores a checkpoint of a run that answers by spans, such as SQuAD's.

    Returns the `SpanAnswerer`, and the checkpoint's step, an int.

    Args:
        run: a `Run` of an `EncoderOnly` with a `SpanHead`.
        model_dir, step: see `Run.restore`, which also says what is raised.
        decode_fn: `best_span`, with its arguments.
    """
    engine, step = run.restore(model_dir, step)
    lengths = run.feature_lengths
    return SpanAnswerer(engine, run.get_task(), lengths, decode_fn), step


class SpanAnswerer:
    """Answers questions by the best span of a text, by BERT's protocol for SQuAD.

    A long text is read in overlapping windows, see `span_windows`; the best of their
    spans is the answer. It is the prediction that `squad_scores` scores. A task whose
    answers are no spans is a ValueError.

    Args:
        engine: the `Engine` that has the model.
        task: a `seqio.Task` of `remixer_tf.tasks.squad`, or a mixture that begins with
            one.
        feature_lengths: dictionary of ints, as in training.
        decode_fn: `best_span`, with its arguments.

    Attributes:
        max_question_length: int, tokens; longer questions lose their end. Where
            windows are too short for the task's, it is half a window.
    """

    def __init__(self, engine, task, feature_lengths, decode_fn=best_span):
        task = seqio.get_subtasks(task)[0]
        found = [p for p in task.preprocessors if getattr(p, "func", p) is span_windows]
        if not found:
            raise UserError(
                f"The answers of {task.name} are no spans of a text. Load a run of "
                "runs/finetune_squad.gin."
            )
        (self._windows,) = found
        given = getattr(found[0], "keywords", {})
        question = given.get("max_question_length", 64)
        window = feature_lengths["inputs"]
        question = question if question + 4 <= window else window // 2
        self._windows = functools.partial(self._windows, max_question_length=question)
        self.max_question_length = question
        self._features = task.output_features
        self._codec = Codec(task, feature_lengths, SpanFeatureConverter)
        model, replicas = engine.model, engine.num_replicas
        self._batch_size = -(-_WINDOWS // replicas) * replicas
        self._decode = engine.compile(lambda batch: decode_fn(model, batch, 2))

    def __call__(self, pairs):
        """Answers (question, text) pairs of str: a list of `SpanAnswer`."""
        if not pairs:
            return []
        questions, texts = zip(*pairs, strict=True)
        columns = {
            "id": list(map(str, range(len(pairs)))),
            "question": list(questions),
            "context": list(texts),
        }
        none = {
            "text": tf.zeros([0], tf.string),
            "answer_start": tf.zeros([0], "int32"),
        }
        dataset = tf.data.Dataset.from_tensor_slices(columns)
        windows = self._windows(
            dataset.map(lambda example: {**example, "answers": none}),
            sequence_length=dict(self._codec.lengths),
            output_features=self._features,
        )
        windows = list(windows.as_numpy_iterator())
        found = [[] for _ in pairs]  # what each question's windows give
        for batch in batch_examples(
            windows, self._codec, batch_size=self._batch_size
        ).as_numpy_iterator():
            index = batch.pop("example_index")
            spans, scores, *_ = self._decode(batch)
            for i, span, values in zip(index, spans, scores, strict=True):
                if i >= 0:
                    window = windows[i]
                    text = cut_span(window, span)
                    found[int(window["id"])].append((*map(float, values), text))
        return list(map(_best, found))


def _best(windows):
    """The `SpanAnswer` of (score, score of no answer, threshold, text) of windows."""
    score, _, threshold, text = max(windows, key=lambda window: window[0])
    no_answer = min(null for _, null, _, _ in windows) - score
    return SpanAnswer("" if no_answer > threshold else text, score, no_answer)
