"""The costs of a model: parameters, FLOPs, bytes and speed."""

import dataclasses
import math
import re
import statistics
import time
import warnings

import numpy as np
import tensorflow as tf

from remixer_tf.analysis.matching import Match
from remixer_tf.engines.jax.layout import (
    DeviceMemory,
    Layout,
    declare_run,
    device_memory,
)
from remixer_tf.engines.tensorflow.flops import op_flops, peak_bytes, variable_bytes
from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.models.adapters import is_frozen
from remixer_tf.models.build import build_model
from remixer_tf.objectives import losses
from remixer_tf.objectives.batches import throughput_unit
from remixer_tf.optimizers.options import make_optimizer
from remixer_tf.startup import check_backend

_MEASURED_STEPS = 5


@dataclasses.dataclass
class Part:
    """Parameters and forward FLOPs of a part of a model, see `op_flops`."""

    parameters: int = 0
    matmul_flops: int = 0
    rest_flops: int = 0

    @property
    def flops(self):
        return self.matmul_flops + self.rest_flops


@dataclasses.dataclass
class Profile:
    """Results of `count`, `count_activations` and `measure`.

    A part is a layer, such as 'encoder' or 'logits', or 'model' for tied logits. A kind
    is a sublayer's name, such as 'self_attention', or 'remixer: mixing' for what
    `counted_as` sets apart in it, or '' outside of sublayers.
    """

    batch: dict  # 'batch_size', and for texts the tokens of 'inputs' and 'targets'
    parts: dict  # (part, kind) to `Part`
    parameter_bytes: int  # of all variables
    optimizer_bytes: int  # of the optimizer's variables
    uncounted: tuple = ()  # of str, types of operations whose FLOPs have no formula
    # The largest sum of tensors (with gradients) alive at once in a training step on
    # one device. XLA may need less. None if not counted.
    activation_bytes: int | None = None
    # Per second: 'steps' of training, and 'tokens' of inputs and targets, or 'images'.
    rates: dict = dataclasses.field(default_factory=dict)
    layout: Layout | None = None  # of several devices
    device_memory: DeviceMemory | None = None  # of each of them
    match: Match | None = None  # how one of its sizes was found

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
    with_flops=True,
):
    """Counts parameters, FLOPs and bytes of a model, without variables: a `Profile`.

    Args:
        model: a factory, as in `train`. The model has a method
            `batch_spec(batch_size, feature_lengths)`, see `EncoderDecoder`.
        optimizer: a factory of a `keras.optimizers.Optimizer`.
        batch_size: int.
        feature_lengths: dictionary of ints, tokens of 'inputs' and 'targets'.
        dtype_policy: 'float32' or 'mixed_bfloat16'.
        layout: `Layout` of several devices; None for one.
        with_flops: bool; without, all FLOPs are 0, and nothing is traced.

    Raises a ValueError if these lengths are too long for the model, the dtype policy is
    unknown, or the layout does not fit, and a UserError if Keras does not run on
    TensorFlow.
    """
    check_backend("Counting")
    model, optimizer = declare_run(model, optimizer, dtype_policy)
    arguments = _call_specs(model, batch_size, feature_lengths)

    def forward(weights, states, batch):  # As in training: mixtures differ there.
        return model.stateless_call(weights, states, batch, training=True)[0]

    operations = op_flops(_trace(forward, arguments)) if with_flops else []
    uncounted = {op.type for op in operations if not (op.matmul or op.rest)}
    batch = {"batch_size": batch_size}
    if "encoder_input_tokens" in arguments[-1]:
        batch["inputs"] = feature_lengths["inputs"]
    if "images" not in arguments[-1]:
        batch["targets"] = feature_lengths["targets"]
    return Profile(
        batch=batch,
        parts=_parts(model, operations),
        parameter_bytes=variable_bytes(model.variables),
        optimizer_bytes=variable_bytes(optimizer.variables),
        uncounted=tuple(sorted(uncounted)),
        layout=layout,
        device_memory=layout and device_memory(layout, model, optimizer),
    )


def count_activations(model, *, batch_size, feature_lengths, dtype_policy="float32"):
    """Counts the `activation_bytes` of a `Profile`, see `count`."""
    check_backend("Counting")
    with tf.Graph().as_default():
        model = build_model(model, dtype_policy)

    def backward(weights, states, batch):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, _ = model.stateless_call(weights, states, batch, training=True)
            # The values of targets do not matter.
            ones = tf.ones(logits.shape[:-1], tf.int32)
            loss = losses.cross_entropy(logits, ones, ones, z_loss=1e-4)
            objective = loss["loss"] + loss["z_loss"]
        gradients = tape.gradient(objective, weights)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    arguments = _call_specs(model, batch_size, feature_lengths)
    with warnings.catch_warnings():  # TensorFlow's, of a large table: none is made here
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        return peak_bytes(_trace(backward, arguments))


def _call_specs(model, batch_size, feature_lengths):
    """Returns the specs of weights, other states and a batch."""
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
    """Times five training steps on random, full rows, after a first one.

    Arguments and errors are those of `count`, and `jit_compile` of `TrainStep`. Returns
    the `rates` of a `Profile`, by the median time.
    """
    check_backend("Measuring")
    model = build_model(model, dtype_policy)
    strategy = tf.distribute.get_strategy()
    optimizer = make_optimizer(optimizer)
    step = TrainStep(model, optimizer, strategy, jit_compile=jit_compile)
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


def _parts(model, operations):
    """Returns {(part, kind): `Part`}, in the order of the model's variables."""
    layers = list(model._flatten_layers(include_self=False))
    known = {layer.name for layer in layers}
    kinds = _kinds(layers)
    parts = {}
    for variable in model.variables:
        if not (variable.trainable or is_frozen(variable)):
            continue
        names = variable.path.split("/")[1:-1]
        part = parts.setdefault(_place(names, kinds), Part())
        part.parameters += math.prod(variable.shape)
    for op in operations:
        # TensorFlow appends a number to a scope that is entered again.
        names = op.name.split("/")[:-1]
        names = [n if n in known else re.sub(r"_\d+$", "", n) for n in names]
        names = [n for n in names if n in known]
        part = parts.setdefault(_place(names, kinds), Part())
        part.matmul_flops += op.matmul
        part.rest_flops += op.rest
    return parts


def _kinds(layers):
    """Returns {path: `counted_as`}, a path being a tuple of names without the model's.

    A name that means the same in all layers is there too: an operation of a layer that
    others than its owner call has another path.
    """
    said = [(layer, getattr(layer, "counted_as", None)) for layer in layers]
    by_name = {}
    for layer, kind in said:
        by_name.setdefault(layer.name, set()).add(kind)
    kinds = {name: kind for name, (kind, *others) in by_name.items() if not others}
    paths = {tuple((x.path or x.name).split("/")[1:]): kind for x, kind in said}
    return kinds | paths


def _place(layers, kinds):
    """Returns the (part, kind) of names of nested layers, outermost first.

    `kinds` comes from `_kinds`.
    """
    part = layers[0] if layers else "model"
    blocks = [re.fullmatch(r"layer_\d+_(.*)", layer) for layer in layers]
    kind = next((match[1] for match in blocks if match), "")
    found = (
        kinds.get(tuple(layers[: i + 1]), kinds.get(layer))
        for i, layer in enumerate(layers)
    )
    own = next(filter(None, found), None)
    return part, f"{kind}: {own}" if own else kind


def random_superbatch(spec, model):
    """Returns random full rows of a `batch_spec`, `[1, batch, ...]`; weights are 1."""
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
