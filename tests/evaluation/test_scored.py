"""Metrics of the likelihood of given targets, of both kinds of models."""

import functools
import json

import keras
import numpy as np
import pytest
import seqio
import t5.data
import t5.evaluation.metrics
import tensorflow as tf
from seqio.metrics import ModelOutputType

from remixer_tf.data.eval_batches import converter_for, read_examples
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.results import read_results
from remixer_tf.evaluation.scored import ScoredEvaluation
from tests.data.toy_tasks import VOCABULARY, rows, toy_task
from tests.evaluation.shift import engine_of
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_model

LENGTHS = {"inputs": 8, "targets": 12}
# Questions with as many choices as their second texts have letters.
QUESTIONS = [("ab", "xyz", 1), ("hello", "hj", 0), ("c", "mno", 2), ("dd", "pq", 1)]


def ranked_task(
    metrics, questions=QUESTIONS, postprocess=t5.data.postprocessors.rank_classification
):
    """Choices that are single letters, ranked by T5's own parts."""

    def dataset_fn(split, shuffle_files):
        names = ("question", "choices", "label")
        columns = dict(zip(names, map(list, zip(*questions, strict=True)), strict=True))
        return tf.data.Dataset.from_tensor_slices(columns)

    def choices(example):
        if "|" in questions[0][1]:
            return tf.strings.split(example["choices"], "|")
        return tf.strings.bytes_split(example["choices"])

    def expand(dataset):
        return t5.data.preprocessors.rank_classification(
            dataset,
            inputs_fn=lambda e: tf.fill([tf.size(choices(e))], e["question"]),
            targets_fn=choices,
            is_correct_fn=lambda e: tf.range(tf.size(choices(e))) == e["label"],
        )

    return seqio.Task(
        "ranked",
        source=seqio.FunctionDataSource(dataset_fn, splits=["dev"]),
        preprocessors=[
            expand,
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={
            name: seqio.Feature(VOCABULARY) for name in ("inputs", "targets")
        },
        postprocess_fn=postprocess,
        metric_fns=metrics,
    )


def mean_score(targets, scores):
    return {"score": np.mean(scores)}


def exact(targets, predictions):
    raise AssertionError("a metric of predictions")


RANKED = [t5.evaluation.metrics.rank_classification, mean_score, exact]


@pytest.fixture(params=["lm", pytest.param("remixer", marks=pytest.mark.slow)])
def model(request):
    size = {"vocab_size": VOCABULARY.vocab_size}
    is_lm = request.param == "lm"
    model = tiny_decoder("gmlp", **size) if is_lm else tiny_model("remixer", **size)
    randomize(model)
    return model


def log_likelihoods(model, examples):
    """Of each example, by NumPy, from one call with rows of equal length."""

    def padded(rows):
        length = max(map(len, rows))
        return np.stack([np.pad(row, (0, length - len(row))) for row in rows])

    targets = [example["targets"] for example in examples]
    inputs = [example["inputs"] for example in examples]
    if is_lm := not hasattr(model, "encode"):
        rows = [np.concatenate(pair) for pair in zip(inputs, targets, strict=True)]
        batch = {}
    else:
        rows, batch = targets, {"encoder_input_tokens": padded(inputs)}
    batch["decoder_input_tokens"] = np.pad(padded(rows), [(0, 0), (1, 0)])[:, :-1]
    logits = keras.ops.convert_to_numpy(model(batch))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    starts = [len(row) if is_lm else 0 for row in inputs]
    return [
        sum(log_probs[row, starts[row] + t, y] for t, y in enumerate(targets[row]))
        for row in range(len(targets))
    ]


@pytest.mark.slower
def test_ranks_and_writes(model, tmp_path, capsys):
    task = ranked_task(RANKED)
    evaluation = ScoredEvaluation(task, feature_lengths=LENGTHS, batch_size=4)
    evaluation.check(str(tmp_path))
    evaluation.run(str(tmp_path), engine_of(model), 3)
    (result,) = read_results(str(tmp_path), "score")
    examples = read_examples(task, "dev", LENGTHS)
    expected = log_likelihoods(model, examples)
    path = tmp_path / "eval" / "ranked" / "dev" / "3" / "scores.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["input"], r["target"]) for r in records] == [
        (question, choice) for question, choices, _ in QUESTIONS for choice in choices
    ]
    np.testing.assert_allclose([r["score"] for r in records], expected, atol=1e-3)
    assert {r["tokens"] for r in records} == {2}  # a letter and EOS
    assert result["target_tokens"] == 2 * len(records) == 20
    right, first = 0, 0
    for _, choices, label in QUESTIONS:
        scores = expected[first : first + len(choices)]
        right += int(np.argmax(scores) == label)
        first += len(choices)
    assert result["metrics"] == pytest.approx(
        {"accuracy": 25 * right, "score": np.mean(expected)}, abs=1e-3
    )
    shown = capsys.readouterr().out
    assert "ranked at step 3" in shown and "accuracy" in shown


def f1(predictions, labels, positive):
    """Of one class, in percent."""
    predicted, true = predictions == positive, labels == positive
    return 100 * 2 * np.sum(predicted & true) / (np.sum(predicted) + np.sum(true))


def areas(scores, labels):
    """Under the ROC curve and the precision-recall curve, by their definitions."""
    right, wrong = scores[labels == 1], scores[labels == 0]
    above = right[:, None] > wrong[None]
    order = np.argsort(-scores)
    hits = np.cumsum(labels[order])
    precisions = hits / np.arange(1, len(labels) + 1)
    return np.mean(above), np.sum(precisions * labels[order]) / np.sum(labels)


