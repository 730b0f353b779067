"""Published weights give the published model's logits, and are all used or refused."""

import functools
import json
import re

import ml_dtypes
import msgpack
import numpy as np
import pytest
from safetensors.numpy import save_file

import remixer_tf as rt
from remixer_tf import configuration, loading
from remixer_tf.decoding import greedy_decode
from remixer_tf.models.build import build_model
from remixer_tf.weights import formats
from remixer_tf.weights import run as import_run
from remixer_tf.weights.names import T5X
from remixer_tf.weights.source import take
from remixer_tf.weights.t5 import published_activations, t5_from_shapes
from remixer_tf.weights.values import gin_text
from tests.settings import part_of, value_of
from tests.weights import numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")

INPUTS = np.random.default_rng(1).integers(2, 384, (2, 40))
INPUTS[1, 25:] = 0
TARGETS = np.random.default_rng(2).integers(2, 384, (2, 23))


WEIGHTS = numpy_t5.made_up_weights()


def _slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def imported(path, tmp_path):
    """The model of published weights."""
    source = formats.read_source(str(path))
    file = tmp_path / "imported.gin"
    file.write_text(import_run.run_gin(source))
    settings = configuration.read([str(file)], [], complete=False)
    model = build_model(value_of(settings, "Run.model"), "float32")
    take(model, source)
    return model


def check_logits(model, weights, **options):
    batch = {
        "encoder_input_tokens": INPUTS,
        "decoder_input_tokens": np.pad(TARGETS, [(0, 0), (1, 0)])[:, :-1],
    }
    expected = numpy_t5.logits(weights, INPUTS, TARGETS, **options)
    np.testing.assert_allclose(model(batch), expected, atol=2e-4)


@pytest.mark.parametrize(
    "name, config, gated, tied, scaled",
    [
        ("T5.1.1 of transformers 5", published.NEW, True, False, False),
        ("T5.1.0 of transformers 4, in shards", {}, False, True, True),
        _slow("T5.1.1 of transformers 4", published.OLD, True, False, False),
        _slow("tied and not scaled", published.NEW, True, True, False),
        _slow("scaled and not tied", {}, True, False, True),
    ],
)
def test_hugging_face(tmp_path, name, config, gated, tied, scaled):
    weights = numpy_t5.made_up_weights(gated=gated, tied=tied)
    copies = {"decoder.embed_tokens.weight": weights["shared.weight"]}
    published.write_hugging_face(
        tmp_path, weights | copies, shards=2 if "shards" in name else 1, **config
    )
    check_logits(imported(tmp_path, tmp_path), weights, scaled=scaled)


@pytest.mark.parametrize(
    "kind, config",
    [
        _slow("mt5", {"tie_word_embeddings": True}),  # written so, and never scaled
        ("umt5", published.NEW),
    ],
)
def test_relatives_of_t5(tmp_path, kind, config):
    weights = numpy_t5.made_up_weights(own_biases=kind == "umt5")
    published.write_hugging_face(tmp_path, weights, model_type=kind, **config)
    model = imported(tmp_path, tmp_path)
    check_logits(model, weights)
    batch = {"encoder_input_tokens": INPUTS.astype("int32")}
    tokens = np.array(greedy_decode(model, batch, 6).tokens)
    expected = numpy_t5.logits(weights, INPUTS, tokens).argmax(-1)
    ended = np.cumsum(tokens == 1, axis=1) - (tokens == 1) > 0
    np.testing.assert_array_equal(tokens, np.where(ended, 0, expected))


@pytest.mark.parametrize("kind", ["t5", _slow("umt5")])
def test_an_encoder_alone(tmp_path, kind):
    weights = numpy_t5.made_up_weights(own_biases=kind == "umt5", layers=(2, 0))
    # transformers writes either number of the layers that are not there.
    config = {"model_type": kind, "num_decoder_layers": 0 if kind == "t5" else 1}
    published.write_hugging_face(tmp_path, weights, **config)
    model = imported(tmp_path, tmp_path)
    encoded, _ = model.encode({"encoder_input_tokens": INPUTS})
    expected = numpy_t5.logits(weights, INPUTS, None)
    real = INPUTS != 0
    np.testing.assert_allclose(np.array(encoded)[real], expected[real], atol=2e-5)


