"""Scores a model on the splits of a task, with the task's own seqio metrics.

`seqio.Evaluator` takes registered names only, so it cannot score a task whose
vocabulary was replaced. The task's metric objects and seqio's TensorBoard logger are
used directly.
"""

import functools
import os
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import rich.console
import rich.progress
import seqio
import tensorflow as tf
from absl import logging
from seqio.metrics import CollectingMetric, ModelOutputType

from remixer_tf.checkpoints import reading
from remixer_tf.data.eval_batches import batch_examples, read_examples
from remixer_tf.data.lengths import count_over_length, has_split
from remixer_tf.data.pipeline import get_task
from remixer_tf.decoding import greedy_decode
from remixer_tf.evaluation.padding import padded_lengths
from remixer_tf.evaluation.results import (
    print_table,
    read_results,
    write_predictions,
    write_result,
)
from remixer_tf.models.build import build_model

_POLL_SECONDS = 10


def evaluate(
    model_dir,
    model,
    task,
    *,
    feature_lengths,
    step=None,
    dtype_policy="float32",
    splits=None,
    vocabulary=None,
    batch_size=64,
    max_examples=None,
    max_decode_length=None,
    decode_fn=greedy_decode,
    feature_converter=seqio.EncDecFeatureConverter,
):
    """Scores checkpoints of a run. What is scored already is not scored again.

    Args:
        model_dir: folder of the run.
        model: a factory, as in `train`: `model()` is a `keras.Model`, and its `build()`
            makes all variables.
        step: int, the step of the checkpoint; None for the newest, "best" for the one
            that training found best, "each" for each one, as it appears, until
            training has ended.
        dtype_policy: "float32" or "mixed_bfloat16".
        task, feature_lengths, splits, vocabulary, batch_size, max_examples,
            max_decode_length, decode_fn, feature_converter: see `evaluate_model`.

    Returns:
        what `evaluate_model` returns, for the last step.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint is of another model; what `evaluate_model` raises.
    """
    model = build_model(model, dtype_policy)
    for wanted in wait_for_each(model_dir) if step == "each" else [step]:
        results = evaluate_model(
            model_dir,
            model,
            task,
            feature_lengths=feature_lengths,
            step=reading.restore_model(model_dir, model, wanted),
            splits=splits,
            vocabulary=vocabulary,
            batch_size=batch_size,
            max_examples=max_examples,
            max_decode_length=max_decode_length,
            decode_fn=decode_fn,
            feature_converter=feature_converter,
        )
    return results


def wait_for_each(model_dir):
    """Yields the steps of checkpoints as they appear, until the run has ended."""
    directory = reading.checkpoint_directory(model_dir)
    seen = set()
    while True:
        # In this order: what is saved before the summary is listed after it.
        ended = tf.io.gfile.exists(os.path.join(model_dir, "train_summary.json"))
        steps = [s for s in reading.available_steps(directory) if s not in seen]
        for step in steps:
            seen.add(step)
            if step in reading.available_steps(directory):  # Not yet removed.
                yield step
        if ended and not steps:
            return
        if not steps:
            time.sleep(_POLL_SECONDS)


