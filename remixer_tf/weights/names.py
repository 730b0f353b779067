"""What published weights call our variables: one table for each format.

A row is (pattern, name, change). The variable whose path, without the model's name,
matches the pattern is the array `name` there, in which the pattern's groups are filled
in, after `change` of its axes.
"""

import re

import numpy as np


def same(array):
    """The array as it is."""
    return array


_LAYER = r"(encoder|decoder)/layer_(\d+)"
_PROJECTION = r"([qkvo])\w+/kernel"  # query, key, value, out
_MATRIX = r"(wi|wi_0|wi_1|wo)/kernel"

HUGGING_FACE_T5 = (
    ("token_embedding/embeddings", "shared.weight", same),
    ("logits/kernel", "lm_head.weight", np.transpose),
    (
        r"(encoder|decoder)/position_bias/rel_embedding",
        r"\1.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        np.transpose,
    ),
    (r"(encoder|decoder)/final_norm/scale", r"\1.final_layer_norm.weight", same),
    (
        f"{_LAYER}_self_attention/self_attention/{_PROJECTION}",
        r"\1.block.\2.layer.0.SelfAttention.\3.weight",
        np.transpose,
    ),
    (
        f"{_LAYER}_self_attention/norm/scale",
        r"\1.block.\2.layer.0.layer_norm.weight",
        same,
    ),
    (
        f"{_LAYER}_cross_attention/cross_attention/{_PROJECTION}",
        r"\1.block.\2.layer.1.EncDecAttention.\3.weight",
        np.transpose,
    ),
    (
        f"{_LAYER}_cross_attention/norm/scale",
        r"\1.block.\2.layer.1.layer_norm.weight",
        same,
    ),
    # The encoder's layers are two sublayers, the decoder's three.
    (
        rf"(encoder)/layer_(\d+)_feed_forward/feed_forward/{_MATRIX}",
        r"\1.block.\2.layer.1.DenseReluDense.\3.weight",
        np.transpose,
    ),
    (
        r"(encoder)/layer_(\d+)_feed_forward/norm/scale",
        r"\1.block.\2.layer.1.layer_norm.weight",
        same,
    ),
    (
        rf"(decoder)/layer_(\d+)_feed_forward/feed_forward/{_MATRIX}",
        r"\1.block.\2.layer.2.DenseReluDense.\3.weight",
        np.transpose,
    ),
    (
        r"(decoder)/layer_(\d+)_feed_forward/norm/scale",
        r"\1.block.\2.layer.2.layer_norm.weight",
        same,
    ),
)

T5X = (
    ("token_embedding/embeddings", "token_embedder/embedding", same),
    ("logits/kernel", "decoder/logits_dense/kernel", same),
    (
        r"(encoder|decoder)/position_bias/rel_embedding",
        r"\1/relpos_bias/rel_embedding",
        same,
    ),
    (r"(encoder|decoder)/final_norm/scale", r"\1/\1_norm/scale", same),
    (
        r"encoder/layer_(\d+)_self_attention/self_attention/(\w+/kernel)",
        r"encoder/layers_\1/attention/\2",
        same,
    ),
    (
        r"encoder/layer_(\d+)_self_attention/norm/scale",
        r"encoder/layers_\1/pre_attention_layer_norm/scale",
        same,
    ),
    (
        r"decoder/layer_(\d+)_self_attention/self_attention/(\w+/kernel)",
        r"decoder/layers_\1/self_attention/\2",
        same,
    ),
    (
        r"decoder/layer_(\d+)_self_attention/norm/scale",
        r"decoder/layers_\1/pre_self_attention_layer_norm/scale",
        same,
    ),
    (
        r"decoder/layer_(\d+)_cross_attention/cross_attention/(\w+/kernel)",
        r"decoder/layers_\1/encoder_decoder_attention/\2",
        same,
    ),
    (
        r"decoder/layer_(\d+)_cross_attention/norm/scale",
        r"decoder/layers_\1/pre_cross_attention_layer_norm/scale",
        same,
    ),
    (
        f"{_LAYER}_feed_forward/feed_forward/{_MATRIX}",
        r"\1/layers_\2/mlp/\3/kernel",
        same,
    ),
    (
        f"{_LAYER}_feed_forward/norm/scale",
        r"\1/layers_\2/pre_mlp_layer_norm/scale",
        same,
    ),
)


