"""Reads timm's gMLP and MLP-Mixer."""

import math
import os

from remixer_tf.errors import UserError
from remixer_tf.weights.names import TIMM_GMLP, TIMM_MIXER
from remixer_tf.weights.safetensors_files import SafetensorsFolder, read_json
from remixer_tf.weights.source import IMAGES, Source
from remixer_tf.weights.values import real, reals, shape_of, word

_CONVERTING = (
    "Where its origin is trusted, safetensors.torch.save_file writes the dictionary "
    "that torch.load(FILE, weights_only=True) returns."
)
_METHODS = ("bicubic", "bilinear", "nearest", "area", "lanczos3", "lanczos5")
_NORM_EPSILON = 1e-5  # of timm's spatial gating unit; its other norms have 1e-6


def read_timm(folder):
    """Reads a folder of timm as a `Source`: config.json and model.safetensors.

    Raises a ValueError if the model is another one, or a value is out of range.
    """
    config = read_json(os.path.join(folder, "config.json"))
    architecture = str(config.get("architecture"))
    is_gmlp = architecture.startswith("gmlp_")
    if not is_gmlp and not architecture.startswith("mixer_"):
        raise UserError(
            f"architecture in config.json is timm's {architecture}. Expected: gmlp_* "
            "or mixer_*."
        )
    files = SafetensorsFolder(folder, _CONVERTING)
    rows = TIMM_GMLP if is_gmlp else TIMM_MIXER

    def shape(name, rank):
        return shape_of(files.shapes, name, rank, f"timm's {architecture}")

    d_model, _, patch_size, _ = shape("stem.proj.weight", 4)
    first = "blocks.0.mlp_channels.gate.proj" if is_gmlp else "blocks.0.mlp_tokens.fc1"
    num_tokens = shape(f"{first}.weight", 2)[1]
    num_layers = 1
    while f"blocks.{num_layers}.mlp_channels.fc1.weight" in files.shapes:
        num_layers += 1
    bindings = {
        "IMAGE_SIZE": patch_size * math.isqrt(num_tokens),
        "PATCH_SIZE": patch_size,
        "NUM_CLASSES": shape("head.weight", 2)[0],
        "D_MODEL": d_model,
        "D_FF": shape("blocks.0.mlp_channels.fc1.weight", 2)[0],
        "NUM_LAYERS": num_layers,
        "POOL": "gap",
        "SURVIVAL_PROBABILITY": 1.0,
        **_preprocessing(config.get("pretrained_cfg")),
    }
    if is_gmlp:
        bindings["SpatialGatingUnit.norm_epsilon"] = _NORM_EPSILON
    else:
        bindings["D_TOKENS"] = shape(f"{first}.weight", 2)[0]
    return Source(
        f"timm {'gMLP' if is_gmlp else 'MLP-Mixer'}",
        (f"architectures/{'gmlp' if is_gmlp else 'mixer'}_vision.gin",),
        bindings,
        rows,
        files.shapes,
        files.read,
        run=IMAGES,
    )


def _preprocessing(config):
    """The bindings of evaluation's images, as the weights were trained for."""
    config = config if isinstance(config, dict) else {}
    bindings = {
        f"normalize.{name}": tuple(255.0 * x for x in reals(config, name, (0.5,) * 3))
        for name in ("mean", "std")
    }
    share = real(config, "crop_pct", 0.875, low=0.01)
    method = word(config, "interpolation", "bicubic", _METHODS)
    return bindings | {
        "resize_and_center_crop.share": share,
        "resize_and_center_crop.method": method,
    }