@pytest.mark.slower
def test_byt5_needs_no_vocabulary(tmp_path):
    """bytes b are ids b + 3, as ByT5 was trained; EOS is 1."""
    weights = numpy_t5.made_up_weights(layers=(3, 1))
    config = {"num_layers": 3, "tokenizer_class": "ByT5Tokenizer"}
    published.write_hugging_face(tmp_path, weights, **published.NEW, **config)
    # As transformers 5 writes it.
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 0}')
    run = loading.load(tmp_path)
    assert run.task.output_features["inputs"].vocabulary.vocab_size == 384
    targets = np.array([[*b"a\xc3\xa9"]]) + 3
    targets = np.append(targets, [[1]], axis=1)
    inputs = np.array([[*"né".encode(), 1 - 3]]) + 3
    logits = numpy_t5.logits(weights, inputs, targets)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(logits, targets[..., None], 2).sum()
    np.testing.assert_allclose(run.score("né", "aé"), expected, atol=1e-4)
    encoder = numpy_t5.made_up_weights(layers=(3, 0))
    published.write_hugging_face(tmp_path, encoder, **published.NEW, **config)
    received = loading.load(tmp_path).embed("né")
    expected = numpy_t5.logits(encoder, inputs, None)[0].mean(0)
    np.testing.assert_allclose(received, expected, atol=1e-5)
    with pytest.raises(ValueError, match="needs no vocabulary's file"):
        source = formats.read_source(str(tmp_path))
        import_run.check_vocabulary_named(source, "FILE", [])


@pytest.mark.slow
def test_hugging_face_in_bfloat16_without_the_name_shared(tmp_path):
    weights = numpy_t5.made_up_weights(dtype=ml_dtypes.bfloat16)
    written = dict(weights)
    for stack in ("encoder", "decoder"):
        written[f"{stack}.embed_tokens.weight"] = weights["shared.weight"]
    del written["shared.weight"]
    published.write_hugging_face(tmp_path, written, **published.NEW)
    check_logits(imported(tmp_path, tmp_path), weights)


@pytest.mark.parametrize(
    "line, known",
    [
        ("decoder/SelfAttention.shared_kv = True", False),
        ("encoder/SelfAttention.fold_scaling_into_initializer = False", False),
        ("decoder/EncDecAttention.relative_attention_type = None", True),
        ('decoder/SelfAttention.relative_attention_type = "bias"', False),
        ("encoder/SelfAttention.num_memory_heads = %memory", True),
        ("encoder/sublayer_rms_norm.epsilon = 1e-06", True),
        ("encoder/sublayer_rms_norm.epsilon = 1e-5", False),
    ],
)
def test_gin_text_of_another_model_with_the_same_arrays(line, known):
    """The known values are those of T5's operative_config.gin."""
    shapes = {k: x.shape for k, x in published.t5x_names(WEIGHTS).items()}
    if known:
        assert t5_from_shapes(shapes, T5X, line).num_encoder_layers == 2
        return
    with pytest.raises(ValueError, match=re.escape(line)):
        t5_from_shapes(shapes, T5X, line)


