"""Rows whose first positions have no loss: in training, in evaluation, in gin."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.data.language_model import SuffixLMFeatureConverter
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.results import read_results
from tests.data.toy_tasks import VOCABULARY, train_dataset
from tests.evaluation.shift import engine_of
from tests.evaluation.test_loss import Constant
from tests.settings import part_of

ROWS = [[3, 9, 4, 1], [5, 1], [6, 7, 8, 9, 10, 11, 1]]
LENGTHS = {"targets": 7}


@pytest.fixture
def task():
    def dataset_fn(split, shuffle_files):
        rows = tf.RaggedTensor.from_row_lengths(sum(ROWS, []), [*map(len, ROWS)])
        rows = tf.data.Dataset.from_tensor_slices(tf.cast(rows, tf.int32))
        return rows.map(lambda row: {"targets": row})

    return seqio.Task(
        "toy",
        source=seqio.FunctionDataSource(dataset_fn, splits=["train", "dev"]),
        preprocessors=[],
        output_features={"targets": seqio.Feature(VOCABULARY)},
    )


def batch_of(task, converter, **options):
    dataset = train_dataset(
        task,
        feature_lengths=LENGTHS,
        batch_size=2,
        shuffle=False,
        count_limit=0,
        feature_converter=converter,
        **options,
    )
    return {k: v[0].numpy() for k, v in next(iter(dataset)).items()}


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_only_the_first_positions_lose_their_weight(task, pack):
    batch = batch_of(task, SuffixLMFeatureConverter, pack=pack)
    whole = batch_of(task, seqio.LMFeatureConverter, pack=pack)
    weights = whole.pop("decoder_loss_weights")
    assert weights[:, :2].all()
    weights[:, :2] = 0  # ceil(0.2 * 7)
    np.testing.assert_array_equal(batch.pop("decoder_loss_weights"), weights)
    assert batch.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(batch[name], value, err_msg=name)
    assert pack == ("decoder_segment_ids" in batch)


@pytest.mark.parametrize(
    "share, length, first", [(0.0, 5, 0), (0.2, 35, 7), (0.2, 36, 8), (0.55, 100, 55)]
)
def test_the_share_is_rounded_up(share, length, first):
    converter = SuffixLMFeatureConverter(first_share=share, pack=False)
    dataset = tf.data.Dataset.from_tensors({"targets": tf.fill([length], 5)})
    (row,) = converter(dataset, {"targets": length}).as_numpy_iterator()
    expected = np.arange(length) >= first
    np.testing.assert_array_equal(row["decoder_loss_weights"], expected)


@pytest.mark.parametrize("share", [-0.1, 1.0, "0.2"])
def test_a_wrong_share(share):
    with pytest.raises(ValueError, match="first_share"):
        SuffixLMFeatureConverter(first_share=share)


@pytest.mark.usefixtures("clear_gin")
def test_evaluation_scores_the_rest_and_gin_sets_the_share(task, tmp_path):
    settings = configuration.read([], ["SuffixLMFeatureConverter.first_share = 0.5"])
    model = Constant()
    model.build()
    suffix = part_of(settings, "SuffixLMFeatureConverter")
    for converter in (suffix, seqio.LMFeatureConverter):
        evaluation = LossEvaluation(
            task, feature_lengths=LENGTHS, batch_size=2, feature_converter=converter
        )
        evaluation.run(str(tmp_path), engine_of(model), 1)
        (result,) = read_results(str(tmp_path), "loss")
        logits = model.row.numpy().astype("float64")
        log_probs = logits - np.log(np.exp(logits).sum())
        first = 4 if converter is suffix else 0
        ids = [i for row in ROWS for i in row[first:]]
        assert result["target_tokens"] == len(ids)
        perplexity = np.exp(-np.mean(log_probs[ids]))
        assert result["metrics"]["perplexity"] == pytest.approx(perplexity, rel=1e-5)
