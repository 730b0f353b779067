"""Steps that are not finite: what is kept, and when the run ends."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.engines.engine import Host
from remixer_tf.errors import NotFiniteError
from remixer_tf.training.hooks import SkippedSteps


def test_hosts_keep_their_parts_of_a_batch_and_no_part_twice(tmp_path):
    parts = [(0, 0, True), (1, 0, False), (2, 1, True)]
    for index, part, saves_position in parts:
        host = Host(index, 3, None, seqio.ShardInfo(part, 2), saves_position)
        skipped = SkippedSteps(tmp_path, 1, f"of {index}", host)
        rows = tf.fill([1, 2, 3], index)
        batch = {"decoder_target_tokens": rows, "decoder_loss_weights": rows}
        skipped.after_call(5, batch, {"skipped": 1.0, "stop": 0.0})
        skipped.flush()
    folder = tmp_path / "nonfinite-5"
    found = {path.name: path for path in folder.iterdir()}
    assert found.pop("operative_config.gin").read_text() == "of 0"
    values = {
        name: np.load(path)["decoder_target_tokens"].tolist()
        for name, path in found.items()
    }
    assert values == {
        "batch-0-of-2.npz": [[[0] * 3] * 2],
        "batch-1-of-2.npz": [[[2] * 3] * 2],
    }


def test_steps_that_overflow_in_float16_do_not_end_the_run(tmp_path, caplog):
    rows = tf.ones([2, 1, 3], tf.int32)
    batch = {"decoder_target_tokens": rows, "decoder_loss_weights": rows}
    skipped = SkippedSteps(tmp_path)
    skipped.after_call(4, batch, {"skipped": 0.0, "overflowed": 2.0, "stop": 0.0})
    with caplog.at_level("WARNING"):
        skipped.flush()
    assert "overflowed in 2 of steps 3 to 4." in caplog.text
    assert skipped.count == 2 and not list(tmp_path.iterdir())
    skipped.after_call(6, batch, {"skipped": 1.0, "overflowed": 0.0, "stop": 0.0})
    with pytest.raises(NotFiniteError, match="1 of steps 5 to 6, 1 in this run"):
        skipped.flush()


def test_all_hosts_end_after_the_same_step(tmp_path):
    """They count the sums of `Engine.step`, which are over all hosts."""
    rows = tf.ones([2, 1, 3], tf.int32)
    batch = {"decoder_target_tokens": rows, "decoder_loss_weights": rows}
    for index in range(2):
        skipped = SkippedSteps(tmp_path, 2, host=Host(index, 2))
        for step, found in ((2, 1.0), (4, 1.0), (6, 0.0), (8, 2.0)):
            skipped.after_call(step, batch, {"skipped": found, "stop": 0.0})
        assert skipped.count == 2
        with pytest.raises(NotFiniteError, match="2 of steps 7 to 8, 4 in this run"):
            skipped.flush()
