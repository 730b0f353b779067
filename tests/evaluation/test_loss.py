"""Loss with the targets given, of every split and example."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.results import read_results
from tests.data.toy_tasks import rows, toy_task
from tests.evaluation.shift import engine_of

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
    assert metrics["accuracy"] == np.mean(np.array(ids) == logits.argmax())
    evaluation.run(str(tmp_path), engine, 8)
    assert len(read_results(str(tmp_path), "loss")) == 4
