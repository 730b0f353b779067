"""timm's gMLP and MLP-Mixer give the logits of their equations."""

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import erf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.data.augmentation import resize_and_center_crop
from remixer_tf.weights.formats import read_source
from tests.settings import value_of
from tests.weights.test_importing import imported

pytestmark = pytest.mark.usefixtures("clear_gin")
D_MODEL, D_FF, D_TOKENS, TOKENS, PATCH = 6, 8, 5, 4, 2


def made_up_weights(gmlp):
    """Two blocks under timm's names, for images of 4x4 pixels."""
    rng = np.random.default_rng(0)
    weights = {
        "stem.proj.weight": rng.normal(size=(D_MODEL, 3, PATCH, PATCH)),
        "stem.proj.bias": rng.normal(size=D_MODEL),
    }

    def linear(name, d_out, d_in):
        weights[f"{name}.weight"] = rng.normal(size=(d_out, d_in)) * d_in**-0.5
        weights[f"{name}.bias"] = rng.normal(size=d_out)

    def norm(name, width=D_MODEL):
        weights[f"{name}.weight"] = 1 + 0.3 * rng.normal(size=width)
        weights[f"{name}.bias"] = 0.3 * rng.normal(size=width)

    for block in ("blocks.0", "blocks.1"):
        if gmlp:
            norm(f"{block}.norm")
            norm(f"{block}.mlp_channels.gate.norm", D_FF // 2)
            linear(f"{block}.mlp_channels.gate.proj", TOKENS, TOKENS)
        else:
            norm(f"{block}.norm1")
            linear(f"{block}.mlp_tokens.fc1", D_TOKENS, TOKENS)
            linear(f"{block}.mlp_tokens.fc2", TOKENS, D_TOKENS)
            norm(f"{block}.norm2")
        linear(f"{block}.mlp_channels.fc1", D_FF, D_MODEL)
        linear(f"{block}.mlp_channels.fc2", D_MODEL, D_FF // 2 if gmlp else D_FF)
        if gmlp:  # a small variance before the gate's norm, so that its epsilon shows
            weights[f"{block}.mlp_channels.fc1.weight"] *= 0.01
            weights[f"{block}.mlp_channels.fc1.bias"] *= 0.01
    norm("norm")
    linear("head", 7, D_MODEL)
    return {name: x.astype("float32") for name, x in weights.items()}


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def relu(x):
    return np.maximum(x, 0)


def logits(weights, images, act=gelu):
    """Logits of images `[batch, 4, 4, 3]`, in float64."""
    w = {name: x.astype("float64") for name, x in weights.items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x, epsilon=1e-6):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    patches = [
        np.einsum("nhwc,dchw->nd", images[:, y : y + PATCH, x : x + PATCH], kernel)
        for kernel in [w["stem.proj.weight"]]
        for y in (0, PATCH)
        for x in (0, PATCH)
    ]
    x = np.stack(patches, axis=1) + w["stem.proj.bias"]
    for block in ("blocks.0", "blocks.1"):
        mlp = f"{block}.mlp_channels"
        if f"{block}.norm.weight" in w:
            z = act(linear(f"{mlp}.fc1", norm(f"{block}.norm", x)))
            z, gate = np.split(z, 2, axis=-1)
            gate = norm(f"{mlp}.gate.norm", gate, epsilon=1e-5).swapaxes(1, 2)
            gate = linear(f"{mlp}.gate.proj", gate).swapaxes(1, 2)
            x = x + linear(f"{mlp}.fc2", z * gate)
            continue
        y = norm(f"{block}.norm1", x).swapaxes(1, 2)
        y = linear(f"{block}.mlp_tokens.fc2", act(linear(f"{block}.mlp_tokens.fc1", y)))
        x = x + y.swapaxes(1, 2)
        y = norm(f"{block}.norm2", x)
        x = x + linear(f"{mlp}.fc2", act(linear(f"{mlp}.fc1", y)))
    return linear("head", norm("norm", x).mean(axis=1))


def write(folder, name, weights, **config):
    save_file(weights, folder / "model.safetensors")
    config = {"architecture": name, **config}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name, act", [("gmlp_s16_224", gelu), ("mixer_b16_224", gelu), ("gmlp_x", relu)]
)
def test_image_models(tmp_path, name, act):
    weights = made_up_weights(gmlp=name[0] == "g")
    preprocessing = {
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
        "interpolation": "bilinear",
        "crop_mode": "squash",
        "crop_pct": 0.9,
        "input_size": [3, 4, 4],
    }
    names = [f"class {i}" for i in range(7)]
    write(
        tmp_path,
        name,
        weights,
        pretrained_cfg=preprocessing,
        num_classes=7,
        global_pool="avg",
        label_names=names,
        model_args={"act_layer": act.__name__, "embed_dim": 6, "img_size": [4, 4]},
    )
    model = imported(tmp_path, tmp_path)
    images = np.random.default_rng(1).normal(size=(3, 4, 4, 3))
    received = np.array(model({"images": images.astype("float32")}))[:, 0]
    np.testing.assert_allclose(received, logits(weights, images, act), atol=1e-5)
    file = str(tmp_path / "imported.gin")
    settings = configuration.read([file], [], complete=False)
    assert value_of(settings, "normalize.std") == (255.0,) * 3
    assert value_of(settings, "resize_and_center_crop.method") == "bilinear"
    assert value_of(settings, "resize_and_center_crop.share") == 0.9
    if name != "mixer_b16_224":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = rt.load(tmp_path)
    np.testing.assert_array_equal(
        np.array(run.model({"images": images.astype("float32")}))[:, 0], received
    )
    # Squashed, an image has no part that is cut off. The middle of this one is black.
    image = np.zeros([4, 8, 3], "uint8")
    image[:, :2] = image[:, 6:] = 255
    found = run.classify(image)
    assert found.label == names[found.probabilities.argmax()]
    whole = resize_and_center_crop(image.astype("float32"), None, 4, 1, "area", True)
    assert whole.numpy()[..., 0].tolist() == [[255, 0, 0, 255]] * 4


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model_args": {"act_layer": "quick_gelu"}}, "act_layer must be one of gelu"),
        ({"model_args": {"norm_layer": "rmsnorm"}}, "has norm_layer, which .*rmsnorm"),
        ({"model_args": {"stem_norm": True}}, "stem_norm must be False"),
        ({"model_args": {"embed_dim": 8}}, "embed_dim must be 6"),
        ({"model_args": 3}, "model_args in config.json must be an object"),
        ({"global_pool": ""}, "global_pool must be avg"),
        ({"num_classes": 9}, "num_classes must be 7"),
        ({"pretrained_cfg": {"crop_mode": "border"}}, "crop_mode must be one of"),
        (
            {"pretrained_cfg": {"interpolation": "box"}},
            "bilinear, nearest, lanczos. Re",
        ),
        ({"pretrained_cfg": {"crop_border_pixels": 2}}, "crop_border_pixels must be"),
        ({"pretrained_cfg": {"input_size": [3, 8, 8]}}, "input_size in config.json"),
        ({"label_names": ["a", "b"]}, "label_names .* 2 names. Expected: 7"),
        ({"label_names": {"0": 1}}, "label_names in config.json must be a list"),
    ],
)
def test_settings_that_the_models_here_lack(tmp_path, config, message):
    write(tmp_path, "mixer_b16_224", made_up_weights(gmlp=False), **config)
    with pytest.raises(ValueError, match=message) as error:
        read_source(str(tmp_path))
    assert "\n" not in str(error.value)


