"""Weights in 8 bits: their integers and scales, and files that hold them."""

import os

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.exporting import check_export
from remixer_tf.serving import litert, onnx_graph, onnx_runtime
from remixer_tf.serving.int8 import matrix_shapes, quantize, shared_axes
from remixer_tf.serving.stored_weights import StoredWeights
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_decoder

INPUTS = np.random.default_rng(0).integers(2, VOCAB_SIZE, (3, 8)).astype("int32")


def test_integers_and_scales_by_hand():
    # Columns reach 1.27, 2.54 and 0: steps of 0.01, of 0.02, and of anything.
    weight = [[1.27, 0.30, 0.0], [-0.404, -2.54, 0.0]]
    integers, scale = quantize(weight, axis=0)
    assert integers.dtype == np.int8
    np.testing.assert_allclose(scale, [[0.01, 0.02, 1.0]], rtol=1e-6)
    assert integers.tolist() == [[127, 15, 0], [-40, -127, 0]]
    integers, scale = quantize(weight, axis=-1)
    np.testing.assert_allclose(scale, [[0.01], [0.02]], rtol=1e-6)
    assert integers.tolist() == [[127, 30, 0], [-20, -127, 0]]


@pytest.mark.parametrize("shape", [(40, 8), (3, 8, 12)])
def test_errors_are_half_a_step_at_most(shape):
    weight = np.random.default_rng(0).normal(size=shape).astype("float32")
    integers, scale = quantize(weight, axis=-2)
    assert np.abs(integers.astype(int)).max() == 127
    assert scale.shape == (*shape[:-2], 1, shape[-1])
    assert (np.abs(weight - scale * integers) <= scale / 2 * (1 + 1e-5)).all()


def test_which_weights_become_integers():
    model = tiny_decoder("smlp")  # mixing matrices, experts and two kinds of routers
    eight = shared_axes(model)
    rest = {w.path.split("/")[-1] for w in model.weights if w.path not in eight}
    assert rest == {"gamma", "beta", "bias", "mixing_matrix", "spatial_bias", "kernel"}
    kernels = [w.path for w in model.weights if w.path.endswith("kernel")]
    assert {p.split("/")[-2] for p in kernels if p not in eight} == {"router"}
    assert {p.split("/")[-1] for p in eight} == {"embeddings", "kernel", "wi", "wo"}
    shapes = {(40, 8), (8, 12), (6, 8)}  # tokens, W_1 and W_2 of the gMLPs
    assert matrix_shapes(model) == shapes | {shape[::-1] for shape in shapes}


def test_a_weight_that_is_not_finite_is_named():
    model = tiny_decoder("gmlp")
    kernel = next(w for w in model.weights if w.path.endswith("wi/kernel"))
    kernel.assign(np.full(kernel.shape, np.inf))
    with pytest.raises(UserError, match="int8 cannot hold .*wi/kernel"):
        StoredWeights(model, "int8")


@pytest.mark.parametrize(
    "format, weights, message",
    [
        ("onnx", "int8_weight_only", "onnx stores weights as float32 or int8"),
        (
            "saved_model",
            "int8_weight_only",
            "as float32 or bfloat16 or float16 or int8",
        ),
        ("huggingface", "int8", "huggingface stores weights as float32. Received"),
        ("litert", "int4", "as float32 or int8 or int8_weight_only"),
    ],
)
def test_a_type_that_a_format_does_not_store(format, weights, message):
    with pytest.raises(UserError, match=message):
        check_export(format, weights)


