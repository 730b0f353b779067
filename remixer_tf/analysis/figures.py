"""Figures of matrices and curves, with matplotlib's Agg."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure


class Map(NamedTuple):
    """A matrix `[target, source]` as colours.

    Attributes:
        matrix: float array; NaN stays white.
        signed: bool. False shows weights from 0 up, and cuts the scale where the
            largest half percent of them begin; True shows both signs, zero white.
        x, y: lists of str, a label for each column and row; None for positions. Empty
            where they are neither sources nor targets.
    """

    matrix: np.ndarray
    signed: bool = False
    x: list | None = None
    y: list | None = None


class Curves(NamedTuple):
    """Lines over positions.

    Attributes:
        x: array `[points]`.
        lines: dictionary of a label to an array `[points]`.
        xlabel: str.
    """

    x: np.ndarray
    lines: dict
    xlabel: str


def draw_grid(title, rows):
    """Draws a grid: a row for each key of `rows`, a column for each key inside.

    Args:
        title: str.
        rows: dictionary of row labels to dictionaries of column titles to `Map` or
            `Curves`. A row may lack a column.

    Returns:
        `matplotlib.figure.Figure`.
    """
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    panels = [panel for row in rows.values() for panel in row.values()]
    tokens = [len(p.x or ()) for p in panels if isinstance(p, Map)]
    size = max(2.6, 0.16 * max(tokens, default=0))  # inches; labels have to fit
    figure = Figure(
        figsize=((size + 1.3) * len(columns), (size + 0.4) * len(rows) + 0.6),
        layout="constrained",
    )
    figure.suptitle(title)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for (label, row), axes in zip(rows.items(), grid, strict=True):
        for name, axis in zip(columns, axes, strict=True):
            if name not in row:
                axis.axis("off")
                continue
            draw = _draw_map if isinstance(row[name], Map) else _draw_curves
            draw(figure, axis, row[name])
            axis.set_title(f"{label}\n{name}", fontsize=9)
            axis.tick_params(labelsize=7)
    return figure


def draw_alpha(lines):
    """Draws alpha over the layers, with its least and largest value.

    Args:
        lines: dictionary of a label to a list of (layer, array of alpha's values).

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    for i, (label, points) in enumerate(lines.items()):
        layers = [layer for layer, _ in points]
        means = np.array([values.mean() for _, values in points])
        below = means - [values.min() for _, values in points]
        above = [values.max() for _, values in points] - means
        # Rounding may put a mean of equal values outside them.
        errors = np.maximum([below, above], 0)
        # Equal lines stay visible: later ones are drawn smaller.
        style = {"marker": "o", "markersize": 10 / (i + 1), "linewidth": 4 / (i + 1)}
        axis.errorbar(layers, means, errors, capsize=4, label=label, **style)
    axis.set(title="alpha: mean, least and largest", xlabel="layer", ylabel="alpha")
    axis.set_ylim(-0.05, 1.05)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()
    axis.grid(alpha=0.3)
    return figure


def _draw_map(figure, axis, panel):
    matrix = panel.matrix
    values = matrix[np.isfinite(matrix)]
    largest = np.abs(values).max(initial=0) or 1.0
    if panel.signed:
        options = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
        top = largest
    else:
        top = np.percentile(values, 99.5) if len(values) else 1.0
        top = top or largest
        options = {"cmap": "viridis", "vmin": 0, "vmax": top}
    image = axis.imshow(matrix, aspect="auto", interpolation="nearest", **options)
    extend = "max" if largest > top else "neither"
    bar = figure.colorbar(image, ax=axis, extend=extend)
    bar.ax.tick_params(labelsize=7)
    axis.set_xlabel("" if panel.x == [] else "source", fontsize=8)
    axis.set_ylabel("" if panel.y == [] else "target", fontsize=8)
    if panel.x is not None:
        axis.set_xticks(range(len(panel.x)), panel.x, rotation=90, parse_math=False)
    if panel.y is not None:
        axis.set_yticks(range(len(panel.y)), panel.y, parse_math=False)


def _draw_curves(figure, axis, panel):
    for label, line in panel.lines.items():
        axis.plot(panel.x, line, linewidth=1, label=label)
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.set_xlabel(panel.xlabel, fontsize=8)
    axis.set_ylabel("weight", fontsize=8)
    if len(panel.lines) > 1:
        axis.legend(fontsize=6, ncols=2)
