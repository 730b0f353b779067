"""Loss with the targets given, of every split and example."""

import json

import keras
import numpy as np
import pytest
import seqio
from keras import ops

from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.results import read_results
from remixer_tf.tasks import text_files
from tests.data.toy_tasks import VOCABULARY, rows, toy_task
from tests.evaluation.shift import engine_of
from tests.layers.harness import randomize
from tests.models.tiny import tiny_decoder

LENGTHS = {"inputs": 8, "targets": 6}


class Constant(keras.Model):
    """The same logits at every position."""

    def build(self, input_shape=None):
        self.row = self.add_weight(
            shape=(259,),
            initializer=keras.initializers.RandomNormal(seed=3),
            name="row",
        )
        self.built = True

    def call(self, batch, training=False):
        shape = (*batch["decoder_input_tokens"].shape, 259)
        return ops.broadcast_to(self.row, shape)


def test_loss_of_every_split_and_example(tmp_path):
    dev = rows([(3, 2), (4, 5), (1, 1)])
    task = toy_task({"train": dev, "dev": dev, "test": rows([(2, 2)] * 5)})
    model = Constant()
    model.build()
    evaluation = LossEvaluation(task, period=1, feature_lengths=LENGTHS, batch_size=2)
    engine = engine_of(model)
    evaluation.run(str(tmp_path), engine, 7)
    results = {r["split"]: r for r in read_results(str(tmp_path), "loss")}
    assert results.keys() == {"dev", "test"}
    logits = model.row.numpy().astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum())
    ids = [i for _, target in dev for i in [*(ord(c) + 3 for c in target), 1]]
    assert results["dev"]["target_tokens"] == len(ids) == 11
    loss = -np.mean(log_probs[ids])
    metrics = results["dev"]["metrics"]
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert metrics["token_accuracy"] == np.mean(np.array(ids) == logits.argmax())
    evaluation.run(str(tmp_path), engine, 8)
    assert len(read_results(str(tmp_path), "loss")) == 4


@pytest.mark.slow
def test_a_language_model_is_given_inputs_and_what_is_trimmed_is_counted(
    tmp_path, caplog
):
    task = toy_task({"dev": rows([(3, 2), (9, 4), (2, 7)])})
    model = tiny_decoder("gmlp", vocab_size=VOCABULARY.vocab_size)
    randomize(model)
    found = []
    for converter in (None, seqio.PrefixLMFeatureConverter):
        evaluation = LossEvaluation(
            task,
            feature_lengths=LENGTHS,
            batch_size=2,
            name=str(converter),
            feature_converter=converter,
        )
        results = evaluation.run(str(tmp_path), engine_of(model), 1)
        found.append(results["toy"]["dev"])
    assert found[0]["metrics"] == found[1]["metrics"]
    assert found[0]["over_length"] == 2 and found[0]["target_tokens"] == 3 + 5 + 6
    assert "toy dev: 2 of 3 examples are longer" in caplog.text


def test_positions_that_the_model_may_not_score_do_not_count(tmp_path):
    dev = rows([(3, 2), (4, 5), (1, 1)])
    model = Constant()
    model.build()
    model.first_scorable = 2
    evaluation = LossEvaluation(
        toy_task({"train": dev, "dev": dev}),
        period=1,
        feature_lengths=LENGTHS,
        batch_size=2,
    )
    evaluation.run(str(tmp_path), engine_of(model), 7)
    (result,) = read_results(str(tmp_path), "loss")
    # Targets with their EOS are 3, 6 and 2 tokens, of which the first two are left out.
    assert result["target_tokens"] == 1 + 4


@pytest.fixture
def validation_text(tmp_path):
    """Ids of the documents that `text_lm` evaluates on."""
    documents = [f"one sheep and {i} more" for i in range(150)]
    lines = [json.dumps({"text": text}) for text in documents]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    text_files.data_folder.set(str(tmp_path))
    documents = text_files.read_split("validation")
    assert len(documents) == 3
    yield sum(([*(byte + 3 for byte in text.encode()), 1] for text in documents), [])
    text_files.data_folder.set(None)


@pytest.mark.slow
@pytest.mark.parametrize("inputs, targets", [(8, 4), (1, 11)])
def test_perplexity_of_text_files_with_a_stride(
    inputs, targets, validation_text, tmp_path
):
    """Each token once, given as many before it as fit beside its piece."""
    model = tiny_decoder("gmlp", vocab_size=VOCABULARY.vocab_size)
    randomize(model)
    evaluation = LossEvaluation(
        "text_lm_stride",
        feature_lengths={"inputs": inputs, "targets": targets},
        batch_size=7,
    )
    (result,) = evaluation.run(str(tmp_path), engine_of(model), 1).values()
    result, text = result["validation"], validation_text
    assert result["target_tokens"] == len(text)
    total = 0.0
    for start in range(0, len(text), targets):
        first, piece = max(start - inputs, 0), text[start : start + targets]
        row = np.zeros([1, inputs + targets], "int32")
        row[0, : start - first + len(piece)] = text[first : start + len(piece)]
        shifted = np.pad(row, [(0, 0), (1, 0)])[:, :-1]
        logits = keras.ops.convert_to_numpy(model({"decoder_input_tokens": shifted}))
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = start - first + np.arange(len(piece))
        total += log_probs[0, places, piece].sum()
    perplexity = np.exp(-total / len(text))
    assert result["metrics"]["perplexity"] == pytest.approx(perplexity, rel=1e-4)
