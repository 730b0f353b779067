"""A task's own metrics of examples, and a record of each example."""

import inspect
from collections.abc import Mapping

import numpy as np
import seqio
from absl import logging

from remixer_tf.errors import UserError
from remixer_tf.tasks.t5_library import in_percent
from remixer_tf.tasks.text_metrics import Percent

# Outputs of DecodedEvaluation (the first two) and ScoredEvaluation: names of
# `seqio.metrics.ModelOutputType`.
EVALUATED = ("PREDICTION", "PREDICTION_WITH_AUX", "SCORE")


def compute_metrics(task, examples, outputs):
    """Applies the task's metrics to examples of `read_examples`.

    `outputs` maps `seqio.metrics.ModelOutputType`s to the model's outputs. Returns a
    dictionary of floats (or str). The parts of a nested name are joined by "/". A float
    of a class that has a `unit`, a str, keeps it; those of T5's metrics that are
    percentages become `Percent`.
    """
    metrics = {}
    for metric in metrics_of(task, outputs):
        instance = metric.from_model_output(
            examples, outputs[metric.model_output_type], task.output_features
        )
        if isinstance(instance, seqio.metrics.CollectingMetric):
            values, _ = instance.actual_compute(examples, task.output_features)
        else:
            values = instance.compute()
        if not isinstance(values, Mapping):
            raise UserError(
                f"A metric of {task.name} must return a dictionary, such as "
                f"{{'accuracy': 87.5}}. Received: {values!r:.200}"
            )
        number = Percent if in_percent(_function_of(metric)) else float
        for name, value in _flatten(values, number):
            if name in metrics:
                raise UserError(f"Two metrics of {task.name} are called {name!r}.")
            metrics[name] = value
    return metrics


def metrics_of(task, kinds):
    """Returns the metrics of a task that take one of these `ModelOutputType`s.

    Raises a ValueError if no metric takes one, or one takes what no evaluation gives.
    """
    metrics = list(task.metric_objs)
    needed = {metric.model_output_type for metric in metrics}
    evaluated = {seqio.metrics.ModelOutputType[name] for name in EVALUATED}
    if unknown := needed - evaluated:
        raise UserError(
            f"A metric of {task.name} needs {min(unknown).name}, which no evaluation "
            f"gives. They give {_names(evaluated, ', ')}: leave it out of the task's "
            "metrics."
        )
    if not metrics:
        logging.warning("%s has no metrics.", task.name)
    elif not needed & {*kinds}:
        raise UserError(
            f"The metrics of {task.name} need {_names(needed)}, and this evaluation "
            f"gives {_names(kinds)}. DecodedEvaluation gives predictions (PREDICTION), "
            "ScoredEvaluation the scores of given targets (SCORE)."
        )
    return [metric for metric in metrics if metric.model_output_type in kinds]


def _names(kinds, separator=" or "):
    return separator.join(sorted(kind.name for kind in kinds))


def _function_of(metric):
    """Returns the function that seqio made a metric of, or None."""
    compute = getattr(metric, "actual_compute", None)
    return compute and inspect.getclosurevars(compute).nonlocals.get("metric_fn")


def _flatten(values, number=float, prefix=""):
    """Yields (name, str or `number`) of nested metrics and seqio's metric values.

    Others, as vectors, are left out with a warning.
    """
    for name, value in values.items():
        name = f"{prefix}{name}"
        value = getattr(value, "value", getattr(value, "textdata", value))
        if isinstance(value, Mapping):
            yield from _flatten(value, number, f"{name}/")
        elif isinstance(value, str) or hasattr(value, "unit"):
            yield name, value
        else:
            try:
                if np.ndim(value):
                    raise TypeError
                yield name, number(np.asarray(value).item())
            except (TypeError, ValueError, OverflowError):
                logging.warning(
                    "Metric %s is not a number: left out. Received: %.200r", name, value
                )


def text_of(task, example, feature):
    """Returns the text of an example's feature, or ""."""
    value = example.get(f"{feature}_pretokenized")
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if feature not in example:
        return ""
    vocabulary = task.output_features[feature].vocabulary
    return vocabulary.decode(example[feature].tolist())


def _plain(value):
    """A scalar of an example, or a dictionary of several, as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _plain(x) for name, x in value.items() if np.ndim(x) == 0}
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return np.asarray(value).item()


def list_predictions(task, examples, decoded):
    """Yields the dictionaries of predictions.jsonl from `DecodedExamples`.

    Their `idx` is the benchmark's number or name of the example, or a dictionary of
    several.
    """
    vocabulary = task.output_features["targets"].vocabulary
    for example, tokens in zip(examples, decoded.tokens, strict=True):
        target = text_of(task, example, "targets")
        prediction = vocabulary.decode(tokens.tolist())
        if not isinstance(prediction, str):  # The task knows the meaning of numbers.
            prediction = task.postprocess_fn(
                prediction, example=example, is_target=False
            )
        record = {
            "input": text_of(task, example, "inputs"),
            "target": target,
            "prediction": prediction,
            "exact_match": prediction.split() == target.split(),
        }
        if isinstance(example.get("type"), bytes):
            record["type"] = example["type"].decode("utf-8", errors="replace")
        idx = {
            name.removeprefix("idx").removeprefix("/"): _plain(value)
            for name, value in example.items()
            if name.split("/")[0] == "idx" and np.ndim(value) == 0
        }
        if idx:
            record["idx"] = idx.get("", idx)
        yield record