def evaluate_model(
    model_dir,
    model,
    task,
    *,
    feature_lengths,
    step,
    splits=None,
    vocabulary=None,
    batch_size=64,
    max_examples=None,
    max_decode_length=None,
    decode_fn=greedy_decode,
    feature_converter=seqio.EncDecFeatureConverter,
):
    """Decodes and scores splits of a task, or of every task of a mixture.

    Prints one table for each task, and writes the files of `evaluation.results`. A
    split whose files say that it was scored at this step, with these settings, is not
    decoded.

    Args:
        model_dir: folder to write to; None writes nothing.
        model: a built model that `decode_fn` can decode with.
        task: registered name, `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints, as in training. Longer inputs are counted,
            reported and trimmed; targets are compared whole.
        step: int, the step of the model's weights.
        splits: list of str; None for every split whose name does not start with
            "train".
        vocabulary: None, or the `seqio.Vocabulary` to use in place of the task's.
        batch_size: int.
        max_examples: int, only the first of each split; None for all.
        max_decode_length: int, tokens decoded at most; None for the targets' length.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        feature_converter: a `seqio.FeatureConverter` class.

    Returns:
        dictionary task name -> split -> what `metrics.json` holds.

    Raises:
        ValueError: an unknown task or split, a split without examples, or a metric
            that needs scores of given targets.
    """
    task = get_task(task, vocabulary)
    splits = list(splits or default_splits(task))
    missing = [split for split in splits if not has_split(task, split)]
    if missing or not splits:
        raise ValueError(
            f"{task.name} has no split {missing or 'beside training'} to evaluate on. "
            f"It has: {', '.join(sorted(task.splits))}."
        )
    settings = {
        "feature_lengths": dict(feature_lengths),
        "max_examples": max_examples,
        "max_decode_length": max_decode_length or feature_lengths["targets"],
        "decode_fn": getattr(decode_fn, "__name__", str(decode_fn)),
    }
    scored = {
        (result["task"], result["split"]): result
        for result in (read_results(model_dir) if model_dir else ())
        if result["step"] == step and result["settings"] == settings
    }
    results = {}
    for subtask in seqio.get_subtasks(task):
        for split in splits:
            if not has_split(subtask, split):
                continue  # another task of the mixture has it
            if (subtask.name, split) in scored:
                result = scored[subtask.name, split]
                results.setdefault(subtask.name, {})[split] = result
                continue
            over = count_over_length(
                subtask, split, feature_lengths, max_examples or 100_000
            )
            if over.over:
                logging.warning("%s: their inputs are trimmed", over)
            examples = read_examples(subtask, split, feature_lengths, max_examples)
            decoded = decode_examples(
                model,
                examples,
                feature_lengths=feature_lengths,
                batch_size=batch_size,
                max_length=settings["max_decode_length"],
                decode_fn=decode_fn,
                feature_converter=feature_converter,
                description=f"{subtask.name} {split}",
            )
            result = {
                "task": subtask.name,
                "split": split,
                "step": step,
                "settings": settings,
                "examples": len(examples),
                "over_length": over.over,
                "decoded_tokens": int(np.count_nonzero(decoded.tokens)),
                "decoding_seconds": decoded.seconds,
                "metrics": compute_metrics(subtask, examples, decoded),
            }
            results.setdefault(subtask.name, {})[split] = result
            if model_dir is not None:
                records = _predictions(subtask, examples, decoded)
                texts = write_predictions(model_dir, result, records)
                write_result(model_dir, "metrics", result, texts)
        if subtask.name in results:
            print_table(subtask.name, step, results[subtask.name])
    return results


class DecodedExamples(NamedTuple):
    """Predictions in the order of the examples.

    Attributes:
        tokens: int32 array `[num_examples, max_length]`, 0 after EOS.
        scores: float32 array `[num_examples, ...]`, see `Decoded`.
        seconds: float, time taken, tracing included.
    """

    tokens: np.ndarray
    scores: np.ndarray
    seconds: float


def decode_examples(
    model,
    examples,
    *,
    feature_lengths,
    batch_size,
    max_length,
    decode_fn=greedy_decode,
    feature_converter=seqio.EncDecFeatureConverter,
    description="decoding",
):
    """Decodes examples, sorted by length and padded to `padded_lengths` to save time.

    Args:
        model: what `decode_fn` takes.
        examples: list from `read_examples`.
        feature_lengths: dictionary of ints.
        batch_size: int.
        max_length: int, tokens decoded at most.
        decode_fn: `(model, batch, max_length) -> Decoded`.
        feature_converter: a `seqio.FeatureConverter` class.
        description: str, beside the progress bar.

    Returns:
        `DecodedExamples`.
    """
    batches = batch_examples(
        examples,
        feature_lengths=feature_lengths,
        batch_size=batch_size,
        length_buckets=padded_lengths(model, feature_lengths),
        feature_converter=feature_converter,
    )
    decode = _decode_function(decode_fn, model, max_length)
    tokens = np.zeros([len(examples), max_length], np.int32)
    scores = None
    start = time.perf_counter()
    hidden = not rich.console.Console().is_terminal
    for batch in rich.progress.track(
        batches, description, transient=True, disable=hidden
    ):
        index = batch.pop("example_index").numpy()
        decoded = decode(batch)
        real = index >= 0
        tokens[index[real]] = decoded.tokens.numpy()[real]
        if scores is None:  # of any shape that decode_fn gives
            scores = np.zeros([len(examples), *decoded.scores.shape[1:]], np.float32)
        scores[index[real]] = decoded.scores.numpy()[real]
    return DecodedExamples(tokens, scores, time.perf_counter() - start)