def mesh_tensorflow(norm, final_norm):
    """Mesh TensorFlow's T5; numbers of blocks have three digits, see `find_name`.

    Args:
        norm, final_norm: str, what it called its norms: "rms_norm" and "rms_norm", or
            "layer_norm" and "final_layer_norm" in its first checkpoints.
    """
    return (
        ("token_embedding/embeddings", "shared/embedding", same),
        ("logits/kernel", "decoder/logits/kernel", same),
        (
            r"(encoder|decoder)/position_bias/rel_embedding",
            r"\1/block_000/layer_000/SelfAttention/relative_attention_bias",
            same,
        ),
        (r"(encoder|decoder)/final_norm/scale", rf"\1/{final_norm}/scale", same),
        (
            f"{_LAYER}_self_attention/self_attention/{_PROJECTION}",
            r"\1/block_\2/layer_000/SelfAttention/\3",
            same,
        ),
        (
            f"{_LAYER}_self_attention/norm/scale",
            rf"\1/block_\2/layer_000/{norm}/scale",
            same,
        ),
        (
            f"{_LAYER}_cross_attention/cross_attention/{_PROJECTION}",
            r"\1/block_\2/layer_001/EncDecAttention/\3",
            same,
        ),
        (
            f"{_LAYER}_cross_attention/norm/scale",
            rf"\1/block_\2/layer_001/{norm}/scale",
            same,
        ),
        (
            rf"(encoder)/layer_(\d+)_feed_forward/feed_forward/{_MATRIX}",
            r"\1/block_\2/layer_001/DenseReluDense/\3/kernel",
            same,
        ),
        (
            r"(encoder)/layer_(\d+)_feed_forward/norm/scale",
            rf"\1/block_\2/layer_001/{norm}/scale",
            same,
        ),
        (
            rf"(decoder)/layer_(\d+)_feed_forward/feed_forward/{_MATRIX}",
            r"\1/block_\2/layer_002/DenseReluDense/\3/kernel",
            same,
        ),
        (
            r"(decoder)/layer_(\d+)_feed_forward/norm/scale",
            rf"\1/block_\2/layer_002/{norm}/scale",
            same,
        ),
    )


def _column(array):
    return array[:, None]


_TIMM = (
    (
        "patch_embedding/projection/kernel",
        "stem.proj.weight",  # [d_model, channels, height, width]
        lambda x: x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0]),
    ),
    ("patch_embedding/projection/bias", "stem.proj.bias", same),
    ("stack/final_norm/gamma", "norm.weight", same),
    ("stack/final_norm/beta", "norm.bias", same),
    ("logits/kernel", "head.weight", np.transpose),
    ("logits/bias", "head.bias", same),
)


def _timm_dense(ours, theirs):
    return (
        (f"{ours}/kernel", f"{theirs}.weight", np.transpose),
        (f"{ours}/bias", f"{theirs}.bias", same),
    )


def _timm_norm(ours, theirs):
    return (
        (f"{ours}/gamma", f"{theirs}.weight", same),
        (f"{ours}/beta", f"{theirs}.bias", same),
    )


_GMLP = r"stack/layer_(\d+)_gmlp"
TIMM_GMLP = (
    *_TIMM,
    *_timm_norm(f"{_GMLP}/norm", r"blocks.\1.norm"),
    *_timm_dense(f"{_GMLP}/gmlp/wi", r"blocks.\1.mlp_channels.fc1"),
    *_timm_dense(f"{_GMLP}/gmlp/wo", r"blocks.\1.mlp_channels.fc2"),
    *_timm_norm(f"{_GMLP}/gmlp/gating/norm", r"blocks.\1.mlp_channels.gate.norm"),
    (
        f"{_GMLP}/gmlp/gating/mixing/mixing_matrix",  # [1, target, source]
        r"blocks.\1.mlp_channels.gate.proj.weight",
        lambda x: x[None],
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
    *_TIMM,
    *_timm_norm(f"{_TOKENS}/norm", r"blocks.\1.norm1"),
    (f"{_TOKENS}/token_mixing/wi", r"blocks.\1.mlp_tokens.fc1.weight", same),
    (f"{_TOKENS}/token_mixing/wi_bias", r"blocks.\1.mlp_tokens.fc1.bias", _column),
    (f"{_TOKENS}/token_mixing/wo", r"blocks.\1.mlp_tokens.fc2.weight", same),
    (f"{_TOKENS}/token_mixing/wo_bias", r"blocks.\1.mlp_tokens.fc2.bias", _column),
    *_timm_norm(f"{_CHANNELS}/norm", r"blocks.\1.norm2"),
    *_timm_dense(f"{_CHANNELS}/feed_forward/wi", r"blocks.\1.mlp_channels.fc1"),
    *_timm_dense(f"{_CHANNELS}/feed_forward/wo", r"blocks.\1.mlp_channels.fc2"),
)


def find_name(path, rows):
    """Looks a variable up in a table.

    Args:
        path: str, of the variable, without the model's name.
        rows: a table of this module.

    Returns:
        (name, change), or (None, None) if the format has no such array.
    """
    for pattern, name, change in rows:
        if match := re.fullmatch(pattern, path):
            name = match.expand(name)
            # Mesh TensorFlow writes block_007.
            name = re.sub(r"(?<=/block_)\d+", lambda m: m[0].zfill(3), name)
            return name, change
    return None, None
