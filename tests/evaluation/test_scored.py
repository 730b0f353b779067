"""Metrics of the likelihood of given targets, of both kinds of models."""

import json

import keras
import numpy as np
import pytest
import seqio
import t5.data
import t5.evaluation.metrics
import tensorflow as tf

from remixer_tf.data.eval_batches import read_examples
from remixer_tf.evaluation.results import read_results
from remixer_tf.evaluation.scored import ScoredEvaluation
from tests.data.toy_tasks import VOCABULARY, rows, toy_task
from tests.evaluation.shift import engine_of
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder, tiny_model

LENGTHS = {"inputs": 8, "targets": 12}
# Questions with as many choices as their second texts have letters.
QUESTIONS = [("ab", "xyz", 1), ("hello", "hj", 0), ("c", "mno", 2), ("dd", "pq", 1)]


def ranked_task():
    """Choices that are single letters, ranked by T5's own parts."""

    def dataset_fn(split, shuffle_files):
        names = ("question", "choices", "label")
        columns = dict(zip(names, map(list, zip(*QUESTIONS, strict=True)), strict=True))
        return tf.data.Dataset.from_tensor_slices(columns)

    def choices(example):
        return tf.strings.bytes_split(example["choices"])

    def expand(dataset):
        return t5.data.preprocessors.rank_classification(
            dataset,
            inputs_fn=lambda e: tf.fill([tf.size(choices(e))], e["question"]),
            targets_fn=choices,
            is_correct_fn=lambda e: tf.range(tf.size(choices(e))) == e["label"],
        )

    def mean_score(targets, scores):
        return {"score": np.mean(scores)}

    def exact(targets, predictions):
        raise AssertionError("a metric of predictions")

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
        postprocess_fn=t5.data.postprocessors.rank_classification,
        metric_fns=[t5.evaluation.metrics.rank_classification, mean_score, exact],
    )


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


def test_ranks_and_writes(model, tmp_path, capsys):
    task = ranked_task()
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


def test_what_can_change_a_score_is_part_of_the_result():
    def settings(**options):
        options = {"feature_lengths": LENGTHS, **options}
        evaluation = ScoredEvaluation(ranked_task(), **options)
        return evaluation.settings(("ranked", "dev"))

    for options in (
        {"feature_lengths": {"inputs": 8, "targets": 11}},
        {"max_examples": 3},
        {"feature_converter": seqio.PrefixLMFeatureConverter},
        {"vocabulary": seqio.ByteVocabulary(extra_ids=1)},
    ):
        assert settings(**options) != settings()
    assert "rank_classification" in str(settings()["metrics"])


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
