"""The page of `studies.bench`: tables, a picture, and what becomes of the claims."""

import collections
import io
import math
import os
import statistics

from remixer_tf.analysis.contest import (
    Contestant,
    differences,
    draw_points,
    interval,
    write_contest,
)
from studies.bench_models import (
    CLAIMS,
    FOR_ENCODERS,
    MATCHES,
    REFERENCE,
    SETTINGS,
    contestants,
)

MARK = "<!-- `python -m studies.bench --report` writes what follows. -->\n"
NEAR = 0.05  # nats
SEEDS = 3
_TITLES = {
    "mlm": "Masked language modelling",
    "lm": "Causal language modelling",
    "seq2seq": "From text to logical forms",
}
_WORDS = {"parameters": "parameters", "flops": "FLOPs"}


def found_in(lines, setting, match, split):
    """Returns the `Contestant`s of a setting by their loss on a split.

    The reference is the first one, and the others follow by their means. Those that
    have a run without a finite loss are the last ones.

    Args:
        lines: {`Cell`: line}, see `studies.bench.read_lines`.
        setting, split: str, of `SETTINGS`.
        match: str, of `MATCHES`.
    """
    found = []
    for name in contestants(setting):
        own = {
            cell.seed: line
            for cell, line in lines.items()
            if cell[:3] == (setting, name, "" if name == REFERENCE else match)
        }
        if own:
            values = {seed: own[seed]["metrics"][split]["loss"] for seed in sorted(own)}
            line = next(iter(own.values()))
            steps = sorted(each["steps"] for each in own.values())
            found.append(
                Contestant(name, values, line["parameters"], line["flops"], steps)
            )

    def place(contestant):
        mean = statistics.mean(contestant.values.values())
        finite = math.isfinite(mean)
        return contestant.title != REFERENCE, not finite, mean if finite else 0

    return sorted(found, key=place)


def judge(apart, near=False):
    """Returns the verdict on a claim about the first of two contestants.

    With one seed, or a loss that is not finite, a claim is open. Else the 95% interval
    of the mean difference decides. "Better" is supported if the interval lies below 0,
    and contradicted if it lies above. "Near" has `NEAR` in 0's place. Other intervals
    leave it undecided.

    Args:
        apart: list of floats, losses of the first one less the second one's, by seed.
        near: bool, of a `Claim`.
    """
    bounds = interval(apart)
    if bounds is None:
        return "open"
    low, high = bounds
    limit = NEAR if near else 0.0
    if high < limit:
        return "supported"
    return "contradicted" if low > limit else "undecided"


def join(words):
    """The verdict of several tests of one claim: they have to agree."""
    if "open" in words:
        return "open"
    return words[0] if len(set(words)) == 1 else "undecided"


def item(claim, lines):
    """A claim in Markdown: its verdict, and a line for each difference that decides."""
    text = f"{claim.text} ({claim.source})"
    if not claim.pairs:
        return f"- **Not testable at this size**: {text}. Here {claim.why_not}."
    words, seen, fewest = [], [], SEEDS
    tests = [
        (setting, split, match, first, second)
        for setting, first, second in claim.pairs
        for split in SETTINGS[setting].splits
        for match in MATCHES
    ]
    for setting, split, match, first, second in tests:
        found = {x.title: x for x in found_in(lines, setting, match, split)}
        both = {first, second} <= set(found)
        apart = differences(found[first], found[second]) if both else []
        words.append(judge(apart, claim.near))
        fewest = min(fewest, len(apart))
        if apart:
            bounds = interval(apart)
            within = " ({:+.3g} to {:+.3g})".format(*bounds) if bounds else ""
            seen.append(
                f"{setting} ({split}), {first} less {second} at equal {_WORDS[match]}: "
                f"{statistics.mean(apart):+.3g}{within}"
            )
    word = join(words)
    if word != "open" and fewest < SEEDS:
        word += f", so far, by {fewest} seeds"
    shown = "".join(f"\n    - {each}" for each in seen) or " No runs."
    return f"- **{word.capitalize()}**: {text}.{shown}"


def progress(lines, cells):
    """Counts the planned runs that are there, and their time."""
    planned = collections.Counter(cell.seed for cell in cells)
    there = collections.Counter(cell.seed for cell in cells if cell in lines)
    seeds = (f"{there[x]} of {planned[x]} with seed {x}" for x in planned)
    minutes = sum(line["cpu_seconds"] for line in lines.values()) / 60
    return (
        f"{sum(there.values())} of {len(cells)} runs are there: {', '.join(seeds)}. "
        f"They took {minutes:.0f} minutes of CPU time."
    )


def page(lines, cells):
    """The part of the page that the runs make, in Markdown."""
    steps = {
        setting: max((x["steps"] for c, x in lines.items() if c.setting == setting))
        for setting in SETTINGS
        if any(cell.setting == setting for cell in lines)
    }
    file = io.StringIO()
    file.write(f"## Results\n\n{progress(lines, cells)}\n\n")
    file.write(
        "![Loss against FLOPs of a row, in each setting](bench.png)\n\n"
        "Filled points have equal parameters, hollow ones equal FLOPs.\n"
    )
    for setting, number in steps.items():
        file.write(f"\n### {_TITLES[setting]}\n\n{number:,} steps.")
        if setting == "lm":
            names = " and ".join(FOR_ENCODERS)
            file.write(f" Not applicable: {names}, which see later tokens.")
        file.write("\n")
        for split in SETTINGS[setting].splits:
            for match in MATCHES:
                found = found_in(lines, setting, match, split)
                title = f"Loss on {split} at equal {_WORDS[match]}"
                if len(found) > 1:
                    write_contest(found, "flops_per_row", title, "markdown", file)
    file.write("\n## Claims of the papers\n\n")
    file.write("\n".join(item(claim, lines) for claim in CLAIMS) + "\n")
    return file.getvalue()


def draw(lines, path):
    """Draws loss against the FLOPs of a row, a panel for each setting, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots(1, len(SETTINGS))
    for axis, (setting, (*_, splits)) in zip(axes, SETTINGS.items(), strict=True):
        for match in reversed(MATCHES):  # The last handles have filled points.
            found = found_in(lines, setting, match, splits[0])
            hollow = {"markerfacecolor": "none"} if match == "flops" else {}
            if found:
                places = [x.flops / 1e6 for x in found]
                draw_points(axis, found, places, [*contestants("mlm")], **hollow)
        axis.set(title=_TITLES[setting], ylabel=f"loss on {splits[0]}, nats")
        axis.set_xlabel("MFLOP of a row, forward")
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(
        shown.values(), shown, loc="outside lower center", ncols=6, fontsize="small"
    )
    figure.savefig(path, dpi=90, metadata={"Software": None})


def write_page(folder, lines, cells):
    """Writes `page` below the mark in the folder's bench.md, and draws bench.png."""
    path = os.path.join(folder, "bench.md")
    above = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            above = file.read().partition(MARK)[0]
    with open(path, "w", encoding="utf-8") as file:
        file.write(above + MARK + "\n" + page(lines, cells))
    draw(lines, os.path.join(folder, "bench.png"))
