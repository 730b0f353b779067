"""Mixers against each other: at equal parameters and equal FLOPs, in three settings.

    python -m studies.bench --text=FOLDER --output=docs/results [--workers=2]
    python -m studies.bench --output=docs/results --report

The settings are masked and causal language modelling of text in bytes, and mini_cogs
from text to logical forms. All mixers of `gin/mixers` and four whole architectures
(`studies/bench_models.py`) have as many parameters, or FLOPs, as the Transformer with
learned positions: their D_FF is what `remixer_tf costs --match` finds. All take the
same steps over the same batches under the same schedule, one thread each.

A finished run is a line of `FOLDER/bench.jsonl`, and is not run again: the same command
resumes where it was stopped. The first seed of all comes before the second one.
`--report` trains nothing: it writes the tables and verdicts below the mark in
`FOLDER/bench.md`, and draws `FOLDER/bench.png`. `--variants` chooses by names such as
mlm-fnet-flops. `--gin_file` names files of other sizes, which are read last.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
from typing import NamedTuple

from remixer_tf.commands import errors_in_one_line
from remixer_tf.errors import UserError
from studies import runs
from studies.bench_models import MATCHES, REFERENCE, SETTINGS, contestants

# Fields that are equal in all lines of a setting, and in those of a contestant's seeds.
_OF_SETTING = ["data", "steps"]
_OF_CONTESTANT = ["settings", "width", "parameters", "flops"]
_RUNS_OF_A_PROCESS = 25  # TensorFlow starts once for them, and keeps their memory.


class Cell(NamedTuple):
    """A run of the study.

    Attributes:
        setting: str, of `SETTINGS`.
        mixer: str, of `contestants`.
        match: str, of `MATCHES`; "" for the reference, which the others match.
        seed: int.
    """

    setting: str
    mixer: str
    match: str
    seed: int

    @property
    def name(self):
        return "-".join(filter(None, self[:3]))


def plan(seeds, names=""):
    """Returns the `Cell`s whose name matches a regular expression, in their order.

    Raises a UserError if there are none.
    """
    cells = [
        Cell(setting, mixer, match, seed)
        for seed in range(seeds)
        for match in ("", *MATCHES)
        for setting in SETTINGS
        for mixer in contestants(setting)
        if (mixer == REFERENCE) == (match == "")
    ]
    chosen = runs.matching(names, dict.fromkeys(cell.name for cell in cells))
    return [cell for cell in cells if cell.name in chosen]


def read_lines(folder):
    """Returns {`Cell`: line} of a folder's results, dictionaries of `measure`.

    Raises a UserError if a line is damaged, or lines do not belong in one table.
    """
    path = os.path.join(folder, "bench.jsonl")
    if not os.path.exists(path):
        return {}
    found, before = {}, {}
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
                cell = _cell_of(line)
                whole = text.endswith("\n")
            except (ValueError, KeyError, TypeError):
                whole = False
            if not whole:
                raise UserError(
                    f"{path}, line {number}, is no whole line of a run of this study. "
                    "Remove it: its run is made again."
                )
            if cell in found:
                raise UserError(
                    f"{path}, line {number}, is the second of {cell.name}, seed "
                    f"{cell.seed}. Remove one of them."
                )
            for group, names in ((cell[:1], _OF_SETTING), (cell[:3], _OF_CONTESTANT)):
                own = {name: line[name] for name in names}
                if before.setdefault(group, own) != own:
                    raise UserError(
                        f"{path}, line {number}: {own} of {cell.name}, seed "
                        f"{cell.seed}, cannot stand in a table with {before[group]} of "
                        f"{'-'.join(filter(None, group))} before it. Keep one of them."
                    )
            found[cell] = line
    return found


def _cell_of(line):
    """The `Cell` of a line; a line that is not whole raises an error."""
    cell = Cell(*(line[name] for name in Cell._fields))
    whole = {*_OF_SETTING, *_OF_CONTESTANT} <= {*line}
    splits = SETTINGS[cell.setting].splits
    numbers = [line[name] for name in ("width", "parameters", "flops", "steps")]
    numbers += [line["cpu_seconds"], *(line["metrics"][x]["loss"] for x in splits)]
    whole &= cell.mixer in contestants(cell.setting) and type(cell.seed) is int
    whole &= cell.match in (MATCHES if cell.mixer != REFERENCE else [""])
    if not whole or not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError
    return cell


def measure(cell, size, gin, data):
    """Trains a cell, and returns its line of the results.

    Args:
        cell: `Cell`.
        size: what `find_size` gave for another seed, or None.
        gin: list of str, files and bindings of all runs, which are read last.
        data: list of str, bindings that name the data's files.

    Returns:
        dictionary with the cell's fields, the size, gin, digests of settings and data,
        steps, metrics {split: {name: value}} and cpu_seconds.
    """
    import keras

    keras.backend.clear_session()
    size = size or find_size(cell, (*gin, *data))
    files, bindings = _settings(cell.setting, cell.mixer, gin)
    bindings += [f"D_FF = {size['width']}", f"SEED = {cell.seed}"]
    with tempfile.TemporaryDirectory() as folder:
        result = runs.train(runs.Run(cell.name, files, bindings, data, folder))
    metrics = {
        found["split"]: {k: round(found[k], 6) for k in ("loss", "token_accuracy")}
        for found in result["evaluations"]
    }
    seconds = round(result["cpu_seconds"], 1)
    facts = {"steps": result["steps"], "metrics": metrics, "cpu_seconds": seconds}
    return {**cell._asdict(), **size, "gin": gin, **_known(cell, gin, data), **facts}


def _known(cell, gin, data):
    """The digests of a line, of its cell's settings and data."""
    files, bindings = _settings(cell.setting, cell.mixer, gin)
    settings, *data = runs.identity(runs.Run(cell.name, files, bindings, data, ""))
    if cell.setting == "seq2seq":
        data = []  # mini_cogs is code, and its words are those of its training set.
    return {"settings": settings, "data": data}


