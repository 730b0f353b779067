"""Encoders of sentence-transformers give the vectors that its modules describe."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import remixer_tf as rt
from remixer_tf.layers.base import Context
from remixer_tf.models import EmbeddingHead
from remixer_tf.weights.formats import read_source
from tests.weights import numpy_bert, numpy_t5, published

pytestmark = pytest.mark.usefixtures("clear_gin")
D_MODEL = 8
LAYERS = [(5, "Tanh", True), (3, "Identity", False)]


def poolings(x):
    """Vectors of one text's tokens, x `[tokens, d_model]`, by Reimers' definitions."""
    places = np.arange(1, len(x) + 1)[:, None]
    return {
        "mean": x.mean(0),
        "cls": x[0],
        "max": x.max(0),
        "mean_sqrt_len_tokens": x.sum(0) / np.sqrt(len(x)),
        "weightedmean": (x * places).sum(0) / places.sum(),
        "lasttoken": x[-1],
    }


def write(folder, pooling, layers=(), normalize=False, modules=None, **encoder):
    """Adds what sentence-transformers writes; returns the matrices, a list."""
    steps = [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
    ]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    random, width, matrices = np.random.default_rng(3), None, []
    for number, (units, activation, bias) in enumerate(layers):
        place = f"{2 + number}_Dense"
        steps.append((place, "sentence_transformers.models.Dense"))
        (folder / place).mkdir(exist_ok=True)
        width = width or D_MODEL * len(pooling["pooling_mode"])
        config = {
            "in_features": width,
            "out_features": units,
            "bias": bias,
            "activation_function": f"torch.nn.modules.activation.{activation}",
        }
        (folder / place / "config.json").write_text(json.dumps(config))
        arrays = {"linear.weight": random.normal(size=(units, width))}
        if bias:
            arrays["linear.bias"] = random.normal(size=units)
        arrays = {name: x.astype("float32") for name, x in arrays.items()}
        save_file(arrays, folder / place / "model.safetensors")
        matrices.append(arrays)
        width = units
    if normalize:
        steps.append(("9_Normalize", "sentence_transformers.models.Normalize"))
    listed = [{"idx": i, "path": p, "type": t} for i, (p, t) in enumerate(steps)]
    (folder / "modules.json").write_text(json.dumps(modules or listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps(encoder))
    return matrices


def test_poolings_over_the_tokens_of_each_row():
    x = np.random.default_rng(0).normal(size=(2, 5, D_MODEL)).astype("float32")
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    expected = [poolings(x[0]), poolings(x[1, :2])]
    for name in expected[0]:
        head = EmbeddingHead([name], name="head")
        head.build(x.shape)
        vectors = head.embed(x, Context(padding_mask=mask))
        np.testing.assert_allclose(vectors, [row[name] for row in expected], rtol=1e-5)
        assert head.embedding_width(D_MODEL) == D_MODEL
    head = EmbeddingHead(["cls", "max"], normalize=True, name="head")
    head.build(x.shape)
    vectors = np.array(head.embed(x, Context(padding_mask=mask)))
    both = np.concatenate([expected[1]["cls"], expected[1]["max"]])
    np.testing.assert_allclose(vectors[1], both / np.linalg.norm(both), rtol=1e-5)
    assert head.embedding_width(D_MODEL) == 2 * D_MODEL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_the_vector_of_a_text(tmp_path, kind):
    if kind == "bert":
        weights = numpy_bert.made_up_weights("BertModel")
        numpy_bert.write(tmp_path, "BertModel", weights)
        ids = np.array([[2, 11, 5, 3]])
        x = numpy_bert.encode(weights, ids, 0 * ids)[0]
        text, expected_format = "中the", "Hugging Face BertModel"
    else:
        weights = numpy_t5.made_up_weights(layers=(2, 0))
        config = {"tokenizer_class": "ByT5Tokenizer"}
        published.write_hugging_face(tmp_path, weights, **config)
        ids = np.array([[*b"no"]]) + 3
        x = numpy_t5.logits(weights, np.append(ids, [[1]], 1), None)[0]
        text, expected_format = "no", "Hugging Face T5 encoder"
    pooling = {"pooling_mode": ["mean", "max"], "include_prompt": True}
    matrices = write(tmp_path, pooling, LAYERS, normalize=True, max_seq_length=6)
    vector = np.concatenate([poolings(x)["mean"], poolings(x)["max"]])
    for arrays, function in zip(matrices, (np.tanh, lambda v: v), strict=True):
        vector = function(
            vector @ arrays["linear.weight"].T + arrays.get("linear.bias", 0)
        )
    run = rt.load(tmp_path)
    received = run.embed([text, text * 9])
    np.testing.assert_allclose(received[0], vector / np.linalg.norm(vector), atol=1e-5)
    assert received.shape == (2, 3) and run.embed([]).shape == (0, 3)
    assert run.run.feature_lengths["inputs"] == 6
    source = read_source(str(tmp_path))
    assert source.format == f"{expected_format} of sentence-transformers"
    assert not source.remarks()


@pytest.mark.parametrize(
    "pooling, expected",
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
        ({"pooling_mode_max_tokens": True, "pooling_mode_lasttoken": True}, None),
        ({"word_embedding_dimension": 8}, ("mean",)),
        ({"pooling_mode": "weightedmean"}, ("weightedmean",)),
    ],
)
def test_fields_of_all_versions(tmp_path, pooling, expected):
    weights = numpy_bert.made_up_weights("BertModel")
    numpy_bert.write(tmp_path, "BertModel", weights)
    write(tmp_path, pooling)
    source = read_source(str(tmp_path))
    modes = source.bindings["EmbeddingHead.pooling"]
    assert modes == (expected or ("max", "lasttoken")) and not source.remarks()


def test_what_changes_some_answers_is_named(tmp_path):
    """sentence-transformers leaves out a prompt, and reads texts of any length."""
    weights = numpy_t5.made_up_weights(layers=(2, 0))
    config = {"tokenizer_class": "ByT5Tokenizer"}
    published.write_hugging_face(tmp_path, weights, **config)
    write(tmp_path, {"pooling_mode": "mean", "include_prompt": False})
    prompt, length = read_source(str(tmp_path)).remarks()
    assert "not carried over: include_prompt = False of the pooling" in prompt
    assert "not carried over: texts of any length: they are cut to" in length
    write(tmp_path, {"pooling_mode": "mean"}, max_seq_length=9)
    assert not read_source(str(tmp_path)).remarks()


@pytest.mark.parametrize(
    "pooling, options, message",
    [
        ({"pooling_mode": "median"}, {}, "pooling_mode must be one of cls"),
        ({"pooling_mode_new_token": True}, {}, "pooling_mode_new_token is a pooling"),
        ({"include_prompt": 0}, {}, "include_prompt must be true or false"),
        ({}, {"layers": [(3, "Softplus", True)]}, "activation_function must be one of"),
        (
            {},
            {"modules": [{"type": "a.CNN", "path": ""}]},
            "has the steps CNN. Exp",
        ),
        ({}, {"modules": [{"path": ""}]}, "must be a list of objects with type and"),
        ({}, {"do_lower_case": True, "cased": True}, "do_lower_case in sentence_bert"),
        ({}, {"model_args": {"x": 1}}, "model_args must be {}"),
        ({}, {"prompt": "query"}, "default_prompt_name must be None"),
        ({}, {"kind": "BertForMaskedLM"}, "modules.json, which makes vectors"),
    ],
)
def test_what_is_not_followed_is_named(tmp_path, pooling, options, message):
    kind = options.pop("kind", "BertModel")
    numpy_bert.write(tmp_path, kind, numpy_bert.made_up_weights(kind))
    if options.pop("cased", False):
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    if prompt := options.pop("prompt", None):
        path = tmp_path / "config_sentence_transformers.json"
        path.write_text(json.dumps({"default_prompt_name": prompt}))
    write(tmp_path, {"pooling_mode": "mean", **pooling}, **options)
    with pytest.raises(ValueError, match=message) as error:
        read_source(str(tmp_path))
    assert "\n" not in str(error.value)
