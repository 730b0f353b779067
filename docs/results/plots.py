"""Draws the tables of two pages: python docs/results/plots.py."""

import pathlib

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

FOLDER = pathlib.Path(__file__).parent


def rows(page, header):
    """The table of a page whose header starts so: a dictionary a row."""
    lines = (FOLDER / page).read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(header))
    cells = [[x.strip() for x in line.split("|")[1:-1]] for line in lines[first:]]
    end = next((i for i, row in enumerate(cells) if not row), len(cells))
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:end]]


def draw(curves, file, xlabel, ylabel, log=False):
    """Draws {name: [(x, y), ...]} as a line each."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:.0f}")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(FOLDER / file, dpi=110, metadata={"Software": None})


def main():
    encoders = {}
    for row in rows("encoders.md", "| encoder |"):
        point = int(row["length"]), float(row["ms/step"])
        encoders.setdefault(row["encoder"], []).append(point)
    draw(encoders, "encoders.png", "tokens in a row", "ms/step", log=True)
    ablations = {}
    for row in rows("ablations.md", "| variant | paper's perplexity | 1,500"):
        steps = {k: v for k, v in row.items() if k.replace(",", "").isdigit()}
        ablations[row["variant"]] = [
            (int(k.replace(",", "")), float(v)) for k, v in steps.items()
        ]
    draw(ablations, "ablations.png", "steps", "validation loss")


if __name__ == "__main__":
    main()
