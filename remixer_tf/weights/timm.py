"""Reads timm's gMLP, MLP-Mixer, ResMLP and Vision Transformers."""

import math
import re
from typing import NamedTuple

from remixer_tf.errors import UserError
from remixer_tf.weights.names import TIMM_GMLP, TIMM_MIXER, TIMM_RESMLP, TIMM_VIT
from remixer_tf.weights.source import IMAGES, Source
from remixer_tf.weights.values import (
    check_fields,
    integer,
    real,
    reals,
    shape_of,
    short,
    word,
)

_CONVERTING = (
    "Where its origin is trusted, safetensors.torch.save_file writes the dictionary "
    "that torch.load(FILE, weights_only=True) returns."
)
# timm's names of ways to resize, and those of `tf.image.resize`.
METHODS = {
    **{name: name for name in ("bicubic", "bilinear", "nearest")},
    "lanczos": "lanczos3",
}
_LAYER_SCALE = 1e-4  # The first value of the scales, which the arrays replace.
_NORM_EPSILON = 1e-5  # of timm's spatial gating unit; its other norms have 1e-6
# timm's names of activations, and ours.
_ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_tanh": "gelu",
    **{name: name for name in ("relu", "relu6", "silu", "tanh", "sigmoid", "elu")},
    "swish": "silu",
    "mish": "mish",
}
# Arguments of timm's models that arrays have too.
_SIZES = ("num_classes", "img_size", "in_chans", "patch_size")
# Arguments that make other equations, or other arrays, and the values of the models
# here, timm's defaults.
_DEFAULTS = {
    "stem_norm": False,
    **dict.fromkeys(("qkv_bias", "proj_bias", "class_token", "final_norm"), True),
    **dict.fromkeys(("pre_norm", "qk_norm", "fc_norm", "no_embed_class"), False),
    **dict.fromkeys(("scale_attn_norm", "scale_mlp_norm"), False),
    "pos_embed": "learn",
    "reg_tokens": 0,
}
# The heads of ViTs, whose arrays do not tell.
_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}


class Family(NamedTuple):
    """Models of timm that one gin file and one table of names hold.

    `tokens` is the array whose last or next to last axis, `axis`, is the tokens.
    """

    title: str
    names: str  # a regular expression of its architectures
    gin: str
    rows: tuple
    tokens: str
    axis: int = -1
    stem: str = "stem"
    mlp: str = "mlp_channels"
    depth: str = "num_blocks"  # timm's name of the number of layers
    timm_pool: str = "avg"
    pool: str = "gap"


FAMILIES = (
    Family(
        "gMLP",
        "gmlp_.*",
        "architectures/gmlp_vision.gin",
        TIMM_GMLP,
        "blocks.0.mlp_channels.gate.proj.weight",
    ),
    Family(
        "MLP-Mixer",
        "mixer_.*",
        "architectures/mixer_vision.gin",
        TIMM_MIXER,
        "blocks.0.mlp_tokens.fc1.weight",
    ),
    Family(
        "ResMLP",
        "resmlp_.*",
        "architectures/resmlp.gin",
        TIMM_RESMLP,
        "blocks.0.linear_tokens.weight",
    ),
    Family(
        "Vision Transformer",
        # Others of these names have further layers, or another norm.
        f"(vit|deit)_({'|'.join(_HEADS)})_patch\\d+_\\d+",
        "architectures/vit.gin",
        TIMM_VIT,
        "pos_embed",
        axis=-2,
        stem="patch_embed",
        mlp="mlp",
        depth="depth",
        timm_pool="token",
        pool="token",
    ),
)
# Fields of config.json that are not of the images and their classes.
_OF_MODEL = ("architecture", "global_pool", "model_args", "num_classes", "num_features")


