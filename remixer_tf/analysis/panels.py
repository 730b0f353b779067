"""Figures of the values that layers sow, with matplotlib."""

import itertools
from typing import NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from remixer_tf.analysis.observe import locate
from remixer_tf.layers import MixingFacts, Sublayer

_SHOWN_ROWS = 5
_COLUMNS = 6  # of a figure; a sparse gate has a matrix for each of many heads


_WHOLE = {"integer": True, "min_n_ticks": 1}  # of axes of positions


class Map(NamedTuple):
    """A matrix `[target, source]` as colours."""

    matrix: np.ndarray  # NaN stays white
    # Shows both signs, and zero white; else weights from 0 to their 99.5th percentile.
    signed: bool = False
    # Labels of columns and rows. None means positions, and an empty list no labels.
    x: list | None = None
    y: list | None = None

    def draw(self, figure, axis):
        matrix = self.matrix
        values = matrix[np.isfinite(matrix)]
        top = largest = np.abs(values).max(initial=0) or 1.0
        if not self.signed and len(values):
            top = np.percentile(values, 99.5) or largest
        image = axis.imshow(
            matrix,
            aspect="auto",
            interpolation="nearest",
            cmap="RdBu_r" if self.signed else "viridis",
            vmin=-top if self.signed else 0,
            vmax=top,
        )
        extend = "max" if largest > top else "neither"
        bar = figure.colorbar(image, ax=axis, extend=extend)
        bar.ax.tick_params(labelsize=7)
        axis.set_xlabel("" if self.x == [] else "source", fontsize=8)
        axis.set_ylabel("" if self.y == [] else "target", fontsize=8)
        for positions in (axis.xaxis, axis.yaxis):
            positions.get_major_locator().set_params(**_WHOLE)
        if self.x is not None:
            axis.set_xticks(range(len(self.x)), self.x, rotation=90, parse_math=False)
        if self.y is not None:
            axis.set_yticks(range(len(self.y)), self.y, parse_math=False)


class Curves(NamedTuple):
    """Lines over positions `[points]`: {label: array `[points]`}."""

    x: np.ndarray
    lines: dict
    xlabel: str

    def draw(self, figure, axis):
        for label, line in self.lines.items():
            axis.plot(self.x, line, linewidth=1, label=label)
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.xaxis.get_major_locator().set_params(**_WHOLE)
        axis.set_xlabel(self.xlabel, fontsize=8)
        axis.set_ylabel("weight", fontsize=8)
        if len(self.lines) > 1:
            axis.legend(fontsize=6, ncols=2)


def draw_models(models, where):
    """Draws mixing matrices, mean attention maps and alpha; a row is a layer of each.

    Static mixing with a softmax is shown as weights ("Remixers", Figure 2). Without one
    it is a signed matrix, with curves of some rows (gMLP, Figures 3 and 4). A Toeplitz
    matrix has a curve over the relative position, before any softmax (gMLP, Figure 9).
    With `image_side`, the number of patches of an image's side, rows are shown as
    images (gMLP, Figure 3).

    `models` is {title: (observations, image_side)}, the title "" for one model alone,
    and `image_side` None for text. Several are side by side, in the same figures.
    `where` names models and data in the titles. Returns {name: figure}, empty if there
    is nothing to show.
    """
    panels, alphas = [], {}
    for title, (observations, image_side) in models.items():
        sown = {(layer.path, name) for layer, name, _ in observations}
        for layer, name, value in observations:
            stack, index, place = locate(layer)
            # A part that mixes for its block has the block's name, unless both do.
            if (layer.path.removesuffix("/mixing"), name) not in sown:
                place = place.removesuffix("/mixing")
            if name == "alpha":
                label = f"{title}: {stack}" if title else stack
                alphas.setdefault(label, []).append((index, value))
                continue
            found = {f"{place}: mean of heads": Map(value.mean(axis=0))}
            if name == "mixing":
                found = _mixing_panels(layer, place, value, image_side)
            panels.append((stack, index, title, found))
    figures = _draw_stacks(panels, "matrices", where)
    if alphas:
        figures["alpha"] = _draw_alpha(alphas)
    return figures


def draw_attention(models, where):
    """Draws the attention in one example, between named tokens (gMLP, Figure 10).

    `models` is {title: (observations, tokens)}, the title "" for one alone.
    `observations` come from `observe`, for a batch of one example. `tokens` maps
    'encoder' and 'decoder' to two lists of str, the tokens read at each position, and
    the labels of its row. Returns {name: figure}, empty if no layer attends.
    """
    panels = []
    for title, (observations, tokens) in models.items():
        for layer, name, value in observations:
            if name != "attention":
                continue
            stack, index, place = locate(layer)
            # A single stack may have any name.
            queries = stack if stack in tokens else next(iter(tokens))
            keys = "encoder" if getattr(layer, "reads_encoder", False) else queries
            panel = Map(value.mean(axis=0), x=tokens[keys][0], y=tokens[queries][1])
            panels.append((stack, index, title, {f"{place}: mean of heads": panel}))
    return _draw_stacks(panels, "text_attention", where)


