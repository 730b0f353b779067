"""A task's own metrics of decoded examples, and what predictions.jsonl says of them."""

from collections.abc import Mapping

import numpy as np
from absl import logging
from seqio.metrics import CollectingMetric, ModelOutputType


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


def list_predictions(task, examples, decoded):
    """Yields what `predictions.jsonl` says about each example, a dictionary of str.

    Args: see `compute_metrics`.
    """
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
