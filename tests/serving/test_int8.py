"""Weights in 8 bits: their integers and scales, and files that hold them."""

import functools
import itertools
import os
import types

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from remixer_tf import exporting
from remixer_tf.configuration import Configuration, read
from remixer_tf.decoding import T5Rules, beam_search
from remixer_tf.errors import UserError
from remixer_tf.exporting import check_export, export_run
from remixer_tf.layers import Context, DecodeState, LengthMixing, RemixerBlock
from remixer_tf.models import EncoderOnly, ImageClassifier
from remixer_tf.run import Run
from remixer_tf.serving import converted, litert, onnx_graph, onnx_runtime
from remixer_tf.serving.int8 import Matrices, matrices, quantize, shared_axes
from remixer_tf.serving.stored_weights import StoredWeights
from remixer_tf.serving.token_graph import TokenGraph
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_decoder, tiny_model

RUNTIMES = pytest.mark.parametrize(
    "runtime", [litert, onnx_runtime], ids=["litert", "onnx"]
)
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
    assert rest == {"gamma", "beta", "bias", "spatial_bias", "kernel"}
    kernels = [w.path for w in model.weights if w.path.endswith("kernel")]
    assert {p.split("/")[-2] for p in kernels if p not in eight} == {"router"}
    names = {"embeddings", "kernel", "wi", "wo", "mixing_matrix"}
    assert {p.split("/")[-1] for p in eight} == names
    randomize(model)
    in_files = {w.path for w in model.weights if w.numpy() in matrices(model)}
    assert {p.split("/")[-1] for p in in_files} == {"embeddings", "kernel"}


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    model = tiny_decoder("gmlp")
    kernel = next(w for w in model.weights if w.path.endswith("wi/kernel"))
    kernel.assign(np.full(kernel.shape, np.inf))
    with pytest.raises(UserError, match="wi/kernel has values that are not finite"):
        StoredWeights(model, "int8")
    graph = TokenGraph(model, input_length=4, max_length=4)
    folder = str(tmp_path / "new")
    for name, weights in itertools.product(("litert", "onnx"), ("float32", "int8")):
        with pytest.raises(UserError, match="wi/kernel has values that are not finite"):
            converted.export_tokens(graph, None, name, folder, weights)
    assert not os.path.exists(folder)


@pytest.mark.parametrize(
    ("composition", "product"),
    [("full", True), ("multiplicative", True), ("none", False), ("subtractive", False)],
)
def test_a_factor_is_wide_where_activations_are_multiplied(composition, product):
    """Only X_S * X' multiplies two activations ("Remixers", section 2.1, step 3)."""
    block = RemixerBlock(max_length=4, causal=False, composition=composition)
    block.build((None, None, 8))
    model = types.SimpleNamespace(
        weights=block.weights, _flatten_layers=lambda: [*block._flatten_layers()]
    )
    found = matrices(model).with_wide_factor
    assert (block.wo._kernel.numpy() in found) == product


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_lines_of_an_export_name_the_type_of_its_weights(
    weights, tmp_path, monkeypatch
):
    class Fake(Configuration):
        def call(self, part, *args, **kwargs):
            return types.SimpleNamespace(tokens=None), 1

    configuration = Fake(read([], ["text_to_text.weights = 'bfloat16'"]).bindings)
    monkeypatch.setattr(converted, "export_tokens", lambda *args: 0.5)
    run = types.SimpleNamespace(dtype_policy="mixed_bfloat16", get_task=lambda: None)
    run.in_float32 = lambda: run
    to_onnx = exporting.FORMATS["onnx"]
    lines = to_onnx(configuration, run, None, None, str(tmp_path), weights=weights)
    policy, *rest = lines
    assert (
        policy == "dtype_policy is mixed_bfloat16 in the run, and float32 in this file"
    )
    expected = {
        "float32": "weights is bfloat16 in the run, and float32 in this file",
        "int8": "0.0 MB, weights in int8: 50% of float32's tokens for random questions",
    }
    assert rest == [expected[weights]]


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