@pytest.mark.parametrize(
    "norm, gated", [("rms_norm", True), _slow("layer_norm", False)]
)
def test_mesh_tensorflow(tmp_path, norm, gated):
    weights = numpy_t5.made_up_weights(
        gated=gated, tied=not gated, dtype=ml_dtypes.bfloat16
    )
    published.write_mesh_tensorflow(tmp_path / "model.ckpt-1000", weights, norm)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000"')
    activation = ["gelu", "linear"] if gated else "relu"
    text = f"encoder/DenseReluDense.activation = {activation!r}\ndropout_rate = 0.25\n"
    (tmp_path / "operative_config.gin").write_text(text)
    model = imported(tmp_path, tmp_path)
    check_logits(model, weights, scaled=not gated)
    file = str(tmp_path / "imported.gin")
    settings = configuration.read([file], [], complete=False)
    assert value_of(settings, "TransformerStack.dropout_rate") == 0.25
    # The operative_config.gin is not that of a run here.
    bindings = ["VOCABULARY = @byte_vocabulary()", "VOCABULARY_FILE = None"]
    for path in (tmp_path, tmp_path / "model.ckpt-1000"):
        run = rt.load(path, bindings=bindings)
        check_logits(run.model, weights, scaled=not gated)


@pytest.mark.parametrize("kind", ["zarr", _slow("msgpack"), _slow("zarr of version 2")])
def test_t5x(tmp_path, kind):
    dtype = "float32" if kind == "msgpack" else ml_dtypes.bfloat16
    weights = numpy_t5.made_up_weights(dtype=dtype)

    def leaf(name, array):
        if kind == "msgpack" or array.ndim == 1:
            return published.flax_array(array)
        return published.write_zarr(tmp_path, name, array, as_uint16="2" in kind)

    published.write_t5x(tmp_path / "checkpoint", weights, leaf)
    path = tmp_path / "checkpoint" if kind == "msgpack" else tmp_path
    check_logits(imported(path, tmp_path), weights)
    bindings = ["VOCABULARY = @byte_vocabulary()", "VOCABULARY_FILE = None"]
    run = rt.load(path, bindings=bindings)
    check_logits(run.model, weights)
    assert run.step == 0 and "T5X" in repr(run)


_SPEC = {"driver": "zarr", "kvstore": {"path": "a"}}


@pytest.mark.parametrize(
    "leaf, words",
    [
        (_SPEC, "checkpoint holds .*'zarr'.* where an array was expected"),
        (_SPEC | {"metadata": {"shape": "abc"}}, "where an array was expected"),
        ({"driver": "zarr", "metadata": {"shape": [8, 10]}}, "it has no 'kvstore'"),
        ({"__msgpack_chunked_array__": True}, "where an array was expected"),
        (
            {"__msgpack_chunked_array__": True, "shape": {"0": 8, "1": 10}},
            "it has no 'chunks'",
        ),
        (
            {
                "__msgpack_chunked_array__": True,
                "shape": {"0": 8, "1": 10},
                "chunks": {"0": published.flax_array(np.ones(79, "float32"))},
            },
            "cannot reshape",
        ),
    ],
)
def test_a_damaged_array_of_t5x_is_one_line(tmp_path, leaf, words):
    def write(name, array):
        is_it = name == "encoder/layers_1/mlp/wi_0/kernel"
        return leaf if is_it else published.flax_array(array)

    published.write_t5x(tmp_path / "checkpoint", WEIGHTS, write)
    message = _error(tmp_path, tmp_path)
    assert re.search(words, message)
    assert "\n" not in message


def test_a_lost_file_of_zarr_is_not_zeros(tmp_path):
    """TensorStore's default reads a chunk without a file as zeros."""
    write = functools.partial(published.write_zarr, tmp_path)
    published.write_t5x(tmp_path / "checkpoint", WEIGHTS, write)
    (tmp_path / "target.encoder.layers_1.mlp.wi_0.kernel" / "0.0").unlink()
    message = _error(tmp_path, tmp_path)
    assert message.startswith("encoder/layers_1/mlp/wi_0/kernel cannot be read: ")
    assert "is missing" in message


@pytest.mark.real_data
def test_the_real_file_of_t5x(tmp_path, real_data_dir):
    path = real_data_dir / "t5x_tiny" / "test_t5_tiny.checkpoint_0"
    model = imported(path, tmp_path)
    source = formats.read_source(str(path))
    assert model.count_params() == sum(map(np.prod, source.shapes.values()))
    arrays = {name: source.read(name) for name in source.shapes}
    check_logits(model, published.from_t5x_names(arrays), heads=4)


