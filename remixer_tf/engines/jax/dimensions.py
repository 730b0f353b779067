"""The names of the dimensions of a model's variables.

One table of the variables' paths, so that layers know nothing of meshes.
"""

import re

# What a rule may name.
DIMENSIONS = {
    "batch": "the examples of a batch",
    "d_model": "the width of the residual stream",
    "d_ff": "the hidden units of feed-forward layers, gMLP and Remixer blocks",
    "heads": "the heads of an attention, with their queries, keys and values",
    "vocab": "the pieces of the vocabulary",
    "experts": "the experts of a mixture (`MoE`)",
    "mixing_heads": "the matrices of a static mixing: heads, or sMLP's spatial experts",
    "ensemble": "nothing here; T5's released rules name it",
}

_SUBLAYER = r".*/layer_\d+_[^/]+/[^/]+/"
_TINY_ATTENTION = _SUBLAYER + "attention/"

# (expression that the whole path of a variable matches, its dimensions' names). A row
# holds for variables of its rank alone. None is never split: it is small, it is no
# whole number of parts, or, in a vector along d_model, would be gathered at every use
# and save nothing. Of [d_model, d_model], one axis alone can be split.
#
# A module of one's own appends the rows of its layers.
ROWS = [
    (r".*/token_embedding/embeddings", ("vocab", "d_model")),
    (r".*/(type_embedding|positions)/embeddings", (None, "d_model")),
    (r".*/(norm|input_norm|final_norm)/(scale|gamma|beta)", (None,)),
    (r".*/position_bias/rel_embedding", ("heads", None)),
    (r".*/seed_generator/seed_generator_state", (None,)),
    # Attention: [d_model, heads * d_kv] and back.
    (_SUBLAYER + "(query|key|value)/kernel", ("d_model", "heads")),
    (_SUBLAYER + "(query|key|value)/bias", ("heads",)),
    (_SUBLAYER + "out/kernel", ("heads", "d_model")),
    (_SUBLAYER + "out/bias", (None,)),
    # aMLP's one small head, which adds to the gate.
    (_TINY_ATTENTION + "(query|key|value)/kernel", ("d_model", None)),
    (_TINY_ATTENTION + "(query|key|value)/bias", (None,)),
    (_TINY_ATTENTION + "out/kernel", (None, "d_ff")),
    (_TINY_ATTENTION + "out/bias", ("d_ff",)),
    # Feed-forward layers, gMLP and Remixer blocks.
    (_SUBLAYER + r"wi(_\d)?/kernel", ("d_model", "d_ff")),
    (_SUBLAYER + r"wi(_\d)?/bias", ("d_ff",)),
    (_SUBLAYER + "wo/kernel", ("d_ff", "d_model")),
    (_SUBLAYER + "wo/bias", (None,)),
    (_SUBLAYER + "(alpha_gate|gate)/kernel", (None, "d_ff")),
    (_SUBLAYER + "(alpha_gate|gate)/bias", ("d_ff",)),
    (_SUBLAYER + "alpha_logit", ()),
    (_SUBLAYER + "alpha_logit", ("d_ff",)),
    # Static mixing: [heads, 2n - 1] or [heads, n, n], and biases of positions.
    (r".*/mixing/mixing_matrix", ("mixing_heads", None)),
    (r".*/mixing/mixing_matrix", ("mixing_heads", None, None)),
    (r".*/mixing/spatial_bias", (None,)),
    (r".*/mixing/spatial_bias", ("mixing_heads", None)),
    (r".*/gating/router", (None, None)),
    # MLP-Mixer: [d_tokens, positions] and back, or to one position.
    (_SUBLAYER + r"(wi|wi_0|wi_1|wo|wi_bias|wo_bias)", (None, None)),
    (_SUBLAYER + "(wo|wo_bias)", (None,)),
    # Mixtures of experts.
    (_SUBLAYER + r"wi(_\d)?", ("experts", "d_model", "d_ff")),
    (_SUBLAYER + "wo", ("experts", "d_ff", "d_model")),
    (_SUBLAYER + "router/kernel", (None, None)),
    (_SUBLAYER + "router/table", (None,)),
    # What stands before and after a stack.
    (r"(?!image_classifier)\w+/logits/kernel", ("d_model", "vocab")),
    (r"\w+/head/bias", ("vocab",)),
    (r"\w+/head/transform/kernel", ("d_model", None)),
    (r"\w+/head/(pooler|classifier|span)/kernel", ("d_model", None)),
    (r"\w+/head/(transform|pooler|classifier|span)/bias", (None,)),
    (r"\w+/patch_embedding/projection/kernel", (None, "d_model")),
    (r"\w+/patch_embedding/projection/bias", (None,)),
    (r"\w+/class_token", (None, None, None)),
    (r"\w+/pre_logits/kernel", ("d_model", None)),
    (r"image_classifier\w*/logits/kernel", ("d_model", None)),
    (r"\w+/(pre_logits|logits)/bias", (None,)),
]


def dimension_names(path, shape):
    """Names a variable's dimensions, by the one row of `ROWS` that it matches.

    Args:
        path: str, of the Keras variable.
        shape: tuple of ints.

    Returns:
        tuple of str, with None for a dimension that is never split.

    Raises:
        ValueError: no row, or more than one, is about this variable.
    """
    rows = [
        (expression, names)
        for expression, names in ROWS
        if len(names) == len(shape) and re.fullmatch(expression, path)
    ]
    if len(rows) != 1:
        raise ValueError(
            "One row of remixer_tf.engines.jax.dimensions.ROWS names a variable's "
            f"dimensions. Received: {path}, of shape {list(shape)}, which matches "
            f"{rows or 'none'}. For a layer of your own, append a row (expression, "
            f"names) with {len(shape)} name(s); of several, make the expressions "
            "narrower."
        )
    return rows[0][1]
