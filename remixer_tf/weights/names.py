"""The names of our variables in published weights: one table for each format.

A row is (pattern, name, change). The pattern matches the path of a variable without the
model's name. Its groups are filled into `name`, the array's name there. `change` turns
the array's axes into the variable's.
"""

import functools
import math
import re

import numpy as np

# Hugging Face's names of activations, and ours. "gated-gelu" alone is the tanh form.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "swish": "silu",
}


def same(array):
    """The array as it is."""
    return array


# Stack, our sublayer, its number in a block, Mesh TensorFlow's and T5X's names of it.
_SUBLAYERS = (
    ("encoder", "self_attention", 0, "SelfAttention", "attention"),
    ("encoder", "feed_forward", 1, "DenseReluDense", "mlp"),
    ("decoder", "self_attention", 0, "SelfAttention", "self_attention"),
    ("decoder", "cross_attention", 1, "EncDecAttention", "encoder_decoder_attention"),
    ("decoder", "feed_forward", 2, "DenseReluDense", "mlp"),
)


def _t5(embedding, logits, bias, final_norm, names, change=same):
    r"""A table of T5: names of what stands outside blocks, and of sublayers.

    `names` maps a row of `_SUBLAYERS` to the names of a sublayer's kernels and of its
    norm. The number of the block is \1, a kernel's name here \2, and its first letter
    \3. `change` is that of the kernels and of the bias.
    """
    rows = [
        ("token_embedding/embeddings", embedding, same),
        ("logits/kernel", logits, change),
        (r"(encoder|decoder)/position_bias/rel_embedding", bias, change),
        (r"(encoder|decoder)/final_norm/scale", final_norm, same),
    ]
    for row in _SUBLAYERS:
        layer, (kernel, norm) = rf"{row[0]}/layer_(\d+)_{row[1]}", names(*row)
        rows.append((rf"{layer}/{row[1]}/((\w)\w*)/kernel", kernel, change))
        rows.append((f"{layer}/norm/scale", norm, same))
    return tuple(rows)


def _hugging_face(stack, ours, number, theirs, _):
    layer, kernel = rf"{stack}.block.\1.layer.{number}", _projection(ours)
    return rf"{layer}.{theirs}.{kernel}.weight", f"{layer}.layer_norm.weight"


def _t5x(stack, ours, number, _, theirs):
    norm = theirs.replace("encoder_decoder", "cross")
    layer = rf"{stack}/layers_\1"
    return rf"{layer}/{theirs}/\2/kernel", f"{layer}/pre_{norm}_layer_norm/scale"


def _projection(sublayer):
    """Query, key, value and out are q, k, v and o elsewhere."""
    return r"\2" if sublayer == "feed_forward" else r"\3"


HUGGING_FACE_T5 = (
    *_t5(
        "shared.weight",
        "lm_head.weight",
        r"\1.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        r"\1.final_layer_norm.weight",
        _hugging_face,
        np.transpose,
    ),
    (  # umT5
        r"(encoder|decoder)/layer_(\d+)_self_attention/self_attention/position_bias"
        "/rel_embedding",
        r"\1.block.\2.layer.0.SelfAttention.relative_attention_bias.weight",
        np.transpose,
    ),
)

T5X = _t5(
    "token_embedder/embedding",
    "decoder/logits_dense/kernel",
    r"\1/relpos_bias/rel_embedding",
    r"\1/\1_norm/scale",
    _t5x,
)


def mesh_tensorflow(norm, final_norm):
    """Mesh TensorFlow's T5; numbers of blocks have three digits, see `find_name`.

    `norm` and `final_norm` are what it called its norms: "rms_norm" and "rms_norm", or
    "layer_norm" and "final_layer_norm" in its first checkpoints.
    """

    def names(stack, ours, number, theirs, _):
        layer, kernel = rf"{stack}/block_\1/layer_{number:03}", _projection(ours)
        kernel += "/kernel" if ours == "feed_forward" else ""
        return f"{layer}/{theirs}/{kernel}", f"{layer}/{norm}/scale"

    return _t5(
        "shared/embedding",
        "decoder/logits/kernel",
        r"\1/block_000/layer_000/SelfAttention/relative_attention_bias",
        rf"\1/{final_norm}/scale",
        names,
    )


