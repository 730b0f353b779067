"""The papers' ablations at small size: is their order to be seen?

    python -m benchmarks.ablation --text=PATH --output=FOLDER [--workers=2]

Every variant learns masked language modelling of the text in bytes
(`gin/runs/ablation.gin`), for the same steps, over the same batches, under the same
schedule, from three seeds. Runs are told apart by their validation loss. A finished
run leaves `FOLDER/<variant>-<seed>.json`; the same command goes on where it was
stopped. `--workers` runs go on at once, with one thread each.

Two variants that the paper puts one after the other are compared by the gap of their
means in units of the pooled standard deviation of a single run.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import re
import statistics
import sys

from benchmarks.ablation_variants import GROUPS, VARIANTS

MIN_DEVIATIONS = 2.0


def run(name, seed, text, output, bindings):
    """Trains a variant from a seed, or reads its result if it is there.

    Returns:
        dictionary with settings, loss, accuracy, parameters and seconds.

    Raises:
        ValueError: the folder's result is of other settings.
    """
    variant = VARIANTS[name]
    settings = [variant.file, *variant.bindings, *bindings, f"SEED = {seed}"]
    path = os.path.join(output, f"{name}-{seed}.json")
    if os.path.exists(path):
        with open(path) as file:
            result = json.load(file)
        if result["settings"] != settings:
            raise ValueError(
                f"{path} is of other settings than asked for: {result['settings']} "
                f"instead of {settings}. Set another --output."
            )
        return result
    from remixer_tf import train
    from remixer_tf.evaluation.results import read_results

    folder = os.path.join(output, f"{name}-{seed}")
    values = [*settings[1:], f"text_files.directory = {os.path.abspath(text)!r}"]
    train.main(
        [
            f"--model_dir={folder}",
            f"--gin_file={variant.file}",
            "--gin_file=runs/ablation.gin",
            *(f"--gin.{value.replace(' = ', '=', 1)}" for value in values),
        ]
    )
    with open(os.path.join(folder, "train_summary.json")) as file:
        summary = json.load(file)
    last = max(read_results(folder, "loss"), key=lambda result: result["step"])
    result = {
        "settings": settings,
        "steps": last["step"],
        "loss": last["metrics"]["loss"],
        "accuracy": last["metrics"]["accuracy"],
        "parameters": summary["parameters"],
        "seconds": summary["seconds"],
    }
    with open(path + ".writing", "w") as file:
        json.dump(result, file, indent=2)
    os.replace(path + ".writing", path)
    return result


def _use_one_thread():
    """Tells TensorFlow, which a run imports later; gin and TensorFlow keep state."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"


def verdict(better, worse):
    """Whether the losses of runs bear out that one variant is better.

    The gap is `mean(worse) - mean(better)`, in pooled standard deviations of one run,
    `sqrt((s_better^2 + s_worse^2) / 2)`.

    Args:
        better, worse: lists of floats, losses; `better` is what the paper puts first.

    Returns:
        "supported", "contradicted", "a tie", or "undecided" with fewer than two runs
        of one; and the gap in deviations.
    """
    if min(len(better), len(worse)) < 2:
        return "undecided", math.nan
    gap = statistics.mean(worse) - statistics.mean(better)
    variances = statistics.variance(better), statistics.variance(worse)
    deviation = math.sqrt(statistics.mean(variances))
    if gap:
        gap = gap / deviation if deviation else math.copysign(math.inf, gap)
    if abs(gap) <= MIN_DEVIATIONS:
        return "a tie", gap
    return ("supported" if gap > 0 else "contradicted"), gap


def neighbours(group):
    """Pairs of names, the better first, that stand next to each other in the paper.

    Of variants with equal numbers each has the same neighbours.
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
        results: dictionary of variants' names to lists of what `run` returns; only
            these variants are told.
    """
    names = [name for name in group.variants if name in results]
    losses = {name: [run["loss"] for run in results[name]] for name in names}
    means = {name: statistics.mean(losses[name]) for name in names}
    ranks = sorted(names, key=means.get)
    lines = [
        f"### {group.title}",
        "",
        f"| variant | paper's order | paper's {group.measure} | our order "
        "| our validation loss | runs | parameters | seconds a run |",
        "|---" * 8 + "|",
    ]
    papers = [group.variants[name].paper for name in names]
    in_paper = sorted(
        {p for p in papers if p is not None}, key=lambda p: group.sign * p
    )
    for name, paper in zip(names, papers, strict=True):
        runs = losses[name]
        deviation = f" ± {statistics.stdev(runs):.4f}" if len(runs) > 1 else ""
        seconds = statistics.mean(run["seconds"] for run in results[name])
        lines.append(
            f"| {name} | {in_paper.index(paper) + 1 if paper else '–'} "
            f"| {paper or '–'} | {ranks.index(name) + 1} "
            f"| {means[name]:.4f}{deviation} | {len(runs)} "
            f"| {results[name][0]['parameters']:,} | {seconds:.0f} |"
        )
    lines.append("")
    for better, worse in neighbours(group):
        if better in losses and worse in losses:
            word, gap = verdict(losses[better], losses[worse])
            lines.append(
                f"- {better} better than {worse}: {word} (gap "
                f"{means[worse] - means[better]:+.4f}, {gap:+.1f} deviations)."
            )
    return "\n".join(lines) + "\n"


def unigram_loss(text):
    """Cross entropy of the validation text's bytes under the training text's counts."""
    import numpy as np

    from remixer_tf.tasks import text_files

    text_files.set_directory(text)
    train, validation = (
        np.bincount(
            np.frombuffer("".join(text_files.read_split(split)).encode(), np.uint8),
            minlength=256,
        )
        for split in text_files.SPLITS
    )
    logs = np.log((train + 1) / (train.sum() + 256))
    return -np.sum(validation * logs) / validation.sum()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="folder of text files")
    parser.add_argument("--output", required=True, help="folder of the results")
    parser.add_argument("--workers", type=int, default=2, help="runs at once")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a variant")
    parser.add_argument(
        "--variants", default="", metavar="REGEX", help="only those that match"
    )
    parser.add_argument(
        "--gin", action="append", default=[], help="such as --gin='TRAIN_STEPS = 10'"
    )
    options = parser.parse_args(arguments)
    os.makedirs(options.output, exist_ok=True)
    names = [name for name in VARIANTS if re.search(options.variants, name)]
    runs = [(name, seed) for seed in range(options.seeds) for name in names]
    with concurrent.futures.ProcessPoolExecutor(
        options.workers,
        multiprocessing.get_context("spawn"),
        initializer=_use_one_thread,
        max_tasks_per_child=1,
    ) as executor:
        done = executor.map(
            run,
            *zip(*runs, strict=True),
            [options.text] * len(runs),
            [options.output] * len(runs),
            [options.gin] * len(runs),
        )
        results = {}
        for (name, seed), result in zip(runs, done, strict=True):
            print(f"{name}-{seed}: loss {result['loss']:.4f}", flush=True)
            results.setdefault(name, []).append(result)
    for group in GROUPS:
        if set(group.variants) & set(results):
            print(report(group, results))
    unigram = unigram_loss(options.text)
    print(f"A model of the bytes' frequencies alone has a loss of {unigram:.4f}.")


if __name__ == "__main__":
    main(sys.argv[1:])
