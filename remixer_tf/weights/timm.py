"""Reads timm's gMLP and MLP-Mixer."""

import math
import os

from remixer_tf.weights.names import TIMM_GMLP, TIMM_MIXER
from remixer_tf.weights.safetensors_files import SafetensorsFolder, read_json
from remixer_tf.weights.source import Source

_CONVERTING = (
    "Where its origin is trusted, safetensors.torch.save_file writes the dictionary "
    "that torch.load(FILE, weights_only=True) returns."
)
_NORM_EPSILON = 1e-5  # of timm's spatial gating unit; its other norms have 1e-6


def read_timm(folder):
    """Reads a folder of an image model of timm: config.json and model.safetensors.

    Args:
        folder: str.

    Returns:
        a `Source`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: it is of another model.
    """
    config = read_json(os.path.join(folder, "config.json"))
    architecture = config["architecture"]
    is_gmlp = architecture.startswith("gmlp_")
    if not is_gmlp and not architecture.startswith("mixer_"):
        raise ValueError(
            f"config.json is of timm's {architecture}. Of timm's models those called "
            "gmlp_* and mixer_* have a counterpart here."
        )
    files = SafetensorsFolder(folder, _CONVERTING)
    rows = TIMM_GMLP if is_gmlp else TIMM_MIXER

    def shape(name):
        if name not in files.shapes:
            raise ValueError(
                f"There is no {name}, which timm's {architecture} has with its "
                "classifier."
            )
        return files.shapes[name]

    d_model, _, patch_size, _ = shape("stem.proj.weight")
    first = "blocks.0.mlp_channels.gate.proj" if is_gmlp else "blocks.0.mlp_tokens.fc1"
    num_tokens = shape(f"{first}.weight")[1]
    num_layers = 1 + max(
        int(name.split(".")[1]) for name in files.shapes if name.startswith("blocks.")
    )
    lines = [
        f"include 'architectures/{'gmlp' if is_gmlp else 'mixer'}_vision.gin'",
        f"IMAGE_SIZE = {patch_size * math.isqrt(num_tokens)}",
        f"PATCH_SIZE = {patch_size}",
        f"NUM_CLASSES = {shape('head.weight')[0]}",
        f"D_MODEL = {d_model}",
        f"D_FF = {shape('blocks.0.mlp_channels.fc1.weight')[0]}",
        f"NUM_LAYERS = {num_layers}",
        "POOL = 'gap'",
        "SURVIVAL_PROBABILITY = 1.0",
        f"GatedMLP.norm_epsilon = {_NORM_EPSILON}"
        if is_gmlp
        else f"D_TOKENS = {shape(f'{first}.weight')[0]}",
        *_preprocessing(config.get("pretrained_cfg", {})),
    ]
    return Source(
        f"timm {'gMLP' if is_gmlp else 'MLP-Mixer'}",
        "\n".join(lines),
        rows,
        files.shapes,
        files.read,
        extra_ids=None,
    )


def _preprocessing(config):
    """Yields the gin text of evaluation's images, as the weights were trained for."""
    for name, default in (("mean", (0.5,) * 3), ("std", (0.5,) * 3)):
        values = tuple(255.0 * value for value in config.get(name, default))
        yield f"normalize.{name} = {values}"
    yield f"resize_and_center_crop.share = {config.get('crop_pct', 0.875)}"
    if (method := config.get("interpolation", "bicubic")) != "bicubic":
        yield f"resize_and_center_crop.method = {method!r}"
