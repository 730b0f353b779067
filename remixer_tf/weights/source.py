"""Published weights of any format as a `Source`, and setting a model from one."""

import math
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from remixer_tf.checkpoints.reading import is_random_state, named_variables
from remixer_tf.errors import UserError, shorten
from remixer_tf.models.adapters import adapted_layers, of_adapter, own_path
from remixer_tf.models.build import build_model, declare
from remixer_tf.weights.generation import Generation, describe_left_out
from remixer_tf.weights.names import find_name

# gin files of runs that start from published weights, see `Source.run`.
TEXT = "runs/imported.gin"
BYTES = "runs/imported_bytes.gin"
IMAGES = "runs/imagenet.gin"
ENCODER = "runs/imported_encoder.gin"
SPANS = "runs/imported_spans.gin"
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Source(NamedTuple):
    """Published weights, read one array at a time."""

    format: str  # such as "Hugging Face T5"
    architecture: tuple  # of str, this package's gin files of the model
    bindings: dict  # {name: value} of its sizes and choices, see `values.gin_text`
    rows: tuple  # the table of names, see `weights.names`
    shapes: dict  # {name: shape} of all arrays
    read: Callable  # from a name to the array
    skipped: dict = {}  # {name: reason} of arrays that no variable needs
    vocabulary: str | None = None  # path of the vocabulary's file next to the weights
    extra_ids: int = 100  # the sentinels after the vocabulary's pieces
    generation: Generation = Generation()  # the search of the published model
    # The gin file of its run. TEXT, ENCODER and SPANS need a vocabulary's file, BYTES
    # and IMAGES none. None: `architecture` is all of it.
    run: str | None = TEXT
    eos_after_trim: bool = False  # whether a text that is cut keeps EOS
    max_length: int | None = None  # tokens that are read of a text; None for the run's
    added_tokens: tuple = ()  # of `AddedToken`, after the extra ids
    unread: tuple = ()  # of str: lines that name fields and files that are not read

    def remarks(self):
        """Lines that name what the published model says and the run here does not."""
        return [*describe_left_out(self.generation.left_out), *self.unread]


def check_size(kind, size, layers, shapes):
    """Raises ValueError if arrays are far too few or too small for a model.

    A model is built afterwards, and takes no more memory than about twice the arrays.
    `match_variables` compares single arrays. `size` and `layers` are the model's
    parameters and layers, `shapes` is {name: shape}.
    """
    there = sum(math.prod(shape) for shape in shapes.values())
    if size > 2 * there or layers > len(shapes):
        raise UserError(
            f"The configuration says that it is a {kind} of {size:,} parameters in "
            f"{layers:,} layers. There are {len(shapes)} arrays of {there:,} numbers."
        )


def match_variables(variables, source):
    """Finds the array of each variable in a `Source`, and compares all shapes.

    `variables` is {path without the model's name: variable}. Returns {path: (name,
    change)}. Raises a ValueError, which names all of them, if a variable has no array,
    an array no variable and no reason to be skipped, or shapes differ.
    """
    found, problems = {}, {"missing": [], "of another shape": []}
    for path, variable in variables.items():
        name, change = find_name(path, source.rows)
        if name not in source.shapes:
            problems["missing"].append(f"{name} (here {path})")
            continue
        # One number, in as many places as the array has: it takes no memory.
        shape = change(np.broadcast_to(np.float32(0), source.shapes[name])).shape
        if shape != tuple(variable.shape):
            problems["of another shape"].append(
                f"{name} {source.shapes[name]}, expected for {path} "
                f"{tuple(variable.shape)}"
            )
        found[path] = name, change
    used = {name for name, _ in found.values()}
    left = source.shapes.keys() - used - source.skipped.keys()
    problems["unknown"] = [f"{name} {source.shapes[name]}" for name in sorted(left)]
    differences = [
        f"{what}: {shorten(names)}" for what, names in problems.items() if names
    ]
    if differences:
        raise UserError(
            f"These weights are not a {source.format} as this package knows it. "
            f"Arrays {'; '.join(differences)}. Nothing was written."
        )
    return found


def check_model(factory, source):
    """Compares all names and shapes with a model's before it takes memory."""
    model = declare(lambda: build_model(factory, "float32"))
    match_variables(model_variables(model), source)


def model_variables(model):
    """{path without the model's name: variable} of a built model, without dropout's."""
    return {
        path.partition("/")[2]: variable
        for path, variable in named_variables(model.variables).items()
        if not is_random_state(path)
    }


def exported_variables(model):
    """`model_variables` without LoRA's: what `merged_arrays` has."""
    variables = model_variables(model).items()
    return {path: v for path, v in variables if not of_adapter(path)}


def merged_arrays(model):
    """{path without the model's name: array} of a built model, without dropout's.

    A kernel includes what `enable_lora` added to its layer, and so do embeddings.
    """
    arrays = {path: v.numpy() for path, v in exported_variables(model).items()}
    for layer in adapted_layers(model):
        name = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
        own = getattr(layer, f"_{name}")
        a, b = (getattr(layer, f"lora_{name}_{x}").numpy() for x in "ab")
        scale = np.float32(layer.lora_alpha / layer.lora_rank)
        # Not layer.kernel, which has the precision of computing.
        arrays[own_path(own)] = own.numpy() + scale * (a @ b)
    return arrays


def to_float32(name, array):
    """An array of published weights as float32.

    Raises a ValueError if it holds other numbers than floating-point ones, as quantized
    weights do, or NaN, infinity, or a number over float32's range.
    """
    array = np.asarray(array)
    if not (np.issubdtype(array.dtype, np.floating) or array.dtype == _BFLOAT16):
        raise UserError(
            f"{name} has the type {array.dtype}. Expected: float32, float16, bfloat16 "
            "or float64. Quantized weights must be dequantized before they are saved."
        )
    with np.errstate(over="ignore"):
        value = array.astype(np.float32)
    if not np.isfinite(value).all():
        bad = array[~np.isfinite(value)]
        raise UserError(
            f"{name} has {bad.size:,} numbers that are not finite in float32, "
            f"such as {bad[0]}. Save the weights anew from a sound checkpoint."
        )
    return value


def take(model, source):
    """Sets the variables of a `keras.Model` from a `Source`, see `match_variables`.

    Returns {path without the model's name: name}, what came from where. Raises a
    ValueError as `to_float32` does.
    """
    variables = model_variables(model)
    found = match_variables(variables, source)
    for path, (name, change) in found.items():
        value = to_float32(name, source.read(name))
        variables[path].assign(change(value))
    return {path: name for path, (name, _) in found.items()}


def logits_distance(expected, received, batch):
    """The largest difference of two models' logits of a batch, in deviations.

    `expected` is the model whose logits' standard deviation is 1. The head's inputs are
    compared too: a head of zeros gives equal logits to all.
    """
    return np.max(
        [
            _distance(*(model(batch, logits=logits) for model in (expected, received)))
            for logits in (True, False)
        ]
    )


def _distance(expected, received):
    expected, received = (np.array(x, "float64") for x in (expected, received))
    difference = np.abs(expected - received).max()
    with np.errstate(divide="ignore"):
        return difference / expected.std() if difference else 0.0
