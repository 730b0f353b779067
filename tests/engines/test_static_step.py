"""The whole train step compiles under XLA with static shapes, as a TPU needs it.

No TPU was here to try: this is what can be seen without one.
"""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.engines.tensorflow.step import TrainStep, _traced_by_shape
from remixer_tf.engines.tensorflow.strategy import get_strategy
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import Objective
from remixer_tf.optimizers import Adafactor
from tests.models.tiny import tiny_batch, tiny_model

OPS = pathlib.Path(__file__).parents[1] / "testdata" / "train_step_ops.txt"


def make_step(kind, dtype, micro_batches):
    model = tiny_model(kind, dtype=dtype, dropout_rate=0.1, num_layers=1)
    batch = {k: tf.constant([v, v]) for k, v in tiny_batch().items()}
    loss_fn = CrossEntropy(z_loss=1e-4)
    objective = Objective(loss_fn, micro_batches=micro_batches, clip_norm=1.0)
    return TrainStep(model, Adafactor(1e-3), get_strategy(), objective), batch


def op_types(graph):
    """Returns the types of all ops of a graph, those of its functions too."""
    types = set()
    for op in graph.get_operations():
        types.add(op.type)
        for attribute in op.op_def.attr:
            if attribute.type == "func":
                function = graph._get_function(op.get_attr(attribute.name).name)
                types |= op_types(function.graph)
    return types


@pytest.mark.slower
@pytest.mark.parametrize(
    ("kind", "dtype"), [("t5_1_1", "float32"), ("remixer", "mixed_bfloat16")]
)
def test_whole_step_compiles_with_static_shapes(kind, dtype):
    step, batch = make_step(kind, dtype, micro_batches=1)
    compiled = tf.function(step._loop, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(batch, tf.constant(0.0))(stage="hlo")
    assert re.search(r"\bdot\(", hlo), "no matrix product was found"
    assert "<=" not in re.sub(r"direction=\w+|/\*.*?\*/", "", hlo), "a dynamic size"
    assert "custom-call" not in hlo
    before = [v.numpy() for v in step._model.trainable_variables]
    sums = compiled(batch, tf.constant(0.0))
    assert float(sums["steps"]) == 2 and float(sums["skipped"]) == 0
    after = [v.numpy() for v in step._model.trainable_variables]
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


@pytest.mark.slow
def test_no_op_is_new():
    """An op that is not in the list may be one that a TPU lacks: look, then add it."""
    allowed = set(OPS.read_text().split())
    found = set()
    for kind in ("t5_1_1", "remixer"):
        step, batch = make_step(kind, "mixed_bfloat16", micro_batches=3)
        found |= op_types(
            step.run_steps.get_concrete_function(*step.arguments(batch)).graph
        )
    assert found <= allowed, f"new: {sorted(found - allowed)}"
    assert allowed <= found, f"gone: {sorted(allowed - found)}"


@pytest.mark.slower
def test_300_steps_of_updates_that_are_traced_once_a_shape():
    """A function that stays in the graph gives what it gives where it is inlined."""
    shapes = [(256, 128)] * 5 + [(128,)] * 5 + [(3, 128, 256)] * 2
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=shape).astype("float32") for shape in shapes]

    def train(trace):
        variables = [keras.Variable(start) for start in starts]
        optimizer = Adafactor(1e-2, beta_1=0.9)
        optimizer.build(variables)
        optimizer.compute_update = trace(optimizer.compute_update)

        @tf.function(autograph=False)
        def steps(seed):
            def body(index):
                for i, variable in enumerate(variables):
                    key = [seed + index, i]
                    drawn = tf.random.stateless_normal(variable.shape, key)
                    gradients[i] = drawn + variable.value
                optimizer.apply(gradients, variables)
                return (index + 1,)

            gradients = [None] * len(variables)
            tf.while_loop(lambda index: index < 10, body, [tf.constant(0)])

        for seed in range(0, 300, 10):
            steps(tf.constant(seed))
        assert int(optimizer.iterations) == 300
        return [variable.numpy() for variable in variables]

    kept, inlined = train(_traced_by_shape), train(lambda function: function)
    for start, one, other in zip(starts, kept, inlined, strict=True):
        assert np.abs(one - start).max() > 1e-2
        np.testing.assert_allclose(one, other, atol=1e-5)
