"""timm's gMLP and MLP-Mixer give the logits of their equations."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import erf

import remixer_tf as rt
from remixer_tf import configuration
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


def logits(weights, images):
    """Logits of images `[batch, 4, 4, 3]`, in float64."""
    w = {name: x.astype("float64") for name, x in weights.items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x, epsilon=1e-6):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return x * (1 + erf(x / np.sqrt(2))) / 2

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
            z = gelu(linear(f"{mlp}.fc1", norm(f"{block}.norm", x)))
            z, gate = np.split(z, 2, axis=-1)
            gate = norm(f"{mlp}.gate.norm", gate, epsilon=1e-5).swapaxes(1, 2)
            gate = linear(f"{mlp}.gate.proj", gate).swapaxes(1, 2)
            x = x + linear(f"{mlp}.fc2", z * gate)
            continue
        y = norm(f"{block}.norm1", x).swapaxes(1, 2)
        y = linear(
            f"{block}.mlp_tokens.fc2", gelu(linear(f"{block}.mlp_tokens.fc1", y))
        )
        x = x + y.swapaxes(1, 2)
        y = norm(f"{block}.norm2", x)
        x = x + linear(f"{mlp}.fc2", gelu(linear(f"{mlp}.fc1", y)))
    return linear("head", norm("norm", x).mean(axis=1))


@pytest.mark.parametrize("name", ["gmlp_s16_224", "mixer_b16_224"])
def test_image_models(tmp_path, name):
    weights = made_up_weights(gmlp=name[0] == "g")
    save_file(weights, tmp_path / "model.safetensors")
    preprocessing = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear"}
    config = {"architecture": name, "pretrained_cfg": preprocessing}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = imported(tmp_path, tmp_path)
    images = np.random.default_rng(1).normal(size=(3, 4, 4, 3))
    received = np.array(model({"images": images.astype("float32")}))[:, 0]
    np.testing.assert_allclose(received, logits(weights, images), atol=1e-5)
    run = rt.load(tmp_path)
    np.testing.assert_array_equal(
        np.array(run.model({"images": images.astype("float32")}))[:, 0], received
    )
    assert configuration.get_value("normalize.std") == (255.0,) * 3
    assert configuration.get_value("resize_and_center_crop.method") == "bilinear"