def read_timm(folder):
    """Reads a `PublishedFolder` of timm as a `Source`: config.json, model.safetensors.

    Raises a ValueError if the model is another one, a value is out of range, or an
    argument of the model is unknown here.
    """
    config = folder.json("config.json")
    architecture = str(config.get("architecture"))
    families = [x for x in FAMILIES if re.fullmatch(x.names, architecture)]
    if not families:
        raise UserError(
            f"architecture in config.json is timm's {architecture}. Expected: gmlp_*, "
            "mixer_*, resmlp_*, or vit_ and deit_ with a size, patch and image alone, "
            "such as vit_base_patch16_224."
        )
    (family,) = families
    files = folder.safetensors(_CONVERTING)

    def shape(name, rank):
        return shape_of(files.shapes, name, rank, f"timm's {architecture}")

    d_model, _, patch_size, _ = shape(f"{family.stem}.proj.weight", 4)
    is_vit = family.pool == "token"
    num_tokens = shape(family.tokens, 2 + is_vit)[family.axis]
    num_layers = 1
    while f"blocks.{num_layers}.{family.mlp}.fc1.weight" in files.shapes:
        num_layers += 1
    side = math.isqrt(num_tokens - is_vit)
    image_size = patch_size * side
    num_classes = shape("head.weight", 2)[0]
    sizes = (num_classes, image_size, 3, patch_size)
    sizes = dict(zip(_SIZES, sizes, strict=True))
    sizes |= {"embed_dim": d_model, family.depth: num_layers}
    arguments = folder.fields("model_args in config.json", config.get("model_args"))
    heads = _HEADS[architecture.split("_")[1]] if is_vit else None
    heads = heads and integer(arguments, "num_heads", heads)
    check_fields(arguments, **_DEFAULTS)
    if side**2 != num_tokens - is_vit:
        raise UserError(
            f"{family.tokens} has {num_tokens - is_vit} places of patches, which is no "
            "square. Images are square here."
        )
    activation = _activation(folder, arguments, sizes, family.timm_pool)
    check_fields(config, num_classes=num_classes, global_pool=family.timm_pool)
    cfg = config.get("pretrained_cfg")
    if "pretrained_cfg" not in config:  # timm's first form of the file
        cfg = {name: config.get(name) for name in config if name not in _OF_MODEL}
    cfg = folder.fields("pretrained_cfg in config.json", cfg)
    bindings = {
        "IMAGE_SIZE": image_size,
        "PATCH_SIZE": patch_size,
        "NUM_CLASSES": num_classes,
        "D_MODEL": d_model,
        "D_FF": shape(f"blocks.0.{family.mlp}.fc1.weight", 2)[0],
        "NUM_LAYERS": num_layers,
        "POOL": family.pool,
        "SURVIVAL_PROBABILITY": 1.0,
        **_preprocessing(cfg, image_size),
    }
    if family.title == "gMLP":
        bindings["GatedMLP.activation"] = activation
        bindings["SpatialGatingUnit.norm_epsilon"] = _NORM_EPSILON
    else:
        bindings["BertFeedForward.activation"] = activation
    if family.title == "MLP-Mixer":
        bindings["D_TOKENS"] = shape(family.tokens, 2)[0]
        bindings["TokenMixingMLP.activation"] = activation
    if family.title == "ResMLP":
        bindings["LAYER_SCALE"] = _LAYER_SCALE
    if is_vit:
        if d_model % heads:
            raise UserError(
                f"num_heads in config.json must divide {d_model}, the width of the "
                f"arrays. Received: {heads}"
            )
        bindings |= {"NUM_HEADS": heads, "D_KV": d_model // heads}
    if names := _class_names(config, cfg, num_classes):
        bindings["image_to_class.classes"] = names
    return Source(
        f"timm {family.title}",
        (family.gin,),
        bindings,
        family.rows,
        files.shapes,
        files.read,
        run=IMAGES,
    )


def _activation(folder, arguments, sizes, pool):
    """Our name of the activation that the model's arguments give.

    `sizes` are those of the arrays. An argument changes the model, so that an unknown
    one is an error.
    """
    for name in ("img_size", "patch_size"):
        given = arguments.get(name)
        if isinstance(given, list) and given == given[:1] * 2:
            arguments[name] = given[0]
    check_fields(arguments, **sizes, global_pool=pool)
    name = word(arguments, "act_layer", "gelu", _ACTIVATIONS)
    arguments.get("mlp_ratio")  # The arrays have the widths.
    if unknown := folder.unread_fields("model_args in config.json"):
        raise UserError(
            f"model_args in config.json has {', '.join(unknown)}, which the model here "
            f"does not have: {short(arguments[unknown[0]])}."
        )
    return _ACTIVATIONS[name]


def _class_names(config, cfg, number):
    """The names of the classes, a tuple of str, or ()."""
    places = (config, "label_names"), (cfg, "label_names"), (cfg, "labels")
    names = next((x for fields, name in places if (x := fields.get(name))), ())
    check_fields(config, label_offset=0)
    check_fields(cfg, label_offset=0)
    if isinstance(names, dict):
        names = [names.get(str(i)) for i in range(len(names))]
    if not isinstance(names, (list, tuple)) or any(
        type(x) is not str or len(x) > 200 for x in names
    ):
        raise UserError(
            "label_names in config.json must be a list of names, or an object of ids "
            f"and names. Received: {short(names)}"
        )
    if len(names) not in (0, number):
        raise UserError(
            f"label_names in config.json has {len(names)} names. Expected: {number}, "
            "one for each class of head.weight."
        )
    return tuple(names)


def _preprocessing(config, image_size):
    """The bindings of evaluation's images, as the weights were trained for."""
    check_fields(config, crop_border_pixels=0)
    size = config.get("input_size")
    if size not in (None, [3, image_size, image_size]):
        raise UserError(
            f"input_size in config.json must be {[3, image_size, image_size]}, as the "
            f"arrays have it. Received: {short(size)}"
        )
    bindings = {
        f"normalize.{name}": tuple(255.0 * x for x in reals(config, name, (0.5,) * 3))
        for name in ("mean", "std")
    }
    method = word(config, "interpolation", "bicubic", METHODS)
    mode = word(config, "crop_mode", "center", ("center", "squash"))
    return bindings | {
        "resize_and_center_crop.share": real(config, "crop_pct", 0.875, 0.01, 1.0),
        "resize_and_center_crop.method": METHODS[method],
        "resize_and_center_crop.squash": mode == "squash",
    }
