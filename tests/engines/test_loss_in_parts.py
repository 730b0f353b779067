"""A step whose logits are computed in parts takes the step of the whole logits."""

import functools
import re

import keras
import numpy as np
import pytest

from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.errors import UserError
from remixer_tf.models import ClassificationHead, MaskedLMHead
from remixer_tf.models.adapters import Lora, adapt
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import Objective
from tests.engines.engine_runs import experts_model
from tests.engines.one_device import assert_same_training, make_step
from tests.models.tiny import VOCAB_SIZE, tiny_batch, tiny_encoder, tiny_model
from tests.training import toy

ON_JAX = keras.backend.backend() == "jax"
ROWS, LENGTH, D_MODEL = 4, 7, 8  # of `tiny_batch`, and of the tiny models
MASKED = functools.partial(MaskedLMHead, bias_size=VOCAB_SIZE, mlm_transform=True)

# name: model
MODELS = {
    "untied": lambda: tiny_model("t5_1_1", dropout_rate=0.2, num_layers=1),
    "tied": lambda: tiny_model("gmlp", num_layers=1, tied_logits=True),
    "bfloat16": lambda: tiny_model("t5_1_1", num_layers=1, dtype="mixed_bfloat16"),
    "masked tokens": lambda: tiny_encoder("gmlp", MASKED),
    "experts": experts_model,
    "adapter": lambda: adapted(dropout_rate=0.0),
}


def adapted(dropout_rate):
    model = tiny_model("t5_1_1", num_layers=1)
    adapt(model, Lora(2, layers="logits", dropout_rate=dropout_rate), "^encoder/")
    return model


def batch_for(name):
    """Two steps of what a model reads."""
    batch = tiny_batch(ROWS)
    if name == "experts":
        batch = {k: v for k, v in batch.items() if "encoder" not in k}
    if name == "masked tokens":
        positions = np.arange(LENGTH, dtype="int32") * np.ones([ROWS, 1], "int32")
        batch = {
            "encoder_input_tokens": batch["encoder_input_tokens"],
            "masked_positions": positions,
            "encoder_target_tokens": batch["decoder_target_tokens"],
            "encoder_loss_weights": batch["decoder_loss_weights"],
        }
    return {k: np.stack([v, v]) for k, v in batch.items()}


def train(name, tokens_at_once, **options):
    """Returns the sums of two steps in one call, and the model after them."""
    keras.utils.set_random_seed(1)
    model = MODELS[name]()
    model.build = lambda: None  # It is built.
    loss_fn = CrossEntropy(1e-2, 0.1, tokens_at_once)
    step = make_step(model, keras.optimizers.SGD(0.1), loss_fn=loss_fn, **options)
    sums = {k: np.array(v) for k, v in step(batch_for(name)).items()}
    return sums, model


@pytest.mark.slower
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("experts", {}, marks=[pytest.mark.slow] * ON_JAX),
        pytest.param("untied", {}, marks=pytest.mark.slow),
        pytest.param("untied", {"jit_compile": True}, marks=pytest.mark.slower),
        pytest.param("tied", {"micro_batches": 2}, marks=pytest.mark.slow),
        pytest.param("bfloat16", {}, marks=pytest.mark.slow),
        pytest.param("masked tokens", {}, marks=pytest.mark.slow),
        pytest.param("adapter", {}, marks=pytest.mark.slow),
    ],
)
def test_sums_and_weights_are_those_of_whole_logits(name, options):
    """Eight tokens at once are two positions of four rows: 7 are no multiple."""
    assert_same_training(*(train(name, n, **options) for n in (8, None)))


def test_no_tensor_holds_all_logits():
    """Besides the matrix, of `D_MODEL` rows, none has more rows than tokens at once."""
    sizes = sizes_over(vocab_size=41, tokens_at_once=8)
    assert D_MODEL in sizes and max(sizes) <= max(8, D_MODEL) < ROWS * LENGTH


def sizes_over(vocab_size, tokens_at_once):
    """The sizes of a step's tensors with an axis of the vocabulary, divided by it."""
    model = tiny_model("gmlp", num_layers=1, vocab_size=vocab_size)
    loss_fn = CrossEntropy(1e-2, 0.1, tokens_at_once)
    batch = batch_for("untied")
    model.build = lambda: None  # It is built.
    if ON_JAX:
        engine, optimizer = JaxEngine(), keras.optimizers.SGD(0.1)
        engine.build(lambda: model, lambda: optimizer, "float32", Objective(loss_fn))
        text = engine.program(batch)[0].as_text()
        shapes = [
            [int(n) for n in shape.split(",")]
            for shape in re.findall(r"\b(?:f32|bf16|pred)\[([\d,]+)\]", text)
        ]
    else:
        step = make_step(model, keras.optimizers.SGD(0.1), loss_fn=loss_fn)
        function = step.run_steps.get_concrete_function(
            *step.arguments(
                {k: keras.ops.convert_to_tensor(v) for k, v in batch.items()}
            )
        )
        graphs = [function.graph]
        graphs += [
            function.graph._get_function(name).graph
            for name in function.graph._functions
        ]
        shapes = [
            tensor.shape
            for graph in graphs
            for op in graph.get_operations()
            for tensor in op.outputs
            if tensor.shape.is_fully_defined()
        ]
    return {int(np.prod(s)) // vocab_size for s in shapes if vocab_size in list(s)}


def test_what_has_no_vocabulary_says_so():
    loss_fn = CrossEntropy(tokens_at_once=8)
    batch = batch_for("masked tokens")
    batch["labels"] = batch["label_weights"] = np.ones([2, ROWS, 1], "int32")
    head = functools.partial(ClassificationHead, num_classes=2)
    cannot = [
        (tiny_encoder("gmlp", head), batch, "ClassificationHead 'head', which has"),
        (adapted(dropout_rate=0.5), batch_for("adapter"), "adapter with dropout"),
        (toy.ToyModel(), toy.stack(toy.make_batches(1)), "ToyModel"),
    ]
    for model, batch, message in cannot:
        if model.built:
            model.build = lambda: None
        step = make_step(model, keras.optimizers.SGD(0.1), loss_fn=loss_fn)
        with pytest.raises(UserError, match=message):
            step(batch)