@functools.lru_cache(maxsize=2)
def _decode_function(decode_fn, model, max_length):
    """Decoding as a graph, traced once for each shape and kept for the next step."""
    return tf.function(lambda batch: decode_fn(model, batch, max_length))


def compute_metrics(task, examples, decoded):
    """Applies the task's metrics.

    Args:
        task: a `seqio.Task`.
        examples: list from `read_examples`.
        decoded: `DecodedExamples`.

    Returns:
        dictionary of floats (or str). The parts of a nested name are joined by "/".

    Raises:
        ValueError: a metric needs the scores of given targets, or two metrics share a
            name.
    """
    outputs = {
        ModelOutputType.PREDICTION: decoded.tokens,
        ModelOutputType.PREDICTION_WITH_AUX: (
            decoded.tokens,
            {"scores": decoded.scores},
        ),
    }
    metrics = {}
    for metric in task.metric_objs:
        if metric.model_output_type not in outputs:
            raise ValueError(
                f"A metric of {task.name} needs the model's scores of given targets "
                f"({metric.model_output_type.name}). Evaluation gives it "
                "predictions: use a task whose metrics take (targets, predictions)."
            )
        instance = metric.from_model_output(
            examples, outputs[metric.model_output_type], task.output_features
        )
        if isinstance(instance, CollectingMetric):
            values, _ = instance.actual_compute(examples, task.output_features)
        else:
            values = instance.compute()
        values = _flatten(values)
        if metrics.keys() & values.keys():
            raise ValueError(
                f"Two metrics of {task.name} are called "
                f"{sorted(metrics.keys() & values.keys())}."
            )
        metrics.update(values)
    if not metrics:
        logging.warning("%s has no metrics: only predictions are kept.", task.name)
    return metrics


def _flatten(values, prefix=""):
    """Turns nested metrics and seqio's metric values into floats and strings."""
    flat = {}
    for name, value in values.items():
        value = getattr(value, "value", getattr(value, "textdata", value))
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}/"))
        elif isinstance(value, str):
            flat[prefix + name] = value
        elif np.ndim(value) == 0:
            flat[prefix + name] = float(value)
        else:
            logging.warning("Metric %s is not a number: left out.", prefix + name)
    return flat


def default_splits(task):
    """Returns the splits of a task or mixture that are not for training."""
    names = (name for subtask in seqio.get_subtasks(task) for name in subtask.splits)
    return dict.fromkeys(name for name in names if not name.startswith("train"))


def _predictions(task, examples, decoded):
    """Yields what `predictions.jsonl` says about each example."""
    target_vocabulary = task.output_features["targets"].vocabulary

    def text(example, feature):
        value = example.get(f"{feature}_pretokenized")
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        if feature not in example:
            return ""
        vocabulary = task.output_features[feature].vocabulary
        return vocabulary.decode(example[feature].tolist())

    for example, tokens in zip(examples, decoded.tokens, strict=True):
        target = text(example, "targets")
        prediction = target_vocabulary.decode(tokens.tolist())
        if not isinstance(prediction, str):  # the task knows what the numbers mean
            prediction = task.postprocess_fn(
                prediction, example=example, is_target=False
            )
        record = {
            "input": text(example, "inputs"),
            "target": target,
            "prediction": prediction,
            "exact_match": prediction.split() == target.split(),
        }
        if isinstance(example.get("type"), bytes):
            record["type"] = example["type"].decode("utf-8", errors="replace")
        yield record