@pytest.mark.parametrize("format", ["huggingface", "litert", "onnx"])
@pytest.mark.parametrize("model", [EncoderOnly, ImageClassifier])
def test_a_format_for_text_refuses_other_models(format, model, tmp_path):
    run = Run(model)
    with pytest.raises(UserError, match=f"{format} is for .*: {model.__name__}. Exp"):
        export_run(Configuration({}), run, None, str(tmp_path / "1"), format=format)


@pytest.mark.slow
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
    runtime.convert(product, [product.function], path)
    weight_arrays = [product.table.numpy(), product.kernel.numpy()]
    runtime.quantize(path, Matrices(weight_arrays), weights)
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


def test_a_factor_of_a_wide_range_is_not_rounded(tmp_path):
    product = Product()
    path = str(tmp_path / litert.FILE)
    litert.convert(product, [product.function], path)
    table, kernel = product.table.numpy(), product.kernel.numpy()
    litert.quantize(path, Matrices([table, kernel], with_wide_factor=[kernel]), "int8")
    y = litert.load(path)(inputs=np.array([[0, 3]], "int32"))["y"]
    exact = 2 * np.array([[[3.5729, -3.06], [2.8084, -7.9716]]])  # as above
    np.testing.assert_allclose(y, exact, atol=1e-5)
    assert kernel.T.tobytes() not in (tmp_path / litert.FILE).read_bytes()


def test_the_factor_of_w_3_is_wide_in_remixers_encoder():
    model = tiny_model("remixer")
    kernels = {w.path: w.numpy() for w in model.weights if w.ndim == 2}
    wide = matrices(model).with_wide_factor
    found = [path for path, kernel in kernels.items() if kernel in wide]
    expected = [
        path for path in kernels if "/encoder/" in path and "remixer/wo" in path
    ]
    assert found == expected != []
    assert not matrices(tiny_model("t5_1_1")).with_wide_factor