def _error(folder, tmp_path):
    with pytest.raises((ValueError, OSError)) as error:
        imported(folder, tmp_path)
    assert isinstance(error.value, configuration.UserError)
    return str(error.value)


def test_every_array_is_used_or_refused(tmp_path):
    weights = numpy_t5.made_up_weights()
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    write = functools.partial(
        published.write_hugging_face, tmp_path / "t5", **published.NEW
    )
    write({**weights, "adapter.weight": np.zeros((2, 2), "float32")})
    assert "unknown: adapter.weight (2, 2)" in _error(tmp_path / "t5", tmp_path)
    write({key: value for key, value in weights.items() if key != name})
    assert f"missing: {name} (here encoder/layer_1" in _error(tmp_path / "t5", tmp_path)
    write({**weights, name: weights[name][:5]})
    message = _error(tmp_path / "t5", tmp_path)
    assert f"of another shape: {name} (5, 8), expected for" in message
    copy = {"encoder.embed_tokens.weight": weights["shared.weight"] + 1}
    write({**weights, **copy})
    assert "differs from shared.weight" in _error(tmp_path / "t5", tmp_path)


CODE = "{}\nimport evil_parts\n"  # A line break in a value, and then gin.
WRONG = {
    "extra_ids": CODE.format(100),
    "num_layers": 2**40,
    "num_heads": True,
    "d_ff": 0,
    "vocab_size": None,
    "dropout_rate": float("nan"),
    "layer_norm_epsilon": CODE.format(1e-6),
    "relative_attention_num_buckets": CODE.format(32),
    "relative_attention_max_distance": CODE.format(128),
    "feed_forward_proj": ["relu"],
    "crop_pct": CODE.format(0.9),
    "mean": [0.5, 0.5, CODE.format(0.5)],
    "std": [1e9] * 3,
    "interpolation": "bicubic'" + CODE.format(""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_files_say_is_checked_and_runs_no_code(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(str(tmp_path))
    marker, folder = tmp_path / "code ran", tmp_path / "source"
    (tmp_path / "evil_parts.py").write_text(f"open({str(marker)!r}, 'w')")
    wrong = {name: WRONG[name]}
    if name in ("crop_pct", "mean", "std", "interpolation"):
        folder.mkdir()
        shapes = {
            "stem.proj": (6, 3, 2, 2),
            "blocks.0.mlp_channels.gate.proj": (4, 4),
            "blocks.0.mlp_channels.fc1": (8, 6),
            "head": (7, 6),
        }
        weights = {f"{x}.weight": np.zeros(shape) for x, shape in shapes.items()}
        save_file(weights, folder / "model.safetensors")
        config = {"architecture": "gmlp_s16_224", "pretrained_cfg": wrong}
        (folder / "config.json").write_text(json.dumps(config))
    else:
        published.write_hugging_face(folder, numpy_t5.made_up_weights(), **wrong)
        (folder / "tokenizer_config.json").write_text(json.dumps(wrong))
        (folder / "spiece.model").touch()
    try:
        message = _error(folder, tmp_path)
    finally:
        assert not marker.exists()
    assert name in message and "\n" not in message and len(message) < 300


def test_no_value_breaks_out_of_gin_text(tmp_path):
    values = {"A": "'\n\"\\\x00\u2028", "B": (1, 2.5, True), "C": -0.0}
    text = gin_text(values)
    assert text.count("\n") == 3
    (tmp_path / "a.gin").write_text(text)
    assert configuration.read_bindings(tmp_path / "a.gin") == {
        name: repr(value) for name, value in values.items()
    }
    for value in [1], {"a": 1}, None, np.float32(1), b"":
        with pytest.raises(TypeError, match="plain values"):
            gin_text({"A": value})


@pytest.mark.parametrize("what", ["vocab_size", "d_ff", "num_layers"])
def test_a_model_is_not_larger_than_its_files(tmp_path, what):
    config = {what: 10**6}
    published.write_hugging_face(tmp_path, numpy_t5.made_up_weights(), **config)
    assert "says that it is a T5 of" in _error(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("x.mlp_activations = %A\nA = ('gelu',\n  'linear')\n", ["gelu", "linear"]),
        ("A = 'relu'\nx.mlp_activations = %A", ["relu"]),
        ("x.mlp_activations = ('gelu',\n    'linear')", ["gelu", "linear"]),
    ],
)
def test_activations_of_published_gin_text(text, expected):
    assert published_activations(text) == expected


@pytest.mark.parametrize("value", ["%B", "%A", "@gelu", "(", "[1]", "3", "(" * 9999])
def test_activations_that_are_no_strings(value):
    with pytest.raises(ValueError, match="must be strings, or a macro"):
        published_activations(f"A = %A\nx.mlp_activations = {value}")


def test_other_models_and_files_are_refused(tmp_path):
    weights = numpy_t5.made_up_weights()
    folder = tmp_path / "t5"

    def error(**config):
        published.write_hugging_face(folder, weights, **config)
        return _error(folder, tmp_path)

    message = error(model_type="llama")
    assert "model_type must be one of t5, mt5, umt5" in message and "'llama'" in message
    message = error(architectures=["T5ForTokenClassification"])
    assert "architectures in config.json must be one of T5ForCond" in message
    message = error(model_type="umt5", relative_attention_num_buckets=16)
    assert "relative_attention_num_buckets must be 32" in message
    assert "Received: 'gated-elu'" in error(feed_forward_proj="gated-elu")
    assert "decoder_start_token_id in config.json must be 0" in error(
        decoder_start_token_id=3
    )
    # transformers 5 computes with these two, whatever feed_forward_proj says.
    assert "dense_act_fn must be gelu_new" in error(dense_act_fn="silu")
    assert "is_gated_act must be True" in error(is_gated_act=False)
    published.write_hugging_face(folder, weights)
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json")
    assert "is not a safetensors file" in _error(folder, tmp_path)
    array = {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}
    header = json.dumps({"shared.weight": array}).encode()
    length = len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(length + header + b"\0")
    message = _error(folder, tmp_path)
    assert "shared.weight" in message and "has the type F8_E4M3" in message
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert "is not a safetensors file" in _error(folder, tmp_path)
    (folder / "model.safetensors").rmdir()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    message = _error(folder, tmp_path)
    assert "pytorch_model.bin, which is a pickle" in message
    assert "save_pretrained" in message
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet50"}))
    assert "timm's resnet50" in _error(folder, tmp_path)
    assert "no weights of a known format" in _error(tmp_path, tmp_path)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json cannot be read: Is a dir" in _error(folder, tmp_path)
    (tmp_path / "t5x" / "checkpoint").mkdir(parents=True)
    assert "checkpoint cannot be read: Is a dir" in _error(tmp_path / "t5x", tmp_path)
    (tmp_path / "other").write_bytes(b"\xc1")
    assert "not a checkpoint of T5X" in _error(tmp_path / "other", tmp_path)
    (tmp_path / "other").write_bytes(msgpack.packb({"optimizer": 3}))
    assert "has no 'target'" in _error(tmp_path / "other", tmp_path)
    assert "There is no" in _error(tmp_path / "nowhere", tmp_path)


def test_tables_are_those_that_fit_reads(tmp_path):
    """With a header's columns `inputs` and `targets`, see `LoadedRun.fit`."""
    table = tmp_path / "train.tsv"
    table.write_text("targets\tinputs\nja\tis it?\n")
    files = ["models/t5_1_1_tiny.gin", "runs/imported_bytes.gin"]
    binding = f"FILES = {{'train': {str(table)!r}}}"
    settings = configuration.read(files, [binding], complete=False)
    task = part_of(settings, "table_task")()
    assert task.source.read_rows("train") == [("is it?", "ja", 2)]
