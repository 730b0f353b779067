"""What a model is made of: parameters, FLOPs, bytes and speed."""

import dataclasses
import math
import re
import statistics
import time

import numpy as np
import tensorflow as tf

from remixer_tf.engines.jax.layout import Layout
from remixer_tf.engines.jax.layout_memory import (
    DeviceMemory,
    declare_run,
    device_memory,
)
from remixer_tf.engines.tensorflow.flops import op_flops, peak_bytes, variable_bytes
from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.layers import LengthMixing
from remixer_tf.models.build import build_model
from remixer_tf.objectives import losses
from remixer_tf.objectives.batches import throughput_unit

_MEASURED_STEPS = 5


@dataclasses.dataclass
class Part:
    """Parameters and FLOPs of a part of a model forward in training; see `op_flops`."""

    parameters: int = 0
    matmul_flops: int = 0
    rest_flops: int = 0


@dataclasses.dataclass
class Profile:
    """What `count`, `count_activations` and `measure` find.

    Attributes:
        batch: dictionary of ints, what is counted: 'batch_size', and of texts the
            tokens of 'inputs' and 'targets'.
        parts: dictionary (part, kind) to `Part`. A part is a layer of the model, such
            as 'encoder' or 'logits', or 'model' for what it computes itself (tied
            logits). A kind is a sublayer's name, such as 'self_attention'; 'remixer:
            mixing' for the static mixing inside it; '' for all else.
        parameter_bytes: int, of all variables.
        activation_bytes: int, the largest sum of the tensors that are alive at once in
            forward and backward of a training step, gradients included, on one device.
            XLA may need less. None if not counted.
        optimizer_bytes: int, of the optimizer's variables.
        rates: dictionary of floats, 'steps' of training per second, and 'tokens',
            inputs and targets, or 'images'; empty if not measured.
        layout: `Layout` of several devices, or None.
        device_memory: `DeviceMemory` of each of them, or None.
    """

    batch: dict
    parts: dict
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None = None
    rates: dict = dataclasses.field(default_factory=dict)
    layout: Layout | None = None
    device_memory: DeviceMemory | None = None

    @property
    def total(self):
        """The sum of all parts, a `Part`."""
        values = (vars(part).values() for part in self.parts.values())
        return Part(*map(sum, zip(*values, strict=True)))


def count(
    model,
    optimizer,
    *,
    batch_size,
    feature_lengths,
    dtype_policy="float32",
    layout=None,
):
    """Counts what a model is made of. No variable is made.

    Args:
        model: a factory, as in `train`. The model has a method
            `batch_spec(batch_size, feature_lengths)`, see `EncoderDecoder`.
        optimizer: a factory of a `keras.optimizers.Optimizer`.
        batch_size: int.
        feature_lengths: dictionary of ints, tokens of 'inputs' and 'targets'.
        dtype_policy: 'float32' or 'mixed_bfloat16'.
        layout: `Layout` of the devices that would hold it; None for one device.

    Returns:
        `Profile`.

    Raises:
        ValueError: the model cannot hold sequences of these lengths, an unknown dtype
            policy, or a layout that does not fit.
    """
    model, optimizer = declare_run(model, optimizer, dtype_policy)
    arguments = _call_specs(model, batch_size, feature_lengths)

    def forward(weights, states, batch):  # As in training: mixtures differ there.
        return model.stateless_call(weights, states, batch, training=True)[0]

    batch = {"batch_size": batch_size}
    if "encoder_input_tokens" in arguments[-1]:
        batch["inputs"] = feature_lengths["inputs"]
    if "images" not in arguments[-1]:
        batch["targets"] = feature_lengths["targets"]
    return Profile(
        batch=batch,
        parts=_parts(model, _trace(forward, arguments)),
        parameter_bytes=variable_bytes(model.variables),
        optimizer_bytes=variable_bytes(optimizer.variables),
        layout=layout,
        device_memory=layout and device_memory(layout, model, optimizer),
    )


