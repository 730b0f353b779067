"""The papers' ablations at small size: do they show the papers' order?

    python -m studies.ablation --text=PATH --output=FOLDER [--workers=2]

Every variant learns masked language modelling of the text in bytes
(`gin/runs/ablation.gin`), for the same steps, over the same batches, under the same
schedule, from three seeds. Runs are compared by their validation loss. A finished run
leaves `FOLDER/<variant>-<seed>.json`; the same command resumes where it was stopped.
`--workers` runs train at once, with one thread each.

Two variants that the paper puts one after the other are compared by the gap of their
means in units of the pooled standard deviation of a single run.
"""

import argparse
import statistics
import sys

from remixer_tf.commands import errors_in_one_line
from remixer_tf.tables import markdown
from studies import runs
from studies.ablation_variants import GROUPS, VARIANTS


def neighbours(group):
    """Pairs of names, the better first, that stand next to each other in the paper.

    Variants with equal numbers have the same neighbours.
    """
    papers = {n: v.paper for n, v in group.variants.items() if v.paper is not None}
    ranks = sorted(set(papers.values()), key=lambda paper: group.sign * paper)
    return [
        (better, worse)
        for first, second in zip(ranks, ranks[1:], strict=False)
        for better in papers
        for worse in papers
        if papers[better] == first and papers[worse] == second
    ]


def report(group, results):
    """A group's table and sentences in Markdown.

    Args:
        group: `Group`.
        results: dictionary of variants' names to lists of what `runs.train`
            returns; only these variants are reported.
    """
    names = [name for name in group.variants if name in results]
    losses = {name: [run["loss"] for run in results[name]] for name in names}
    means = {name: statistics.mean(losses[name]) for name in names}
    ranks = sorted(names, key=means.get)
    header = [
        "variant",
        "paper's order",
        f"paper's {group.measure}",
        "our order",
        "our validation loss",
        "runs",
        "parameters",
        "seconds a run",
    ]
    rows = []
    papers = [group.variants[name].paper for name in names]
    in_paper = sorted(
        {p for p in papers if p is not None}, key=lambda p: group.sign * p
    )
    for name, paper in zip(names, papers, strict=True):
        number = len(losses[name])
        deviation = f" ± {statistics.stdev(losses[name]):.4f}" if number > 1 else ""
        seconds = statistics.mean(run["seconds"] for run in results[name])
        rows.append(
            [
                name,
                in_paper.index(paper) + 1 if paper else "–",
                paper or "–",
                ranks.index(name) + 1,
                f"{means[name]:.4f}{deviation}",
                number,
                f"{results[name][0]['parameters']:,}",
                f"{seconds:.0f}",
            ]
        )
    lines = [f"### {group.title}", "", markdown(header, rows), ""]
    for better, worse in neighbours(group):
        if better in losses and worse in losses:
            verdict = runs.verdict_text(losses[better], losses[worse])
            lines.append(f"- {better} better than {worse}: {verdict}.")
    return "\n".join(lines) + "\n"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser)
    options = parser.parse_args(arguments)
    results = runs.train_all(
        VARIANTS, "runs/ablation.gin", options, runs.text_files(options.text)
    )
    for group in GROUPS:
        if set(group.variants) & set(results):
            print(report(group, results))
    unigram = runs.unigram_loss(options.text)
    print(f"A model of the bytes' frequencies alone has a loss of {unigram:.4f}.")


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