class Tied(tf.Module):
    """`(T[ids] + 1) T^T`: logits from the table of an embedding, once or in a loop."""

    def __init__(self, in_loop):
        super().__init__()
        self.table = tf.Variable([[1.27, 0.5, -0.25], [0.0, 2.54, 0.02]] * 5)
        spec = tf.TensorSpec([1, 2], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            def compute(step, y):
                rows = tf.gather(self.table, inputs) + 1
                return step + 1, y + rows @ tf.transpose(self.table)

            start = tf.constant(0), tf.zeros([1, 2, 10])
            if in_loop:
                return {"y": tf.while_loop(lambda n, _: n < 1, compute, start)[1]}
            return {"y": compute(*start)[1]}

        self.function = function


@pytest.mark.parametrize("in_loop", [True, False], ids=["in_a_loop", "once"])
@RUNTIMES
def test_logits_from_an_embedding_read_the_same_integers(runtime, in_loop, tmp_path):
    tied = Tied(in_loop)
    path = str(tmp_path / runtime.FILE)
    runtime.convert(tied, [tied.function], path)
    table = tied.table.numpy()
    runtime.quantize(path, Matrices([table]), "int8")
    y = runtime.load(path)(inputs=np.array([[0, 1]], "int32"))["y"]
    # (2.27, 1.5, 0.75) and (1, 3.54, 1.02) times rows 0 and 1 of the table.
    exact = [[[3.4454, 3.825] * 5, [2.785, 9.012] * 5]]
    np.testing.assert_allclose(y, exact, atol=0.05)
    content = (tmp_path / runtime.FILE).read_bytes()
    integers = np.array([[127, 50, -25], [0, 127, 1]] * 5, "int8")  # steps 0.01, 0.02
    if runtime is onnx_runtime:
        integers = (integers.astype(int) + 128).astype("uint8")
    assert [content.count(x.tobytes()) for x in (integers, integers.T)] == [1, 0]
    assert [content.count(x.tobytes()) for x in (table, table.T)] == [0, 0]


class Kernel(tf.Module):
    """`x W`, of two positions."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable([[1.27, 0.4], [-0.4, 1.27], [0.5, 0.2]])
        spec = tf.TensorSpec([None, 2, 3], tf.float32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            return {"y": inputs @ self.kernel}

        self.function = function


def test_onnx_rounds_each_position_by_itself(tmp_path):
    path = str(tmp_path / onnx_runtime.FILE)
    module = Kernel()
    onnx_runtime.convert(module, [module.function], path)
    onnx_runtime.quantize(path, Matrices([module.kernel.numpy()]), "int8")
    x = np.array([[[500.0, 100.0, -1000.0], [0.1, 0.2, 0.3]]], "float32")
    y = onnx_runtime.load(path)(inputs=x)["y"]
    exact = np.array([[[95.0, 127.0], [0.197, 0.354]]])
    largest = np.abs(x).max(axis=-1, keepdims=True)
    # Half a step of a position is largest / 254, and columns' absolute sums reach 2.17.
    # With one scale for both, of 1000 / 127, the second position would be 0.
    np.testing.assert_allclose(y / largest, exact / largest, atol=0.01)


class Others(tf.Module):
    """A matrix of a kernel's shape, and look-ups of columns and of rows' numbers."""

    def __init__(self):
        super().__init__()
        self.kernel, self.columns, self.numbers, self.mixing = (
            tf.Variable(
                np.random.default_rng(seed).normal(size=(4, 4)), dtype="float32"
            )
            for seed in range(4)
        )
        spec = tf.TensorSpec([4, 4], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            x = tf.cast(inputs, tf.float32)
            return {
                "kernel": x @ self.kernel,
                "columns": tf.gather(self.columns, inputs[0], axis=1),
                "numbers": tf.gather(self.numbers, inputs, axis=1, batch_dims=1),
                "mixing": x @ self.mixing,
            }

        self.function = function


@RUNTIMES
def test_what_stays_float32(runtime, tmp_path):
    others = Others()
    path = str(tmp_path / runtime.FILE)
    runtime.convert(others, [others.function], path)
    weights = others.kernel, others.columns, others.numbers
    runtime.quantize(path, Matrices([w.numpy() for w in weights]), "int8")
    ids = np.array([[0, 3, 2, 1], [1, 1, 0, 2], [3, 0, 0, 1], [2, 3, 1, 0]], "int32")
    received = runtime.load(path)(inputs=ids)
    exact = {
        "columns": others.columns.numpy()[:, ids[0]],
        "numbers": np.take_along_axis(others.numbers.numpy(), ids, axis=1),
        "mixing": ids @ others.mixing.numpy(),
    }
    for name, expected in exact.items():
        np.testing.assert_allclose(received[name], expected, rtol=1e-5, err_msg=name)
    product = ids @ others.kernel.numpy()
    np.testing.assert_allclose(received["kernel"], product, atol=0.1)
    assert np.abs(received["kernel"] - product).max() > 1e-4


class TwoGraphs(tf.Module):
    """`x W` outside of a loop and in it, with scales of W unlike each other."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.exp(tf.reshape(tf.linspace(0.0, 1.0, 15), [3, 5])))
        spec = tf.TensorSpec([2, 3], tf.float32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            def add(step, y):
                return step + 1, y + (inputs + y[:, :3]) @ self.kernel

            start = tf.constant(0), inputs @ self.kernel
            return {"y": tf.while_loop(lambda n, _: n < 2, add, start)[1]}

        self.function = function


def test_scales_of_two_graphs_are_stored_once(tmp_path):
    module = TwoGraphs()
    path = str(tmp_path / litert.FILE)
    litert.convert(module, [module.function], path)
    kernel = module.kernel.numpy()
    litert.quantize(path, Matrices([kernel]), "int8")
    scales = np.abs(kernel).max(axis=0) / np.float32(127)
    assert (tmp_path / litert.FILE).read_bytes().count(scales.tobytes()) == 1


def test_attention_of_one_position_multiplies_keys_first(tmp_path):
    """XNNPACK copies a product's second factor."""
    specs = [
        tf.TensorSpec([1, 3, n, 4], tf.float32, name=name)
        for n, name in ((1, "queries"), (5, "keys"))
    ]

    @tf.function(input_signature=specs, autograph=False)
    def function(queries, keys):
        return {"y": tf.matmul(queries, keys, transpose_b=True)}

    path = str(tmp_path / litert.FILE)
    litert.convert(tf.Module(), [function], path)
    litert.quantize(path, Matrices([]), "int8")
    rng = np.random.default_rng(0)
    queries, keys = (
        rng.normal(size=spec.shape.as_list()).astype("float32") for spec in specs
    )
    y = litert.load(path)(queries=queries, keys=keys)["y"]
    np.testing.assert_allclose(y, queries @ keys.swapaxes(2, 3), atol=1e-6)
    model = schema.ModelT.InitFromPackedBuf((tmp_path / litert.FILE).read_bytes(), 0)
    shapes = [
        [graph.tensors[number].shape.tolist() for number in operator.inputs]
        for graph in model.subgraphs
        for operator in graph.operators
        if operator.builtinOptionsType == schema.BuiltinOptions.BatchMatMulOptions
    ]
    assert shapes == [[[1, 3, 5, 4], [1, 3, 4, 1]]]


class OneBuffer(tf.Module):
    """`x A B`, with A `[2, 3]` and B `[3, 2]` of ones: LiteRT stores the ones once."""

    def __init__(self):
        super().__init__()
        self.a, self.b = tf.Variable(tf.ones([2, 3])), tf.Variable(tf.ones([3, 2]))
        spec = tf.TensorSpec([2, 2], tf.float32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            return {"y": tf.nn.relu(inputs @ self.a) @ self.b}

        self.function = function


def test_two_matrices_of_one_buffer(tmp_path):
    module = OneBuffer()
    path = str(tmp_path / litert.FILE)
    litert.convert(module, [module.function], path)
    litert.quantize(path, Matrices([np.ones([2, 3], "float32")]), "int8")
    y = litert.load(path)(inputs=np.array([[1, 2], [-1, 0]], "float32"))["y"]
    np.testing.assert_allclose(y, [[9, 9], [0, 0]], rtol=0.01)


def test_other_constants_that_become_rows_of_integers():
    rng = np.random.default_rng(0)
    stack = rng.normal(size=[2, 32, 32]).astype("float32")
    matrices = Matrices([], [lambda size: stack if size == stack.size else None])
    for shape in [(2, 32, 32), (1, 2048), (2, 1, 32, 32)]:
        integers, scale = matrices.rows(stack.reshape(shape))
        assert (integers.shape, scale.shape) == ((64, 32), (64, 1))
        error = np.abs(integers * scale - stack.reshape(64, 32))
        assert (error <= scale / 2 * (1 + 1e-5)).all()
    assert matrices.rows(stack.transpose(0, 2, 1)) is None
    assert matrices.rows(stack[0]) is None
    # Without a stack: integers hold zeros and masks without error, but not a bias.
    mask = np.where(np.tri(64), 0, -1e9).astype("float32")
    for exact in (mask, np.zeros([64, 64], "float32")):
        integers, scale = matrices.rows(exact)
        np.testing.assert_allclose(integers * scale, exact, rtol=1e-6)
    assert matrices.rows(mask + np.linspace(0, 3, 64, dtype="float32")) is None
    assert matrices.rows(mask[:8, :8]) is None  # too small to gain


class Mixed(tf.Module):
    """All rows of `softmax(H) X`, and one that decoding reads; 128 positions."""

    def __init__(self, layer):
        super().__init__()
        layer.build((None, None, 4))
        randomize(layer)
        self.weights = [weight.value for weight in layer.weights]
        specs = [
            tf.TensorSpec([1, 128, 4], tf.float32, name="x"),
            tf.TensorSpec([], tf.int32, name="step"),
        ]

        @tf.function(input_signature=specs, autograph=False)
        def function(x, step):
            context, state = Context(), DecodeState(step, tf.range(128))
            cache = layer.init_cache(1, 128, context)
            y, cache = layer.prefill(x, cache, context, state)
            here = tf.gather(x, [step], axis=1)
            row, _ = layer.decode_step(here, cache, context, state)
            return {"y": y, "row": row}

        self.function = function


@RUNTIMES
def test_mixing_matrices_are_integers_as_they_are_and_after_the_softmax(
    runtime, tmp_path
):
    layer = LengthMixing(2, softmax=True, max_length=128, causal=True)
    module = Mixed(layer)
    path = str(tmp_path / runtime.FILE)
    runtime.convert(module, [module.function], path)
    float32 = os.path.getsize(path)
    x = np.random.default_rng(0).normal(size=[1, 128, 4]).astype("float32")
    given = {"x": x, "step": np.array(100, "int32")}
    exact = runtime.load(path)(**given)
    runtime.quantize(path, matrices(layer), "int8")
    received = runtime.load(path)(**given)

    # Two heads, H and softmax(H): 4 matrices, of 4 bytes a number or of 1, and a scale
    # of 4 bytes for each of 128 rows. Operators and names take less than 10 kB.
    assert 4 * 128 * 128 * 4 < float32 < 4 * 128 * 128 * 4 + 10_000
    assert os.path.getsize(path) < 4 * (128 * 128 + 4 * 128) + 10_000
    assert os.path.getsize(path) <= 0.30 * float32

    h = layer.mixing_matrix.numpy()
    m = np.exp(np.where(np.tri(128), h, -np.inf))
    m /= m.sum(axis=-1, keepdims=True)
    x = np.abs(x[0].reshape(128, 2, 2))  # position, head, channel
    # Each number of a row errs by half a step at most, which is its largest / 254.
    errors = np.tri(128) * m.max(axis=-1, keepdims=True) / 254
    bound = np.einsum("hts,shc->thc", errors, x).reshape(128, 4)
    assert (np.abs(received["y"] - exact["y"])[0] <= bound + 1e-5).all()
    # Errors up to d in H change softmax(H) by a factor of exp(2 d) at most.
    d = np.abs(h[:, 100]).max() / 254
    bound = (np.exp(2 * d) - 1) * np.einsum("hs,shc->hc", m[:, 100], x).ravel()
    assert (np.abs(received["row"] - exact["row"])[0, 0] <= bound + 1e-5).all()
    np.testing.assert_allclose(exact["row"][0, 0], exact["y"][0, 100], atol=1e-5)
    assert all((received[name] != exact[name]).any() for name in exact)


@pytest.mark.slower
@RUNTIMES
def test_a_remixer_that_searches_takes_three_tenths_of_its_size(runtime, tmp_path):
    # The decoder's H has 1,024 x 1,024 numbers, 4.2 MB: over 90% of the file.
    model = tiny_model("remixer", max_length=1024, num_layers=1)
    search = functools.partial(beam_search, beams=4, rules=T5Rules())
    graph = TokenGraph(
        model,
        input_length=6,
        max_length=8,
        decode_fn=search,
        jit_compile=False,
    )
    function = graph.function(runtime.BATCHES[0])
    path = str(tmp_path / runtime.FILE)
    runtime.convert(graph, [function], path)
    float32 = os.path.getsize(path)
    assert 4 * 1024**2 < float32 < 4 * 1024**2 / 0.9
    runtime.quantize(path, graph.weights.matrices(), "int8")
    assert os.path.getsize(path) <= 0.30 * float32
    examples = converted.example_tokens(6, VOCAB_SIZE)
    assert converted.token_agreement(runtime, path, function, examples) > 0.5


def _turns(y, w, calls, other=()):
    """The body of a loop that hands `w` on, as `<w>_out`, and computes `<y>_out`."""
    from onnx import TensorProto, helper

    def value(name, kind="FLOAT", shape=(2, 2)):
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    hand_on = [
        helper.make_node("Identity", [name], [f"{name}_out"]) for name in (w, f"{w}_go")
    ]
    inputs = [value(f"{w}_turn", "INT64", []), value(f"{w}_go", "BOOL", [])]
    outputs = [value(f"{w}_go_out", "BOOL", []), value(f"{y}_out"), value(f"{w}_out")]
    return helper.make_graph(
        [*calls, *hand_on], "body", [*inputs, value(y), value(w), *other], outputs
    )


def _nodes_of_loops(case):
    """Nodes of `z`, 2 or 4 times `x = x W` as `case` says."""
    from onnx import TensorProto, helper

    product = helper.make_node("MatMul", ["y", "w"], ["y_out"])
    inputs = ["n", "true", "x", "W"]
    if case == "nested":
        inner = _turns("v", "u", [helper.make_node("MatMul", ["v", "u"], ["v_out"])])
        product = helper.make_node(
            "Loop", ["n", "true", "y", "w"], ["y_out", "u_end"], body=inner
        )
    if case == "shadowed":  # W inside is what the inner loop computes.
        inner = _turns("W", "u", [helper.make_node("MatMul", ["W", "u"], ["W_out"])])
        product = helper.make_node(
            "Loop", ["n", "true", "y", "w"], ["y_out", "u_end"], body=inner
        )
    loop = helper.make_node(
        "Loop", inputs, ["y_end", "w_end"], body=_turns("y", "w", [product])
    )
    if case == "read_in_a_branch":
        value = helper.make_tensor_value_info("branch", TensorProto.FLOAT, [2, 2])
        branch = helper.make_node("MatMul", ["y_end", "w_end"], ["branch"])
        graph = helper.make_graph([branch], "branch", [], [value])
        branches = {"then_branch": graph, "else_branch": graph}
        return [loop, helper.make_node("If", ["true"], ["z"], **branches)]
    return [loop, helper.make_node("MatMul", ["y_end", "w_end"], ["z"])]


@pytest.mark.parametrize(
    "case, power", [("nested", 5), ("shadowed", 5), ("read_in_a_branch", 3), ("", 3)]
)
def test_loops_read_from_outside(case, power, tmp_path):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2])

    matrix = np.array([[0.5, -1.0], [2.0, 0.25]], "float32")
    constants = {"n": np.array(2), "true": np.array(True), "W": matrix}
    graph = helper.make_graph(
        _nodes_of_loops(case),
        "graph",
        [value("x")],
        [value("z"), value("w_end")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", onnx_runtime.OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx_graph.read_from_outside(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(tmp_path / "model.onnx"))
    x = np.array([[1.0, 2.0], [0.0, 1.0]], "float32")
    received = onnx_runtime.load(str(tmp_path / "model.onnx"))(x=x)
    expected = x @ np.linalg.matrix_power(matrix, power)
    np.testing.assert_allclose(received["z"], expected, rtol=1e-5)
    np.testing.assert_array_equal(received["w_end"], matrix)
    inner = [node for g in onnx_graph.graphs_of(model.graph) for node in g.node]
    loops = [node for node in inner if node.op_type == "Loop"]
    left = {"shadowed": [4, 3]}.get(case, [3] * len(loops))
    assert [len(node.input) for node in loops] == left


def test_a_constant_is_not_kept_for_its_shape(tmp_path):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    nodes = [
        helper.make_node("Shape", ["w"], ["shape"]),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    w = numpy_helper.from_array(np.zeros([2, 3], "float32"), "w")
    graph = helper.make_graph(nodes, "graph", [x], [y], [w])
    opset = helper.make_opsetid("", onnx_runtime.OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx_graph.compute_shapes(model.graph)
    assert not model.graph.initializer
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(tmp_path / "model.onnx"))
    received = onnx_runtime.load(str(tmp_path / "model.onnx"))(
        x=np.arange(6.0, dtype="float32")
    )
    assert received["y"].tolist() == [[0, 1, 2], [3, 4, 5]]