def test_settings_that_change_nothing_are_named_once(tmp_path):
    cfg = {"tag": "in1k", "url": "x", "new": 1}
    args = {"drop_path_rate": 0.1}
    other = {"num_features": 6, "pretrained_cfg": cfg, "model_args": args, "odd": None}
    write(tmp_path, "mixer_b16_224", made_up_weights(gmlp=False), **other, other=2)
    (tmp_path / "more.json").write_text("{}")
    (tmp_path / "README.md").write_text("")
    (line,) = read_source(str(tmp_path)).remarks()
    (_, found) = line.split(": ")
    assert (
        found == "other in config.json, new in pretrained_cfg in config.json, more.json"
    )


def test_the_first_form_of_the_file(tmp_path):
    """All fields in one object, as timm's `_parse_model_cfg` reads it."""
    names = [f"class {i}" for i in range(7)]
    fields = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "lanczos"}
    fields |= {"labels": names, "num_classes": 7, "url": "x", "first_conv": "stem.proj"}
    write(tmp_path, "mixer_b16_224", made_up_weights(gmlp=False), **fields, new=1)
    source = read_source(str(tmp_path))
    assert source.bindings["normalize.std"] == (255.0,) * 3
    assert source.bindings["resize_and_center_crop.method"] == "lanczos3"
    assert source.bindings["image_to_class.classes"] == tuple(names)
    (line,) = source.remarks()
    assert line.endswith(": new in pretrained_cfg in config.json")
