import keras
import numpy as np
import pytest

from remixer_tf import configuration
from remixer_tf.analysis.costs import random_superbatch
from remixer_tf.models.build import build_model
from remixer_tf.run import Run


@pytest.mark.parametrize("name", ["t5_1_1_tiny", "remixer_tiny", "bert_tiny"])
def test_weights_that_will_be_restored_are_not_drawn(name):
    settings = configuration.read([f"models/{name}.gin"], [], complete=False)
    drawn, restored = (
        build_model(settings.value(Run, "model"), "float32", restored)
        for restored in (False, True)
    )
    assert [v.path for v in restored.variables] == [v.path for v in drawn.variables]
    for variable, other in zip(restored.variables, drawn.variables, strict=True):
        if keras.backend.is_float_dtype(variable.dtype):
            assert not np.any(variable.numpy())
            variable.assign(other)
    lengths = {"inputs": 8, "targets": 4}
    batch = random_superbatch(drawn.batch_spec(2, lengths), drawn)
    batch = {key: value[0] for key, value in batch.items()}
    np.testing.assert_array_equal(restored(batch), drawn(batch))
