"""A SavedModel of `remixer_tf export` as a served model. It needs TensorFlow alone."""

import os
import time

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  operations of the tokenizer
from tensorflow.core.protobuf import saved_model_pb2

from remixer_tf.errors import UserError
from remixer_tf.server.limits import invalid
from remixer_tf.server.models import EXPORT_FILE, export_version
from remixer_tf.server.served import GENERATE, Served
from remixer_tf.server.signatures import IMAGE, NEEDED, Signature, Tensor

# Ranges of settings. The export checks them too, for a whole batch.
_RANGES = {
    "max_length": (1, None),
    "temperature": (0.0, None),
    "top_k": (0, None),
    "top_p": (0.0, 1.0),
}
_WARM = b"A question ."


class ServedExport(Served):
    """The SavedModel in a folder. Called in its thread; arguments as `ServedRun`."""

    platform = "tensorflow_savedmodel"
    kind = "SavedModel"

    def __init__(self, folder, name, limits, thread, sizes):
        super().__init__(name, folder, limits, thread)
        self.sizes = sizes
        self.version = export_version(folder)
        try:
            self._loaded = tf.saved_model.load(folder)
            defaults = _defaults(folder)
        except (OSError, ValueError, tf.errors.OpError, KeyError) as error:
            text = " ".join(str(error).split())
            raise UserError(f"{folder} cannot be loaded: {text:.300}") from None
        for key, function in self._loaded.signatures.items():
            self.signatures[key] = _signature(
                function, defaults.get(key, {}), self._computed(key, function), sizes
            )
        if not self.signatures:
            raise UserError(f"{folder} has no signatures: it is no export of a model.")
        if self.default not in self.signatures:
            self.default = next(iter(self.signatures))
        default = self.signatures[self.default]
        if GENERATE not in self.signatures and _writes(default):
            self.signatures[GENERATE] = default
        if "classify_bytes" in self.signatures:
            # An image is as large as it is: each is computed by itself.
            by_bytes = self.signatures["classify_bytes"]._replace(sizes=(1,))
            self.signatures["classify"] = by_bytes

    def _computed(self, key, function):
        outputs = function.structured_outputs

        def compute(rows):
            names = function.structured_input_signature[1]
            columns = {
                name: _column([row[name] for row in rows], spec)
                for name, spec in names.items()
            }
            self.compiles(key, *(tuple(x.shape) for x in columns.values()))
            found = {k: x.numpy() for k, x in function(**columns).items()}
            return [{k: found[k][i] for k in outputs} for i in range(len(rows))]

        return compute

    def _warm_up(self, say):
        start = time.monotonic()
        most = self.sizes[-1]
        for signature in self.signatures.values():
            row = {name: _example(name, x) for name, x in signature.inputs.items()}
            for size in signature.sizes:
                try:
                    signature.compute([row] * size)
                except tf.errors.InvalidArgumentError as error:
                    if size == self.sizes[0]:
                        raise self.refusal(error) from None
                    most = min(most, max(x for x in self.sizes if x < size))
                    break  # Its own limit of rows is less.
        if most < self.sizes[-1]:
            self.sizes = tuple(x for x in self.sizes if x <= most)
            for key, signature in self.signatures.items():
                if len(signature.sizes) > 1:
                    self.signatures[key] = signature._replace(sizes=self.sizes)
        say(f"{self.name}: warmed up in {time.monotonic() - start:.1f} s")

    async def questions(self, texts, options):
        self.signature(GENERATE)
        signature = self.signatures[GENERATE]
        if not options and _writes(self.signatures[self.default]):
            signature = self.signatures[self.default]
        for name in options:
            if name not in signature.inputs:
                takes = ", ".join(x for x in signature.inputs if x != "inputs")
                raise invalid(
                    f"The export holds one search, which takes no {name}. It takes: "
                    f"{takes or 'no options'}."
                )
        given = {
            name: np.asarray(value, signature.inputs[name].dtype)
            for name, value in options.items()
        }
        defaults = {name: x.default for name, x in signature.inputs.items()}
        return signature, [defaults | given | {"inputs": text} for text in texts]


def _writes(signature):
    """Whether a signature answers texts with texts."""
    return "inputs" in signature.inputs and {"outputs", "scores"} <= {
        *signature.outputs
    }


def _signature(function, defaults, compute, sizes):
    """The `Signature` of a SavedModel's function."""
    inputs = {}
    for name, spec in function.structured_input_signature[1].items():
        low, high = _RANGES.get(name, (None, None))
        default = defaults.get(name, NEEDED)
        inputs[name] = Tensor(_dtype(spec), _of_a_row(spec), default, low, high)
    order = sorted(inputs, key=lambda name: inputs[name].default is not NEEDED)
    outputs = {
        name: Tensor(_dtype(spec), _of_a_row(spec))
        for name, spec in function.structured_outputs.items()
    }

    def group(row):
        return tuple(np.shape(row[name]) for name in inputs)

    return Signature(
        {name: inputs[name] for name in order}, outputs, compute, sizes, group
    )


def _of_a_row(spec):
    """The shape behind the rows; texts and settings take any, and have none."""
    return () if spec.shape.rank is None else tuple(spec.shape[1:])


def _dtype(spec):
    return "string" if spec.dtype == tf.string else spec.dtype.name


def _column(values, spec):
    if spec.dtype == tf.string:
        return tf.constant(values, tf.string)
    return tf.constant(np.stack(values), spec.dtype)


def _example(name, tensor):
    if tensor.default is not NEEDED:
        return tensor.default
    if name == IMAGE:
        return tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
    if tensor.dtype == "string":
        return _WARM
    return np.zeros([n or 8 for n in tensor.shape], tensor.dtype)


def _defaults(folder):
    """Returns {signature: {input: value of one row}}, what requests may leave out."""
    file = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, EXPORT_FILE), "rb") as opened:
        file.ParseFromString(opened.read())
    (graph,) = [x for x in file.meta_graphs if "serve" in x.meta_info_def.tags]
    return {
        name: {
            key: tf.make_ndarray(value).reshape(-1)[0]
            for key, value in signature.defaults.items()
        }
        for name, signature in graph.signature_def.items()
    }