def count_activations(model, *, batch_size, feature_lengths, dtype_policy="float32"):
    """Counts the `activation_bytes` of a `Profile`, see `count`; makes no variable."""
    with tf.Graph().as_default():
        model = build_model(model, dtype_policy)

    def backward(weights, states, batch):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, _ = model.stateless_call(weights, states, batch, training=True)
            # Any targets: one for each row of logits.
            ones = tf.ones(logits.shape[:-1], tf.int32)
            loss = losses.cross_entropy(logits, ones, ones, z_loss=1e-4)
            objective = loss["loss"] + loss["z_loss"]
        gradients = tape.gradient(objective, weights)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    arguments = _call_specs(model, batch_size, feature_lengths)
    return peak_bytes(_trace(backward, arguments))


def _call_specs(model, batch_size, feature_lengths):
    """Returns the `tf.TensorSpec` of weights, of other states, and of a batch."""
    batch = model.batch_spec(batch_size, feature_lengths)
    values = model.trainable_variables, model.non_trainable_variables, batch
    return tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), values)


def _trace(function, arguments):
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def measure(
    model,
    optimizer,
    *,
    batch_size,
    feature_lengths,
    dtype_policy="float32",
    jit_compile=None,
):
    """Times training steps on random, full rows: the median of five after a first.

    Args:
        model, optimizer, batch_size, feature_lengths, dtype_policy: see `count`.
        jit_compile: see `train`.

    Returns:
        the `rates` of a `Profile`.

    Raises:
        ValueError: see `count`.
    """
    model = build_model(model, dtype_policy)
    strategy = tf.distribute.get_strategy()
    step = TrainStep(model, optimizer(), strategy, jit_compile=jit_compile)
    spec = model.batch_spec(batch_size, feature_lengths)
    superbatch = random_superbatch(spec, model)
    read = float(step(superbatch)["tokens"])
    seconds = []
    for _ in range(_MEASURED_STEPS):
        start = time.perf_counter()
        float(step(superbatch)["loss"])
        seconds.append(time.perf_counter() - start)
    rate = 1 / statistics.median(seconds)
    return {"steps": rate, throughput_unit(superbatch): read * rate}


def _parts(model, forward):
    """Returns {(part, kind): Part}, in the order of the model's variables."""
    layers = list(model._flatten_layers(include_self=False))
    known = {layer.name for layer in layers}
    mixing = {layer.name for layer in layers if isinstance(layer, LengthMixing)}
    parts = {}
    for variable in model.trainable_variables:
        names = variable.path.split("/")[1:-1]
        part = parts.setdefault(_place(names, mixing), Part())
        part.parameters += math.prod(variable.shape)
    for op in op_flops(forward):
        # TensorFlow appends a number to a scope that is entered again.
        names = op.name.split("/")[:-1]
        names = [n if n in known else re.sub(r"_\d+$", "", n) for n in names]
        names = [n for n in names if n in known]
        part = parts.setdefault(_place(names, mixing), Part())
        part.matmul_flops += op.matmul
        part.rest_flops += op.rest
    return parts


def _place(layers, mixing):
    """Returns (part, kind) of what lies in these nested layers, outermost first."""
    part = layers[0] if layers else "model"
    blocks = [re.fullmatch(r"layer_\d+_(.*)", layer) for layer in layers]
    kind = next((match[1] for match in blocks if match), "")
    return part, kind if mixing.isdisjoint(layers) else f"{kind}: mixing"


def random_superbatch(spec, model):
    """One step of full rows of a model's `batch_spec`, `[1, batch, ...]`.

    Values are random, and weights one.
    """
    rng = np.random.default_rng(0)

    def values(key, like):
        shape = (1, *like.shape)
        if key.endswith("_weights"):
            return np.ones(shape)
        if "float" in like.dtype:
            return rng.normal(size=shape)
        if key == "masked_positions":
            return rng.integers(spec["encoder_input_tokens"].shape[1], size=shape)
        if key == "labels":
            return np.zeros(shape)
        return rng.integers(1, model.vocab_size, shape)

    return {
        key: tf.constant(values(key, like), like.dtype) for key, like in spec.items()
    }