def _draw_stacks(panels, name, where):
    """Draws a figure for each stack of (stack, layer's number, model, panels).

    Panels are {title: panel}. A title begins with that of the model, unless it is "".
    """
    stacks = {}
    for stack, index, model, found in panels:
        row = stacks.setdefault(stack, {}).setdefault(index, {})
        for title, panel in found.items():
            title = f"{model}\n{title}" if model else title
            row[_unused(title, row)] = panel
    return {
        f"{stack}_{name}": _draw_grid(f"{stack}: {where}", dict(sorted(rows.items())))
        for stack, rows in stacks.items()
    }


def _unused(title, row):
    """Returns a title that a row lacks: a layer that is called again sows again."""
    numbered = (f"{title} ({i})" for i in itertools.count(2))
    return next(x for x in itertools.chain([title], numbered) if x not in row)


def _mixing_panels(layer, place, matrices, image_side):
    """Returns {title: panel} of a mixing layer's matrices `[heads, length, length]`.

    Any layer may sow them. A `Sublayer` says more of its matrices.
    """
    known = isinstance(layer, Sublayer)
    facts = layer.mixing_facts(matrices.shape[-1]) if known else MixingFacts()
    signed, symbol = facts.signed, facts.symbol
    if signed is None:
        signed = bool((matrices < 0).any())
    several = len(matrices) > 1
    panels = {
        f"{place}: {symbol}" + f", head {head}" * several: Map(matrix, signed=signed)
        for head, matrix in enumerate(matrices)
    }
    rows = f"{place}: rows of {symbol}" + ", head 0" * several
    if facts.filter is not None:
        panels[f"{place}: filter"] = _filter_curves(facts.filter, matrices.shape[-1])
    elif image_side and signed:
        panels[f"{rows} as images"] = _row_images(matrices[0], image_side)
    elif signed:
        matrix = matrices[0]
        lines = {f"row {t}": matrix[t] for t in _chosen(len(matrix))}
        panels[rows] = Curves(np.arange(len(matrix)), lines, "source")
    return panels


def _filter_curves(weights, length):
    weights = keras.ops.convert_to_numpy(weights)
    positions = np.arange(weights.shape[-1]) + 1 - length
    lines = {f"head {head}": line for head, line in enumerate(weights)}
    return Curves(positions, lines, "source - target")


def _chosen(length):
    return np.linspace(0, length - 1, min(_SHOWN_ROWS, length)).astype(int)


def _row_images(matrix, side):
    """Returns a square of images: each is the row of a patch, at its place."""
    patches = matrix[-side * side :, -side * side :]  # without a class token
    places = _chosen(side)
    mosaic = np.full((len(places) * (side + 1) - 1,) * 2, np.nan)
    for i, row in enumerate(places):
        for j, column in enumerate(places):
            image = patches[row * side + column].reshape(side, side)
            start, left = i * (side + 1), j * (side + 1)
            mosaic[start : start + side, left : left + side] = image
    return Map(mosaic, signed=True, x=[], y=[])


def _draw_grid(title, rows):
    """Draws a row for each layer and a column for each title.

    Where there are more than `_COLUMNS` titles, a layer's panels fill rows of so many.
    """
    titles = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = min(len(titles), _COLUMNS)
    lines = []
    for index, row in rows.items():
        names = titles if width == len(titles) else list(row)
        lines += [
            (index, row, names[i : i + width]) for i in range(0, len(names), width)
        ]
    panels = [panel for row in rows.values() for panel in row.values()]
    tokens = [len(p.x or ()) for p in panels if isinstance(p, Map)]
    size = max(2.6, 0.16 * max(tokens, default=0))  # inches; labels have to fit
    figure = Figure(
        figsize=((size + 1.3) * width, (size + 0.4) * len(lines) + 0.6),
        layout="constrained",
    )
    figure.suptitle(title)
    grid = figure.subplots(len(lines), width, squeeze=False)
    for (index, row, names), axes in zip(lines, grid, strict=True):
        for name, axis in itertools.zip_longest(names, axes):
            if name not in row:
                axis.axis("off")
                continue
            row[name].draw(figure, axis)
            axis.set_title(f"layer {index}\n{name}", fontsize=9)
            axis.tick_params(labelsize=7)
    return figure


def _draw_alpha(lines):
    """Draws mean, least and largest value of {label: [(layer, alpha)]}."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    for i, (label, points) in enumerate(lines.items()):
        layers = [layer for layer, _ in points]
        means = np.array([values.mean() for _, values in points])
        below = means - [values.min() for _, values in points]
        above = [values.max() for _, values in points] - means
        # A mean of equal values may be rounded past them.
        errors = np.maximum([below, above], 0)
        # Later lines are thinner, so that equal ones stay visible.
        style = {"marker": "o", "markersize": 10 / (i + 1), "linewidth": 4 / (i + 1)}
        axis.errorbar(layers, means, errors, capsize=4, label=label, **style)
    axis.set(title="alpha: mean, least and largest", xlabel="layer", ylabel="alpha")
    axis.set_ylim(-0.05, 1.05)
    axis.xaxis.get_major_locator().set_params(**_WHOLE)
    axis.legend()
    axis.grid(alpha=0.3)
    return figure