def _column(array):
    return array[:, None]


def _one(array):
    return array[None]


def _first(array):
    return array[0]


def _vector(array):
    return array.reshape(-1)


def _patches(array):
    """`[d_model, channels, height, width]` to a kernel over vec(patch)."""
    return array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0])


def _of_patches(kernel, channels=3):
    side = math.isqrt(len(kernel) // channels)
    array = kernel.reshape(side, side, channels, -1)
    return array.transpose(3, 2, 0, 1)


def _third(number, array):
    return np.split(array, 3)[number].T


# Query, key and value are one array, one after the other.
_THIRDS = tuple(functools.partial(_third, number) for number in range(3))

# Changes of timm's arrays, and what turns them back. Variables of one array follow one
# another along its first axis.
TIMM_BACK = {
    same: same,
    np.transpose: np.transpose,
    _column: lambda x: x[:, 0],
    _one: _first,
    _first: _one,
    _vector: lambda x: x.reshape(1, 1, -1),
    _patches: _of_patches,
    **dict.fromkeys(_THIRDS, np.transpose),
}


def _timm(stem="stem", norm=True):
    rows = (
        ("patch_embedding/projection/kernel", f"{stem}.proj.weight", _patches),
        ("patch_embedding/projection/bias", f"{stem}.proj.bias", same),
        ("logits/kernel", "head.weight", np.transpose),
        ("logits/bias", "head.bias", same),
    )
    return rows + (_norm if norm else _affine)("stack/final_norm", "norm")


def _dense(ours, theirs):
    return (
        (f"{ours}/kernel", f"{theirs}.weight", np.transpose),
        (f"{ours}/bias", f"{theirs}.bias", same),
    )


def _norm(ours, theirs):
    return (
        (f"{ours}/gamma", f"{theirs}.weight", same),
        (f"{ours}/beta", f"{theirs}.bias", same),
    )


def _affine(ours, theirs):
    return (
        (f"{ours}/gamma", f"{theirs}.alpha", _vector),
        (f"{ours}/beta", f"{theirs}.beta", _vector),
    )


_ATTENTION = r"encoder/layer_(\d+)_self_attention"
_FEED_FORWARD = r"encoder/layer_(\d+)_feed_forward"


def bert_rows(prefix):
    """The table of Hugging Face's BERT; names of its encoder begin with `prefix`."""
    layer = rf"{prefix}encoder.layer.\1"
    embeddings = {
        "token_embedding": "word",
        "type_embedding": "token_type",
        "encoder/positions": "position",
    }
    return (
        *(
            (f"{ours}/embeddings", f"{prefix}embeddings.{name}_embeddings.weight", same)
            for ours, name in embeddings.items()
        ),
        *_norm("encoder/input_norm", f"{prefix}embeddings.LayerNorm"),
        *(
            row
            for name in ("query", "key", "value")
            for row in _dense(
                f"{_ATTENTION}/self_attention/{name}", f"{layer}.attention.self.{name}"
            )
        ),
        *_dense(f"{_ATTENTION}/self_attention/out", f"{layer}.attention.output.dense"),
        *_norm(f"{_ATTENTION}/norm", f"{layer}.attention.output.LayerNorm"),
        *_dense(f"{_FEED_FORWARD}/feed_forward/wi", f"{layer}.intermediate.dense"),
        *_dense(f"{_FEED_FORWARD}/feed_forward/wo", f"{layer}.output.dense"),
        *_norm(f"{_FEED_FORWARD}/norm", f"{layer}.output.LayerNorm"),
        *_dense("head/transform", "cls.predictions.transform.dense"),
        *_norm("head/norm", "cls.predictions.transform.LayerNorm"),
        ("head/bias", "cls.predictions.bias", same),
        *_dense("head/pooler", f"{prefix}pooler.dense"),
        *_dense("head/classifier", "classifier"),
        *_dense("head/span", "qa_outputs"),
    )


_GMLP = r"stack/layer_(\d+)_gmlp"
TIMM_GMLP = (
    *_timm(),
    *_norm(f"{_GMLP}/norm", r"blocks.\1.norm"),
    *_dense(f"{_GMLP}/gmlp/wi", r"blocks.\1.mlp_channels.fc1"),
    *_dense(f"{_GMLP}/gmlp/wo", r"blocks.\1.mlp_channels.fc2"),
    *_norm(f"{_GMLP}/gmlp/gating/norm", r"blocks.\1.mlp_channels.gate.norm"),
    (
        f"{_GMLP}/gmlp/gating/mixing/mixing_matrix",  # [1, target, source]
        r"blocks.\1.mlp_channels.gate.proj.weight",
        _one,
    ),
    (
        f"{_GMLP}/gmlp/gating/mixing/spatial_bias",
        r"blocks.\1.mlp_channels.gate.proj.bias",
        same,
    ),
)

_TOKENS = r"stack/layer_(\d+)_token_mixing"
_CHANNELS = r"stack/layer_(\d+)_feed_forward"
TIMM_MIXER = (
    *_timm(),
    *_norm(f"{_TOKENS}/norm", r"blocks.\1.norm1"),
    (f"{_TOKENS}/token_mixing/wi", r"blocks.\1.mlp_tokens.fc1.weight", same),
    (f"{_TOKENS}/token_mixing/wi_bias", r"blocks.\1.mlp_tokens.fc1.bias", _column),
    (f"{_TOKENS}/token_mixing/wo", r"blocks.\1.mlp_tokens.fc2.weight", same),
    (f"{_TOKENS}/token_mixing/wo_bias", r"blocks.\1.mlp_tokens.fc2.bias", _column),
    *_norm(f"{_CHANNELS}/norm", r"blocks.\1.norm2"),
    *_dense(f"{_CHANNELS}/feed_forward/wi", r"blocks.\1.mlp_channels.fc1"),
    *_dense(f"{_CHANNELS}/feed_forward/wo", r"blocks.\1.mlp_channels.fc2"),
)

TIMM_RESMLP = (
    *_timm(norm=False),
    *_affine(f"{_TOKENS}/norm", r"blocks.\1.norm1"),
    (f"{_TOKENS}/scale", r"blocks.\1.ls1", same),
    (
        f"{_TOKENS}/token_mixing/mixing_matrix",
        r"blocks.\1.linear_tokens.weight",
        _one,
    ),
    (f"{_TOKENS}/token_mixing/spatial_bias", r"blocks.\1.linear_tokens.bias", same),
    *_affine(f"{_CHANNELS}/norm", r"blocks.\1.norm2"),
    (f"{_CHANNELS}/scale", r"blocks.\1.ls2", same),
    *_dense(f"{_CHANNELS}/feed_forward/wi", r"blocks.\1.mlp_channels.fc1"),
    *_dense(f"{_CHANNELS}/feed_forward/wo", r"blocks.\1.mlp_channels.fc2"),
)

_HEADS = r"stack/layer_(\d+)_self_attention"
TIMM_VIT = (
    *_timm("patch_embed"),
    ("class_token", "cls_token", same),
    ("stack/positions/embeddings", "pos_embed", _first),
    *_norm(f"{_HEADS}/norm", r"blocks.\1.norm1"),
    *(
        (f"{_HEADS}/self_attention/{name}/{part}", rf"blocks.\1.attn.qkv.{x}", third)
        for part, x in (("kernel", "weight"), ("bias", "bias"))
        for name, third in zip(("query", "key", "value"), _THIRDS, strict=True)
    ),
    *_dense(f"{_HEADS}/self_attention/out", r"blocks.\1.attn.proj"),
    *_norm(f"{_CHANNELS}/norm", r"blocks.\1.norm2"),
    *_dense(f"{_CHANNELS}/feed_forward/wi", r"blocks.\1.mlp.fc1"),
    *_dense(f"{_CHANNELS}/feed_forward/wo", r"blocks.\1.mlp.fc2"),
)


def find_name(path, rows):
    """Looks up a variable, by its path without the model's name, in such a table.

    Returns (name, change), or (None, None) if the format has no such array.
    """
    for pattern, name, change in rows:
        if match := re.fullmatch(pattern, path):
            name = match.expand(name)
            # Mesh TensorFlow writes block_007.
            name = re.sub(r"(?<=/block_)\d+", lambda m: m[0].zfill(3), name)
            return name, change
    return None, None
