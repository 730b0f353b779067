"""The parts of a model: whose they are, and how they compute inside a test."""

import contextlib
import functools

import keras
import numpy as np
from keras import ops

from remixer_tf.layers import Dropout, Sublayer
from remixer_tf.models import Block, TransformerStack


def made_outside(model):
    """The layers directly in a model or its stacks that have parts not of this package.

    In a stack of ours these are blocks, norms, positions; each counts as a whole, and
    so does a stack of another class. Layers of Keras count too, but for the embedding
    and the product with a matrix.
    """
    return [part for part in _direct_layers(model) if has_outside(part)]


def is_outside(layer):
    """Whether the class of a layer or model is neither of this package nor harmless."""
    cls = type(layer)
    known = keras.layers.Embedding, keras.layers.Dense
    return cls.__module__.partition(".")[0] != "remixer_tf" and cls not in known


def has_outside(layer):
    """Whether a layer or one in it is not of this package."""
    return any(map(is_outside, layer._flatten_layers()))


def _direct_layers(layer):
    for part in layer._layers:
        if isinstance(part, TransformerStack) and not is_outside(part):
            yield from _direct_layers(part)
        else:
            yield part


def causal_stacks(model):
    """The stacks of a model that hide later tokens."""
    parts = model._flatten_layers()
    stacks = [part for part in parts if isinstance(part, TransformerStack)]
    return [s for s in stacks if s.causal or s is getattr(model, "decoder", None)]


def name_of(layer):
    """A layer or model as messages name it."""
    kind = "Model" if isinstance(layer, keras.Model) else "Layer"
    return f"{kind} '{layer.path}' ({type(layer).__name__})"


def random_values(layers):
    """Yields the layers' weights with values of a size that products keep.

    None is 0 or 1. A weight that is not trainable keeps what it holds, as a mask or a
    table, unless it is one number everywhere: zeros, or a statistic before the first
    step. It receives positive values then, since it may be a variance.
    """
    rng = np.random.default_rng(0)
    weights = {id(weight): weight for x in layers for weight in x.weights}
    for weight in weights.values():
        fan_in = np.prod(weight.shape[:-1]) if len(weight.shape) > 1 else 4
        if weight.trainable:
            value = rng.normal(size=weight.shape, scale=fan_in**-0.5)
        elif _is_constant(weight):
            value = rng.uniform(0.3, 0.9, weight.shape) * fan_in**-0.5
        else:
            continue
        yield weight, ops.convert_to_tensor(value.astype("float32"), weight.dtype)


def _is_constant(weight):
    if "float" not in weight.dtype or 0 in weight.shape:
        return False
    return bool(ops.max(weight) == ops.min(weight))


@contextlib.contextmanager
def comparable(model):
    """Inside the block, two calls of a model can be compared.

    The model computes in float32, and each block by itself, without a mesh, `remat` and
    `scan`. All rows have the same dropout mask, and no block is left out.
    """
    changed = []

    def change(part, name, value):
        changed.append((part, name, getattr(part, name)))
        setattr(part, name, value)

    distribution = keras.distribution.distribution()
    try:
        keras.distribution.set_distribution(None)
        for part in model._flatten_layers():
            if part.compute_dtype in ("bfloat16", "float16"):
                change(part, "dtype_policy", keras.DTypePolicy("float32"))
            if isinstance(part, TransformerStack):
                change(part, "remat", None)
                change(part, "scan", False)
            if isinstance(part, Dropout):
                change(part, "shared_axes", (0, *part.shared_axes))
            if isinstance(part, Block):
                change(part.stochastic_depth, "rate", 0.0)
        yield
    finally:
        for part, name, value in reversed(changed):
            setattr(part, name, value)
        keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def only_outside(model):
    """Leaves out the blocks of this package inside the block: they are known.

    Those in a model or stack of another class stay.
    """
    with contextlib.ExitStack() as stack:
        for part in [] if is_outside(model) else _direct_layers(model):
            if isinstance(part, Block) and not has_outside(part):
                stack.enter_context(calling(part, _unchanged))
        yield


def _unchanged(x, context, training=False):
    return x


@contextlib.contextmanager
def by_design(layer):
    """Calls layers as in evaluation that couple tokens in training by design.

    See `Sublayer.causal_in_training`.
    """
    with contextlib.ExitStack() as stack:
        for part in layer._flatten_layers():
            if isinstance(part, Sublayer) and not part.causal_in_training:
                call = functools.partial(_in_evaluation, part.call)
                stack.enter_context(calling(part, call))
        yield


def _in_evaluation(call, x, context, training=False):
    return call(x, context=context, training=False)


@contextlib.contextmanager
def calling(layer, call):
    """Lets a layer, when it is called, call this in place of its method `call`."""
    before = vars(layer).get("call")
    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")
        if before is not None:
            object.__setattr__(layer, "call", before)
