"""Draws the README's pictures of numbers: python docs/images/draw.py RUN

RUN is a folder of a trained Remixer, such as quickstart/remixer_tiny, whose learned H
the picture of the block shows. The rates are the tables of docs/results/decoding.md.
"""

import pathlib
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

FOLDER = pathlib.Path(__file__).parent
BLUE, GREY, INK = "#2450c8", "#eef1f7", "#1d2430"
MODELS = "T5.1.1 small, XLA on", "ctranslate2", "transformers"
NAMES = "remixer_tf", "CTranslate2", "transformers"
COLORS = BLUE, "#9aa5bd", "#d3d9e6"


def box(axes, x, y, width, height, text, color=GREY, ink=INK, size=9):
    axes.add_patch(
        matplotlib.patches.FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=color,
            edgecolor="none",
        )
    )
    middle = x + width / 2, y + height / 2
    axes.text(*middle, text, ha="center", va="center", fontsize=size, color=ink)


def arrow(axes, *points):
    xs, ys = zip(*points, strict=True)
    axes.plot(xs[:-1], ys[:-1], color=INK, lw=1)
    axes.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1, "shrinkA": 0},
    )


def block(axes, x, title, mixes):
    """A decoder block, from the bottom up; `mixes`: its last sublayer's name."""
    axes.text(x, 8.75, title, ha="center", fontsize=13, weight="bold", color=INK)
    for i, name in enumerate(("self-attention", "cross-attention", mixes)):
        y = 0.55 + 2.7 * i
        last = i == 2
        color, ink = (BLUE, "white") if last else (GREY, INK)
        arrow(axes, (x, y - 0.5), (x, y + 0.2))
        box(axes, x - 1.25, y + 0.2, 2.5, 0.5, "norm", "white", INK, 8)
        box(axes, x - 1.25, y + 0.75, 2.5, 0.75, name, color, ink, 10)
        arrow(axes, (x, y + 1.5), (x, y + 1.82))
        axes.text(x, y + 1.98, "+", ha="center", va="center", fontsize=13, color=INK)
        side = x + 1.65  # the residual stream
        arrow(
            axes, (x, y - 0.22), (side, y - 0.22), (side, y + 1.98), (x + 0.2, y + 1.98)
        )
    arrow(axes, (x, 8.05), (x, 8.55))


def draw_block(run, path):
    """T5.1.1's block next to Remixer's, and the H that a run learned."""
    import remixer_tf

    matrices = remixer_tf.load(run).mixing()
    name = next(x for x in matrices if "decoder/layer_1" in x)
    figure = plt.figure(figsize=(9.6, 4.2), dpi=110)
    axes = figure.add_axes((0.0, 0.0, 0.6, 1.0))
    axes.set(xlim=(-2.2, 8.4), ylim=(-0.2, 9.4))
    axes.axis("off")
    block(axes, 0.4, "T5.1.1", "feed-forward")
    block(axes, 5.4, "Remixer", "remixer")
    text = figure.add_axes((0.58, 0.0, 0.42, 1.0))
    text.set(xlim=(0, 1), ylim=(0, 1))
    text.axis("off")
    lines = (
        r"$X' = \mathrm{GELU}(X W_1) \ast (X W_2)$",
        r"$X_S = \mathrm{softmax}(H)\, X'$",
        r"$X_C = \alpha\,(X_S \ast X') + (1 - \alpha)\,(X' - X_S)$",
        r"$Y = X_C W_3 + X'$",
    )
    for i, line in enumerate(lines):
        text.text(0.02, 0.92 - 0.085 * i, line, fontsize=12, color=INK, va="center")
    picture = figure.add_axes((0.6, 0.1, 0.22, 0.44))
    matrix = np.asarray(matrices[name])[0, :16, :16]
    picture.imshow(matrix, cmap="Blues", vmin=0, vmax=0.35)
    picture.set(xticks=[], yticks=[], xlabel="reads position", ylabel="position")
    for side in picture.spines.values():
        side.set_color("#c5ccda")
    caption = (
        "softmax(H) that\nquickstart's Remixer\nlearned (last block of\nthe decoder, "
        "first 16\npositions)"
    )
    text.text(0.6, 0.32, caption, fontsize=9, color=INK, va="center", linespacing=1.4)
    save(figure, path)


def draw_rates(path):
    """Tokens/s of decoding, of the first table of its page."""
    sys.path.insert(0, str(FOLDER.parent / "results"))
    from plots import rows

    table = rows("decoding.md", "| batch | beams | who |")
    sizes = list(dict.fromkeys((row["batch"], row["beams"]) for row in table))
    figure, axes = plt.subplots(figsize=(7.2, 3.2), dpi=110, layout="constrained")
    for i, (model, name) in enumerate(zip(MODELS, NAMES, strict=True)):
        rates = [
            next(
                float(row["tokens/s"])
                for row in table
                if (row["batch"], row["beams"], row["who"]) == (*size, model)
            )
            for size in sizes
        ]
        places = np.arange(len(sizes)) + 0.27 * (i - 1)
        bars = axes.bar(places, rates, 0.25, label=name, color=COLORS[i])
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=1, color=INK)
    labels = [
        f"{b} row{'s' * (b != '1')}\n{k} beam{'s' * (k != '1')}" for b, k in sizes
    ]
    axes.set_xticks(range(len(sizes)), labels, fontsize=8)
    axes.set_ylabel("tokens/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)


def save(figure, name):
    figure.savefig(FOLDER / name, metadata={"Software": None}, facecolor="white")


if __name__ == "__main__":
    draw_block(sys.argv[1], "block.png")
    draw_rates("decoding.png")
