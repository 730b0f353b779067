"""COGS from scratch at the literature's size: which architecture generalises to what?

    python -m studies.cogs --cogs=FOLDER --output=FOLDER [--workers=1]

Every model learns COGS (`gin/runs/cogs_comparison.gin`) with equal parameters, for the
same steps, over the same batches, under the same schedule, from three seeds, and
answers test and gen at the end. The table has the exact match of each kind of
generalisation. A finished run leaves `FOLDER/<model>-<seed>.json`; the same command
resumes where it was stopped. It is meant for an accelerator (`KERAS_BACKEND=jax` trains
on JAX); for a trial, `--variants` and `--gin='TRAIN_STEPS = 20'` choose less.
"""

import argparse
import os
import statistics
import sys
from typing import NamedTuple

from remixer_tf.commands import errors_in_one_line
from remixer_tf.tables import markdown
from studies import runs

RUN_FILE = "runs/cogs_comparison.gin"


class Model(NamedTuple):
    """A model of the comparison.

    Attributes:
        file: str, gin file of its architecture.
        bindings: list of str, gin bindings.
        paper: float, exact match on gen of a pre-trained base model ("Remixers", Table
            4); None if there is none.
    """

    file: str
    bindings: list
    paper: float | None = None


# The widths give all as many parameters as T5.1.1 has, within 1%.
MODELS = {
    "t5_1_1": Model("architectures/t5_1_1.gin", ["D_FF = 342"], 77.4),
    "remixer": Model("architectures/remixer.gin", ["D_FF = 172"], 79.2),
    "remixer_none": Model(
        "architectures/remixer.gin",
        ["D_FF = 172", "RemixerBlock.composition = 'none'"],
    ),
    "gmlp": Model("architectures/gmlp.gin", ["D_FF = 2042"]),
    "amlp": Model("architectures/amlp.gin", ["D_FF = 1836"]),
    "mixer_encoder": Model("architectures/mixer_encoder.gin", ["D_FF = 300"], 76.5),
}


def report(results):
    """The table in Markdown, a model each column.

    Args:
        results: dictionary of models' names to lists of what `runs.train` returns.
    """
    first = next(iter(results.values()))[0]["metrics"]
    rows = [
        ["parameters", *(f"{r[0]['parameters']:,}" for r in results.values())],
        [
            "gen in the paper, pre-trained, base size",
            *(MODELS[name].paper or "–" for name in results),
        ],
        ["loss on dev", *(_mean(r, "loss", digits=4) for r in results.values())],
    ]
    for split in ("test", "gen"):
        for name in first[split]:
            of_types = name.startswith("exact_match/type/")
            if of_types and split == "test":
                continue  # All are "in_distribution".
            title = f"{split}, {name.removeprefix('exact_match').rpartition('/')[2]}"
            cells = (_mean(r, "metrics", split, name) for r in results.values())
            rows.append([title.removesuffix(", "), *cells])
    seeds = len(next(iter(results.values())))
    header = [f"exact match in %, {seeds} seeds", *results]
    return markdown(header, rows, labels=1) + "\n"


def _mean(runs_of_a_model, *keys, digits=1):
    """Mean and deviation over the seeds of what stands under these keys of a result."""
    values = []
    for value in runs_of_a_model:
        for key in keys:
            value = value[key]
        values.append(value)
    text = f"{statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, "--cogs", "folder of COGS' files")
    options = parser.parse_args(arguments)
    runs.make_folder(options.output)
    folder = os.path.abspath(options.cogs)
    from remixer_tf.tasks import cogs

    cogs.data_folder.set(folder)
    vocabulary = runs.word_vocabulary(options.output, "cogs")
    data = [f"cogs.directory = {folder!r}", f"VOCABULARY_FILE = {vocabulary!r}"]
    print(report(runs.train_all(MODELS, RUN_FILE, options, data)))


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
