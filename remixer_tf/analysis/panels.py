"""From what layers told to the figures that show it."""

import re

import numpy as np

from remixer_tf.analysis.figures import Curves, Map, draw_alpha, draw_grid
from remixer_tf.layers import CrossAttention, LengthMixing

_SHOWN_ROWS = 5


def draw_observations(observations, where, image_side=None):
    """Draws mixing matrices beside the mean attention maps, and alpha.

    A row is a layer. Static mixing through a softmax is shown as weights ("Remixers",
    Figure 2); without one (spatial gating units) as a signed matrix, and beside it some
    of its rows as curves (gMLP, Figures 3 and 4). Of a Toeplitz matrix the curve is its
    weights over the relative position (gMLP, Figure 9), before a softmax if there is
    one.

    Args:
        observations: from `observe`, for a batch.
        where: str, what the titles say of the model and the data.
        image_side: int, how many patches an image's side has, for rows as images (gMLP,
            Figure 3); None for text.

    Returns:
        dictionary of names to figures; empty if there is nothing to show.
    """
    stacks, alphas = {}, {}
    for layer, name, value in observations:
        stack, index, place = _locate(layer)
        if name == "alpha":
            alphas.setdefault(stack, []).append((index, value))
            continue
        row = stacks.setdefault(stack, {}).setdefault(f"layer {index}", {})
        if name == "attention":
            row[f"{place}: mean of heads"] = Map(value.mean(axis=0))
        else:
            row.update(_mixing_panels(layer, place, value, image_side))
    figures = {
        f"{stack}_matrices": draw_grid(f"{stack}: {where}", rows)
        for stack, rows in stacks.items()
    }
    if alphas:
        figures["alpha"] = draw_alpha(alphas)
    return figures


def draw_attention(observations, tokens, where):
    """Draws the attention in one example, between named tokens (gMLP, Figure 10).

    Args:
        observations: from `observe`, for a batch of one example.
        tokens: dictionary of 'encoder' and 'decoder' to (names of the tokens that a
            position reads, names of those that label its row).
        where: str, what the titles say.

    Returns:
        dictionary of names to figures; empty if no layer attends.
    """
    stacks = {}
    for layer, name, value in observations:
        stack, index, place = _locate(layer)
        if name != "attention":
            continue
        # A model of one stack may call it as it likes.
        queries = stack if stack in tokens else next(iter(tokens))
        keys = "encoder" if isinstance(layer, CrossAttention) else queries
        panel = Map(value.mean(axis=0), x=tokens[keys][0], y=tokens[queries][1])
        row = stacks.setdefault(stack, {}).setdefault(f"layer {index}", {})
        row[f"{place}: mean of heads"] = panel
    return {
        f"{stack}_text_attention": draw_grid(f"{stack}: {where}", rows)
        for stack, rows in stacks.items()
    }


def _mixing_panels(layer, place, matrices, image_side):
    """Returns {title: panel} of a mixing layer's matrices `[heads, length, length]`."""
    panels = {}
    symbol = "softmax(H)" if layer.softmax else "W"
    for head, matrix in enumerate(matrices):
        name = f"{place}: {symbol}"
        if len(matrices) > 1:
            name += f", head {head}"
        panels[name] = Map(matrix, signed=not layer.softmax)
    if layer.toeplitz:
        panels[f"{place}: filter"] = _toeplitz_curves(layer, matrices.shape[-1])
    elif not layer.softmax:
        name, panel = f"{place}: rows of {symbol}", _row_curves(matrices[0])
        if image_side:
            name, panel = f"{name} as images", _row_images(matrices[0], image_side)
        panels[name] = panel
    return panels


def _toeplitz_curves(layer, length):
    positions = np.arange(1 - length, 1 if layer.causal else length)
    weights = np.asarray(layer.mixing_matrix)[:, layer.max_length - 1 + positions]
    lines = {f"head {head}": line for head, line in enumerate(weights)}
    return Curves(positions, lines, "source - target")


def _chosen(length):
    return np.linspace(0, length - 1, min(_SHOWN_ROWS, length)).astype(int)


def _row_images(matrix, side):
    """A square of images, each the row of a patch, at that patch's place."""
    patches = matrix[-side * side :, -side * side :]  # a class token stands first
    places = _chosen(side)
    mosaic = np.full((len(places) * (side + 1) - 1,) * 2, np.nan)
    for i, row in enumerate(places):
        for j, column in enumerate(places):
            image = patches[row * side + column].reshape(side, side)
            start, left = i * (side + 1), j * (side + 1)
            mosaic[start : start + side, left : left + side] = image
    return Map(mosaic, signed=True, x=[], y=[])


def _row_curves(matrix):
    chosen = _chosen(len(matrix))
    lines = {f"row {t}": matrix[t] for t in chosen}
    return Curves(np.arange(len(matrix)), lines, "source")


def _locate(layer):
    """Returns (stack, number of the layer, place below it) from a layer's path."""
    match = re.search(r"([^/]+)/layer_(\d+)_[^/]+/(.+)", layer.path)
    if not match:
        return "model", 0, layer.path
    place = match[3]
    if isinstance(layer, LengthMixing):
        place = place.removesuffix("/mixing")
    return match[1], int(match[2]), place