def score_metrics(model, tmp_path, task):
    """What `ScoredEvaluation` measures; and log-likelihoods and targets' lengths."""
    lengths = {"inputs": 8, "targets": 12}
    evaluation = ScoredEvaluation(task, feature_lengths=lengths, batch_size=64)
    evaluation.check(str(tmp_path))
    results = evaluation.run(str(tmp_path), engine_of(model), 1)
    examples = read_examples(task, "dev", lengths)
    sizes = np.array([len(example["targets"]) for example in examples])
    found = results["ranked"]["dev"]["metrics"]
    return found, np.array(log_likelihoods(model, examples)), sizes


@pytest.mark.slower
@pytest.mark.parametrize("model", ["lm"], indirect=True)
@pytest.mark.parametrize("classes, normalize", [(2, True), (3, False)])
def test_t5_rank_classification_of_a_number_of_classes(
    model, classes, normalize, tmp_path
):
    choices = "ab|cdefg|hi".split("|")[:classes]
    labels = np.array([0, 1, 0, 1, 1, 0] if classes == 2 else [0, 1, 2, 1, 2, 0])
    questions = [
        (x, "|".join(choices), y) for x, y in zip("pqrstu", labels, strict=True)
    ]
    metric = functools.partial(
        t5.evaluation.metrics.rank_classification,
        num_classes=classes,
        normalize_by_target_length=normalize,
    )
    task = ranked_task([metric], questions)
    found, scores, sizes = score_metrics(model, tmp_path, task)
    scores = (scores / sizes if normalize else scores).reshape(-1, classes)
    predictions = scores.argmax(-1)
    expected = {"accuracy": 100 * np.mean(predictions == labels)}
    if classes == 2:
        roc, precision = areas(scores[:, 1] - scores[:, 0], labels)
        expected |= {"auc-roc": 100 * roc, "auc-pr": 100 * precision}
        expected["f1"] = f1(predictions, labels, 1)
    else:
        both = [f1(predictions, labels, label) for label in range(classes)]
        expected["mean_3class_f1"] = np.mean(both)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.slower
def test_t5_areas_under_curves_of_scores_and_perplexity(model, tmp_path):
    questions = [
        (x, "ab|cdefg|hi", y) for x, y in zip("pqrs", (0, 1, 2, 1), strict=True)
    ]

    def is_correct(text, example, is_target):
        return int(example["is_correct"]), len(example["targets"])

    def auc(targets, scores):
        labels = [label for label, _ in targets]
        return t5.evaluation.metrics.score_auc(labels, scores)

    def perplexity(targets, scores):
        tokens = sum(length for _, length in targets)
        return {"perplexity": seqio.metrics.Scalar(np.exp(-np.sum(scores) / tokens))}

    task = ranked_task([auc, perplexity], questions, is_correct)
    found, scores, sizes = score_metrics(model, tmp_path, task)
    labels = np.ravel(np.eye(3, dtype=int)[[0, 1, 2, 1]])
    roc, precision = areas(scores, labels)
    expected = np.exp(-scores.sum() / sizes.sum())
    assert found == pytest.approx(
        {"auc-roc": roc, "auc-pr": precision, "perplexity": expected}, rel=1e-4
    )
    # Mesh TensorFlow's mode `perplexity_eval` is the loss of the same examples.
    loss = LossEvaluation(
        task,
        feature_lengths=LENGTHS,
        feature_converter=converter_for(model),
        batch_size=5,
    ).run(str(tmp_path), engine_of(model), 1)
    found = loss["ranked"]["dev"]["metrics"]["perplexity"]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lm"], indirect=True)
def test_too_long_is_counted_and_trimmed(model, tmp_path, caplog):
    def total(targets, scores):
        return {"total": sum(scores)}

    task = toy_task({"dev": rows([(3, 2), (9, 4)])}, metric_fns=[total])
    lengths = {"inputs": 8, "targets": 4}
    evaluation = ScoredEvaluation(task, feature_lengths=lengths)
    results = evaluation.run(str(tmp_path), engine_of(model), 1)
    assert results["toy"]["dev"]["over_length"] == 1
    assert results["toy"]["dev"]["target_tokens"] == 3 + 4
    assert "toy dev: 1 of 2 examples are longer" in caplog.text


def test_a_task_without_metrics_of_scores_is_refused_before_the_run(tmp_path):
    evaluation = ScoredEvaluation(
        toy_task({"dev": rows([(3, 2)])}), feature_lengths=LENGTHS
    )
    with pytest.raises(ValueError, match="of toy need PREDICTION.* gives SCORE"):
        evaluation.check(str(tmp_path))


def test_a_metric_that_no_evaluation_can_run_is_refused_by_its_name(tmp_path):
    class Intermediates(seqio.metrics.Metric):
        model_output_type = ModelOutputType.SCORE_WITH_INTERMEDIATES

    task = ranked_task(RANKED)
    task = seqio.Task(
        "ranked",
        source=task.source,
        preprocessors=task.preprocessors,
        output_features=task.output_features,
        metric_objs=[Intermediates, *task.metric_objs],
    )
    evaluation = ScoredEvaluation(task, feature_lengths=LENGTHS)
    with pytest.raises(ValueError, match="ranked needs SCORE_WITH_INTERMEDIATES"):
        evaluation.check(str(tmp_path))