def _check(cells, done, gin, data):
    """Raises a UserError for wrong gin, or lines with other settings or data."""
    known = {}
    for cell in dict.fromkeys((*cells, *done)):
        if cell[:2] not in known:
            known[cell[:2]] = _known(cell, gin, data[cell.setting])
    for cell, line in done.items():
        ran_with = {
            "settings": f"other settings, by {line['gin']}",
            "data": "another --text",
        }
        for name, value in known[cell[:2]].items():
            if line[name] != value:
                raise UserError(
                    f"--output has {cell.name}, seed {cell.seed}, that ran with "
                    f"{ran_with[name]}. Set another --output."
                )


def _settings(setting, mixer, gin):
    """The gin files of a contestant, and its bindings."""
    model = contestants(setting)[mixer]
    more = [text for text in gin if text.endswith(".gin")]
    bindings = [text for text in gin if text not in more]
    return [*model.files, SETTINGS[setting].run, *more], [*model.bindings, *bindings]


def find_size(cell, gin):
    """Returns a dictionary of a cell's width, the value of D_FF, and its size.

    The size is the model's "parameters", and the "flops" of a row in a forward pass.
    Raises a UserError if no width gives what the reference has.

    Args:
        cell: `Cell`.
        gin: tuple of str, files and bindings of all runs.
    """
    from remixer_tf.analysis.matching import Wanted, find_value

    wanted = _reference_size(cell.setting, gin)
    if cell.mixer == REFERENCE:
        return wanted

    def count_with(width):
        with_flops = cell.match == "flops"
        return _size(*cell[:2], gin, width, with_flops)[cell.match]

    asked = Wanted(cell.match, wanted[cell.match], "D_FF", REFERENCE)
    match = find_value(count_with, wanted["width"], asked)
    return _size(*cell[:2], gin, match.value)


@functools.cache
def _reference_size(setting, gin):
    return _size(setting, REFERENCE, gin)


def _size(setting, mixer, gin, width=None, with_flops=True):
    """`find_size` of a width; None for that of the gin files."""
    from remixer_tf import configuration
    from remixer_tf.analysis.costs import count
    from remixer_tf.data.pipeline import Batching
    from remixer_tf.run import Run
    from remixer_tf.training.loop import train

    files, bindings = _settings(setting, mixer, gin)
    if width is not None:
        bindings.append(f"D_FF = {width}")
    settings = configuration.read(files, bindings)
    rows = settings.value(Batching, "batch_size")
    profile = count(
        settings.value(Run, "model"),
        settings.value(train, "optimizer"),
        batch_size=rows,
        feature_lengths=settings.value(Run, "feature_lengths"),
        with_flops=with_flops,
    )
    if profile.uncounted:
        raise ValueError(f"{mixer} has FLOPs without a formula: {profile.uncounted}")
    width = configuration.hyperparameters(settings.text(False))["D_FF"]
    size = {"width": width, "parameters": profile.total.parameters}
    return size | {"flops": round(profile.total.flops / rows)}


def train_cells(cells, options):
    """Trains the cells that the folder lacks, and appends a line for each.

    Raises a UserError as `read_lines` and `runs.results_of` do, and if runs that are
    there had other settings or data.
    """
    gin = [*options.gin_file, *options.gin]
    done = read_lines(options.output)
    text = runs.text_files(options.text)
    runs.make_folder(options.output)
    sizes = {
        cell[:3]: {name: line[name] for name in ("width", "parameters", "flops")}
        for cell, line in done.items()
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        runs.processes(options.workers, True, _RUNS_OF_A_PROCESS) as executor,
        open(os.path.join(options.output, "bench.jsonl"), "a") as file,
    ):
        words = executor.submit(runs.word_vocabulary, folder, "mini_cogs").result()
        data = {name: text for name in SETTINGS}
        data["seq2seq"] = [f"VOCABULARY_FILE = {words!r}"]
        executor.submit(_check, cells, done, gin, data).result()
        calls = []
        for cell in cells:
            if cell not in done:
                name = f"{cell.name}, seed {cell.seed}"
                given = cell, sizes.get(cell[:3]), gin, data[cell.setting]
                calls.append((name, runs.apart, (measure, cell.name, *given)))
        for name, line in runs.results_of(executor, options.workers, calls):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{name}: done", flush=True)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, required=False)
    help = "of other sizes, such as models/sizes/mixers_tiny.gin"
    parser.add_argument(
        "--gin_file", action="append", default=[], metavar="FILE", help=help
    )
    help = "write the page of the results that are there"
    parser.add_argument("--report", action="store_true", help=help)
    options = parser.parse_args(arguments)
    cells = plan(options.seeds, options.variants)
    if options.report:
        from studies.bench_report import write_page

        lines = read_lines(options.output)
        if not lines:
            raise UserError(
                f"--output={options.output} has no bench.jsonl with runs. Name the "
                "folder that --text trained into."
            )
        write_page(options.output, lines, cells)
    elif options.text is None:
        parser.error("--text names the folder of text files to train on.")
    else:
        train_cells(cells, options)


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
