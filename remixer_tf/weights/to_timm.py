"""Writes an image model as the folder that timm loads: `create_model(LOCAL)`."""

import json
import os

import numpy as np

from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.errors import UserError
from remixer_tf.models import ImageClassifier
from remixer_tf.weights.names import TIMM_BACK, find_name
from remixer_tf.weights.safetensors_files import WEIGHTS, write_safetensors
from remixer_tf.weights.source import logits_distance, merged_arrays, take
from remixer_tf.weights.timm import FAMILIES, METHODS

# Sizes that timm's MLPs have by name: layers, d_model, width over channels and tokens.
_MLPS = {
    "gmlp": {
        f"gmlp_{name}16_224": (16, 30, d, 6 * d, None)
        for name, d in (("ti", 128), ("s", 256), ("b", 512))
    },
    "mixer": {
        f"mixer_{name}{patch}_224": (patch, layers, d, 4 * d, d // 2)
        for name, layers, d in (("s", 8, 512), ("b", 12, 768), ("l", 24, 1024))
        for patch in (16, 32)
    },
    "resmlp": {
        **{f"resmlp_{n}_224": (16, n, 384, 1536, None) for n in (12, 24, 36)},
        "resmlp_big_24_224": (8, 24, 768, 3072, None),
    },
}
# Float32 rounding gives some 1e-5 of the logits' deviation.
_TOLERANCE = 1e-3


def write_timm(model, folder, preprocessing=None, classes=()):
    """Writes config.json and model.safetensors into a folder that is there.

    Args:
        model: a built `ImageClassifier` with the layers of a family of timm.
        folder: str.
        preprocessing: {name: arguments} of `resize_and_center_crop` and `normalize`,
            see `remixer_tf.data.augmentation`.
        classes: sequence of str, their names, if they have any.

    Raises a ValueError if timm has no model of these layers and sizes.
    """
    family, arrays = _named_arrays(model)
    name, arguments = _architecture(model, family, arrays)
    cfg = _preprocessing(preprocessing or {})
    cfg["input_size"] = [3, model.image_size, model.image_size]
    cfg["num_classes"] = model.num_classes
    config = {
        "architecture": name,
        "num_classes": model.num_classes,
        "num_features": model.d_model,
        "global_pool": family.timm_pool,
        "model_args": arguments,
        "pretrained_cfg": cfg,
    }
    if classes:
        config["label_names"] = [*classes]
    write_safetensors(os.path.join(folder, WEIGHTS), arrays)
    write_whole(os.path.join(folder, "config.json"), json.dumps(config, indent=2))


def compare(model, reference, source):
    """Raises a ValueError unless a model of the `Source` that was written is the same.

    `reference` is a built model, which takes the source's weights.
    """
    take(reference, source)
    size = model.image_size
    images = np.random.default_rng(0).normal(size=(2, size, size, 3))
    batch = {"images": images.astype("float32")}
    distance = logits_distance(model, reference, batch)
    if not distance < _TOLERANCE:
        raise _refusal(
            f"other logits than timm's with its weights, by {distance:.1e} of their "
            "standard deviation. Is its activation not the exact gelu, or a norm's "
            "epsilon not 1e-6 (1e-5 in gMLP's gate)"
        )


def _named_arrays(model):
    """The family of timm that has all of a model's variables, and {name: array}."""
    if not isinstance(model, ImageClassifier):
        raise _refusal(f"the class {type(model).__name__}")
    variables = merged_arrays(model)
    unknown = {
        family: [path for path in variables if not find_name(path, family.rows)[0]]
        for family in FAMILIES
    }
    family = min(unknown, key=lambda x: len(unknown[x]))
    if model.pool not in ("cls", family.pool):
        raise _refusal(f"POOL = {model.pool!r}, next to a {family.title}")
    if left := unknown[family]:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise _refusal(f"{left[0]}{more}, next to a {family.title}")
    parts = {}
    for path, array in variables.items():
        name, change = find_name(path, family.rows)
        parts.setdefault(name, []).append(TIMM_BACK[change](array))
    # Contiguous: safetensors writes a transposed array as if it were not.
    return family, {
        name: np.ascontiguousarray(np.concatenate(x) if len(x) > 1 else x[0])
        for name, x in parts.items()
    }


def _architecture(model, family, arrays):
    """timm's name, and the arguments in which the model differs from it."""
    width = arrays[f"blocks.0.{family.mlp}.fc1.weight"].shape[0]
    layers, patch, d_model = model.stack.num_layers, model.patch_size, model.d_model
    arguments = {"img_size": model.image_size}
    if family.depth == "depth":
        heads = {
            (block.sublayer.num_heads, block.sublayer.d_kv)
            for block in model.stack.blocks
            if hasattr(block.sublayer, "num_heads")
        }
        if len(heads) > 1:
            raise _refusal("layers that differ in their heads")
        ((number, width_of_head),) = heads
        if number * width_of_head != d_model:
            raise _refusal(f"{number} heads of {width_of_head}, and {d_model} channels")
        sizes = {"depth": layers, "embed_dim": d_model, "num_heads": number}
        sizes |= {"patch_size": patch, "mlp_ratio": width / d_model}
        return "vit_base_patch16_224", arguments | sizes
    kind = family.names.partition("_")[0]
    tokens = None
    if kind == "mixer":
        tokens = arrays[family.tokens].shape[0]
    sizes = (patch, layers, d_model, width, tokens)
    named = {value: name for name, value in _MLPS[kind].items()}
    if sizes not in named:
        raise _refusal(
            f"other sizes than timm's {', '.join(named.values())}: patches of {patch}, "
            f"{layers} layers, d_model={d_model}, d_ff={width}"
            + (f", d_tokens={tokens}" if tokens else "")
        )
    return named[sizes], arguments


def _preprocessing(transforms):
    """timm's names of what prepares images for evaluation."""
    if others := transforms.keys() - {"resize_and_center_crop", "normalize"}:
        raise _refusal(f"images prepared by {', '.join(sorted(others))}")
    cfg = {}
    if given := transforms.get("normalize"):
        for name in ("mean", "std"):
            cfg[name] = [x / 255.0 for x in given[name]]
    if given := transforms.get("resize_and_center_crop"):
        methods = {ours: name for name, ours in METHODS.items()}
        if given["method"] not in methods:
            raise _refusal(f"images resized by {given['method']}")
        cfg["interpolation"] = methods[given["method"]]
        cfg["crop_pct"] = given["share"]
        cfg["crop_mode"] = "squash" if given["squash"] else "center"
    return cfg


def _refusal(what):
    return UserError(
        f"timm cannot hold this model: it has {what}. Models of architectures/vit.gin, "
        "resmlp.gin, mixer_vision.gin and, with POOL = 'gap', gmlp_vision.gin can be "
        "exported. For others, write safetensors (--format=safetensors)."
    )