def test_a_saved_graph_of_integers(tmp_path):
    model = tiny_decoder("gmlp", vocab_size=20_000)
    randomize(model)
    sizes, logits = {}, {}
    for weights in ("float32", "int8"):
        module = tf.Module()
        module.weights = StoredWeights(model, weights)
        spec = tf.TensorSpec([None, 8], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def compute(inputs, weights=module.weights):
            with weights.reading():
                return {"y": model({"decoder_input_tokens": inputs})}

        sizes[weights] = module.weights.num_bytes
        logits[weights] = compute(tf.constant(INPUTS))["y"].numpy()
    tf.saved_model.save(module, str(tmp_path), {"compute": compute})
    # The file has a byte for each number of a matrix, and 4 for each scale: d_model is
    # 8, so 12 bytes for 8 numbers.
    file = tmp_path / "variables" / "variables.data-00000-of-00001"
    assert os.path.getsize(file) == pytest.approx(sizes["int8"], rel=0.02)
    assert sizes["int8"] / sizes["float32"] == pytest.approx(12 / 32, rel=0.02)
    # The graph holds no float32 copy, as folded constants would be.
    assert os.path.getsize(tmp_path / "saved_model.pb") < sizes["float32"] / 2
    loaded = tf.saved_model.load(str(tmp_path)).signatures["compute"]
    received = loaded(inputs=tf.constant(INPUTS))["y"].numpy()
    np.testing.assert_allclose(received, logits["int8"], rtol=1e-5, atol=1e-5)
    error = np.abs(received - logits["float32"]).max()
    assert 0 < error < 0.05 * logits["float32"].std()


class Product(tf.Module):
    """`(T[ids] + 1) W`, in a loop that adds it twice, as a search has its weights."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable([[1.27, 0.5, -0.25], [0.0, 2.54, 0.02]] * 5)
        self.kernel = tf.Variable([[1.27, 0.0], [0.4, -2.54], [0.12, 1.0]])
        spec = tf.TensorSpec([1, 2], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            def add(step, y):
                return step + 1, y + (tf.gather(self.table, inputs) + 1) @ self.kernel

            zeros = tf.constant(0), tf.zeros([1, 2, 2])
            return {"y": tf.while_loop(lambda n, _: n < 2, add, zeros)[1]}

        self.function = function


@pytest.mark.parametrize(
    "runtime, weights",
    [
        (litert, "int8_weight_only"),
        (litert, "int8"),
        (onnx_runtime, "int8"),
    ],
    ids=["litert_weight_only", "litert", "onnx"],
)
def test_a_product_by_hand(runtime, weights, tmp_path):
    product = Product()
    path = str(tmp_path / runtime.FILE)
    runtime.convert(product, product.function, path)
    runtime.quantize(path, {(10, 3), (3, 2), (2, 3)}, weights)
    ids = np.array([[0, 3]], "int32")
    y = runtime.load(path)(inputs=ids)["y"]
    # Rows of the table and columns of the kernel have steps of 0.01 and 0.02: all
    # numbers are multiples of them. 2 (2.27, 1.5, 0.75) W and 2 (1, 3.54, 1.02) W.
    exact = 2 * np.array([[[3.5729, -3.06], [2.8084, -7.9716]]])
    # Rounding 0 to 3.54 to 8 bits errs by 0.007 at most, times 2 (0 + 2.54 + 1).
    tolerance = 1e-5 if weights == "int8_weight_only" else 0.05
    np.testing.assert_allclose(y, exact, atol=tolerance)
    content = (tmp_path / runtime.FILE).read_bytes()
    for weight in (product.table, product.kernel):
        floats = weight.numpy()
        assert floats.tobytes() not in content
        assert floats.T.tobytes() not in content


class Tied(tf.Module):
    """`T[ids] T^T` in a loop, as tied logits."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable([[1.27, 0.5, -0.25], [0.0, 2.54, 0.02]] * 5)
        spec = tf.TensorSpec([1, 2], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            def add(step, y):
                rows = tf.gather(self.table, inputs)
                return step + 1, y + rows @ tf.transpose(self.table)

            zeros = tf.constant(0), tf.zeros([1, 2, 10])
            return {"y": tf.while_loop(lambda n, _: n < 2, add, zeros)[1]}

        self.function = function


@pytest.mark.parametrize("runtime", [litert, onnx_runtime])
def test_tied_logits_read_the_same_integers(runtime, tmp_path):
    tied = Tied()
    path = str(tmp_path / runtime.FILE)
    runtime.convert(tied, tied.function, path)
    runtime.quantize(path, {(10, 3), (3, 10)}, "int8")
    y = runtime.load(path)(inputs=np.array([[0, 3]], "int32"))["y"]
    # Twice the products of (1.27, 0.5, -0.25) and (0, 2.54, 0.02) with each other.
    exact = 2 * np.array([[1.9254, 1.265] * 5, [1.265, 6.452] * 5])[None]
    np.testing.assert_allclose(y, exact, atol=0.08)
    content = (tmp_path / runtime.FILE).read_bytes()
    floats = tied.table.numpy()
    assert floats.tobytes() not in content
    assert floats.T.tobytes() not in content
    assert content.count(np.int8([127, 50, -25, 0, 127, 1]).tobytes() * 5) == 1


def test_a_shape_of_positions_too_stays_float32():
    """24 positions and 24 tokens: both tables are [24, 8]."""
    assert (40, 8) in matrix_shapes(tiny_decoder("bert"))
    shapes = matrix_shapes(tiny_decoder("bert", vocab_size=24))
    assert shapes and not shapes & {(24, 8), (8, 24)}


def test_loops_keep_what_nested_names_hide():
    """By hand: y = x, then twice y = y W; the inner loop calls its own input W."""
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime import InferenceSession

    def info(name, shape=(1,)):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def flag(name):
        return helper.make_tensor_value_info(name, TensorProto.BOOL, ())

    count = helper.make_tensor_value_info("i", TensorProto.INT64, ())
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["c2"], ["d2"]),
            helper.make_node("Mul", ["W", "w"], ["z"]),
        ],
        "inner",
        [helper.make_tensor_value_info("j", TensorProto.INT64, ()), flag("c2")]
        + [info("W")],
        [flag("d2"), info("z")],
    )
    outer = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Identity", ["w"], ["w_out"]),
            helper.make_node("Loop", ["n", "", "y"], ["y_out"], body=inner),
        ],
        "outer",
        [count, flag("c"), info("w"), info("y")],
        [flag("d"), info("w_out"), info("y_out")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "W", "x"], ["W_end", "end"], body=outer)],
        "whole",
        [info("x")],
        [info("end")],
        [
            numpy_helper.from_array(np.array(2), "n"),
            numpy_helper.from_array(np.float32([3.0]), "W"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx_graph.read_from_outside(model.graph)
    (y,) = InferenceSession(model.SerializeToString()).run(None, {"x": [5.0]})
    assert y == [5 * 3**4]
