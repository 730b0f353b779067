"""Trains a model for each setting and seed, and compares the results.

Each run is `remixer_tf train` in a folder of its own below --model_dir, where sweep.log
has its output, and sweep.gin its first configuration. Run the same command again to
resume: runs that have ended are skipped, and others continue. A warning names settings
that have changed since. The table has a column for each setting: means and standard
deviations over the seeds that have ended. As CSV it has each run too.
"""

import collections
import hashlib
import itertools
import json
import os
import re
import sys
import time
from typing import NamedTuple

from remixer_tf import configuration, console
from remixer_tf.commands import (
    add_contest,
    add_list,
    add_number,
    check_contest,
    start_command,
    write_runs,
)
from remixer_tf.configuration.bindings import (
    final_bindings,
    flag_of,
    last,
    literal,
    name_of,
    read_text,
)
from remixer_tf.errors import UserError, shorten

_POLL_SECONDS = 0.2
_NAME_LENGTH = 100
_ONLY = "all"  # the setting of a sweep that has no others
# In a run's folder: the configuration that it began with, without its seed, and the
# arguments and the configuration with which it has ended.
_BEGAN, _ENDED = "sweep.gin", "sweep_ended.json"


class _Run(NamedTuple):
    setting: str  # a name that a folder may have
    folder: str
    arguments: tuple  # of `train`, without the folder


def add_arguments(parser):
    configuration.add_common(parser, run="new")
    add_list(
        parser,
        "--grid",
        "NAME=[A,B]",
        "values to try of a macro or parameter, such as LEARNING_RATE=[1e-2,1e-3]; "
        "repeat it to try all combinations",
    )
    add_list(
        parser,
        "--contestant",
        "FILE",
        "gin file of a model, read before those of --gin_file; repeat it to train "
        "several models. Each is tried with each --setting and combination",
    )
    add_list(
        parser,
        "--setting",
        "'NAME=A ...'",
        "macros and parameters to try together, such as 'D_MODEL=64 D_FF=256'; repeat "
        "it for several. With --grid, each is tried with each combination",
    )
    add_number(parser, "--seeds", "runs of each setting, with Run.seed 0, 1, ...", 1)
    add_number(parser, "--at_once", "runs that train at the same time", 1)
    add_contest(parser)


def run(options):
    check_contest(options)
    runs = _runs(options)
    configuration.load_tensorflow()
    from remixer_tf.engines.jax.layout import leave_accelerators

    leave_accelerators()
    runs = _check(runs, options.metric)
    from remixer_tf.training.run_folder import check_writable

    check_writable(options.model_dir)
    failed = _train_all(runs, options.at_once)
    ended = [run for run in runs if run not in failed]
    if ended:
        _write_table(ended, failed, options)
    if failed:
        names = ", ".join(os.path.basename(run.folder) for run in failed)
        console.say(
            f"{len(failed)} of {len(runs)} runs failed: {names}. Run the same command "
            "to try them again; runs that have ended are kept.",
            "error",
        )
        sys.exit(1)


def _runs(options):
    """Returns the `_Run`s of a command line."""
    if "://" in options.model_dir:
        raise UserError(
            "a sweep writes to a local folder. Received: "
            f"--model_dir={options.model_dir}"
        )
    files = [f"--gin_file={file}" for file in options.gin_file]
    common = []
    if options.gin_search_paths:
        common.append(f"--gin_search_paths={','.join(options.gin_search_paths)}")
    common += [f"--module_import={module}" for module in options.module_import]
    for text in options.gin_bindings:
        common.append(flag := flag_of(text))
        for binding in final_bindings(read_text(text, flag)).values():
            _not_seed(binding)
    grids = [_grid(text) for text in options.grid]
    listed = [_pairs(text) for text in options.setting] or [[]]
    contestants = _contestants(options.contestant)
    runs = []
    for (title, own_files), *pairs in itertools.product(
        contestants.items(), listed, itertools.product(*grids)
    ):
        pairs = [*itertools.chain(*pairs)]
        if len(dict(pairs)) < len(pairs):
            twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise UserError(
                f"A setting has {twice} twice. Give it in one --grid, or in --setting."
            )
        own = [f"{name}={value}" for name, value in pairs]
        name = _folder_name(",".join([*title, *own]))
        for seed in range(options.seeds):
            folder = ",".join(filter(None, [name, f"seed={seed}"]))
            arguments = [f"--gin.{text}" for text in (*own, f"Run.seed={seed}")]
            folder = os.path.join(options.model_dir, folder)
            arguments = (*own_files, *files, *common, *arguments)
            runs.append(_Run(name or _ONLY, folder, arguments))
    return list(dict.fromkeys(runs))  # A value may stand in a grid twice.


def _contestants(files):
    """Returns {(name, or nothing): the options that read the file}."""
    found = {}
    for file in files:
        name = os.path.splitext(os.path.basename(file))[0]
        if (name,) in found:
            raise UserError(
                f"two contestants are called {name}. Give their files other names."
            )
        found[name,] = [f"--gin_file={file}"]
    return found or {(): []}


def _check(runs, metric):
    """Reads each setting and tries it without data, so that a mistake starts no run.

    Returns {run: its setting as gin text}. With a metric, a setting whose evaluations
    do not give it is a UserError.
    """
    from remixer_tf.configured import check_train
    from remixer_tf.data.failures import data_errors
    from remixer_tf.data.vocabulary_training import vocabularies_for_a_while

    metric = metric and re.sub(r" \(\w+\.json\)$", "", metric)
    texts = {}
    with vocabularies_for_a_while():
        for setting in dict.fromkeys(run.setting for run in runs):
            own = [run for run in runs if run.setting == setting]
            *arguments, _ = own[0].arguments  # without the seed
            options = configuration.parse_command_line(
                (f"--model_dir={own[0].folder}", *arguments),
                None,
                configuration.add_common,
            )
            settings = configuration.read_configuration(options)
            _, _, text = settings.text(defaults=False).partition("\n")  # the version
            texts |= dict.fromkeys(own, text)
            _warn_of_changes(own, text)
            if all(_has_ended(run, text) for run in own):
                continue
            try:
                with data_errors():
                    check_train(settings, metric)
            except UserError as error:
                if setting == _ONLY:
                    raise
                raise UserError(f"{setting}: {error}") from error
    return texts


def _warn_of_changes(runs, text):
    """Warns if a run of a setting began with another configuration than `text`."""
    from remixer_tf.training.run_files import changed_bindings

    for run in filter(_has_begun, runs):
        changes = changed_bindings(_read(run, _BEGAN) or text, text)
        if changes:
            console.say(
                f"{run.folder} began with other settings: {shorten(changes)}. To train "
                "it anew, set another --model_dir.",
                "warning",
                sys.stderr,
            )
            return  # Other seeds have the same ones.


def _has_begun(run):
    """Whether a run has trained; it may have failed before."""
    return os.path.exists(os.path.join(run.folder, configuration.RUN_FILE))


def _read(run, name):
    """The text of a file in a run's folder; "" if either is missing."""
    try:
        with open(os.path.join(run.folder, name), encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _grid(text):
    """Returns [(name, value as gin text), ...] of "NAME=[A,B]"."""
    name, equals, values = (part.strip() for part in text.partition("="))
    (binding,) = read_text(f"{name} = {values}", f"--grid={text}") if equals else [None]
    if not equals or not isinstance(binding.value, (list, tuple)) or not binding.value:
        raise UserError(f"--grid is NAME=[A,B]. Received: --grid={text}")
    return [(_not_seed(binding), literal(value)) for value in binding.value]


def _pairs(text):
    """Returns [(name, value), ...] of "NAME=A NAME=B". Values may have spaces."""
    parts = re.split(r"\s+(?=[\w./]+=)", text.strip())
    pairs = [part.partition("=")[::2] for part in parts]
    if not all(name and value for name, value in pairs):
        raise UserError(f"--setting is 'NAME=A NAME=B'. Received: --setting={text!r}")
    flag = f"--setting={text}"
    return [(_not_seed(*read_text(f"{n} = 0", flag)), value) for n, value in pairs]


def _not_seed(binding):
    """Returns the name of a binding that is not the seed's."""
    name = name_of(binding)
    if name == "SEED" or (last(binding.selector), binding.arg_name) == ("Run", "seed"):
        raise UserError(f"--seeds=N sets the seeds of a sweep. Leave {name} out.")
    return name


def _folder_name(text):
    """The text, or as much of it as a folder's name may have and a hash."""
    text = re.sub(r"'(?!(?:True|False|None)')([A-Za-z][\w.-]*)'", r"\1", text)  # a word
    name = re.sub(r"[^\w.,=+-]+", "_", text)[:_NAME_LENGTH]
    if name == text:
        return name
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _train_all(runs, at_once):
    """Trains the runs that have not ended; returns {run: why} of those that failed.

    `runs` is {run: its setting as gin text}.
    """
    from remixer_tf.checkpoints.whole_folder import write_json
    from remixer_tf.training.progress import format_seconds
    from remixer_tf.training.stop_signal import StopSignal

    names = {run.folder: os.path.basename(run.folder) for run in runs}
    waiting = collections.deque(run for run in runs if not _has_ended(run, runs[run]))
    if len(waiting) < len(runs):
        console.say(f"{len(runs) - len(waiting)} of {len(runs)} runs have ended before")
    live, failed = {}, {}  # live: {folder: (run, process, start)}
    with StopSignal():
        try:
            while waiting or live:
                while waiting and len(live) < at_once:
                    run = waiting.popleft()
                    live[run.folder] = run, _start(run, runs[run]), time.monotonic()
                    name = names[run.folder]
                    console.say(f"{name}: training", fields={"run": name})
                time.sleep(_POLL_SECONDS)
                for run, process, start in list(live.values()):
                    if process.poll() is None:
                        continue
                    del live[run.folder]
                    if process.returncode:
                        failed[run] = _why(run, process.returncode)
                        console.say(f"{names[run.folder]}: {failed[run]}", "warning")
                        continue
                    ended = [*run.arguments, runs[run]]
                    write_json(os.path.join(run.folder, _ENDED), ended)
                    seconds = format_seconds(time.monotonic() - start)
                    console.say(f"{names[run.folder]}: ended after {seconds}")
        finally:
            _stop([process for _, process, _ in live.values()])
    return failed


def _start(run, text):
    from remixer_tf.checkpoints.whole_folder import write_whole

    os.makedirs(run.folder, exist_ok=True)
    if not _has_begun(run):
        write_whole(os.path.join(run.folder, _BEGAN), text)
    command = "train", f"--model_dir={run.folder}", *run.arguments
    return start_command(command, os.path.join(run.folder, "sweep.log"))


def _stop(processes):
    """Has processes save and end. A second signal while they do kills them."""
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.kill()
        raise


def _why(run, code):
    path = os.path.join(run.folder, "sweep.log")
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            *_, last = ["", *filter(None, map(str.strip, log))]
    except OSError as error:
        last = error.strerror
    return f"failed with exit code {code}: {last} ({path})"


def _has_ended(run, text):
    """Whether a run has ended with the same configuration and arguments."""
    if not os.path.exists(os.path.join(run.folder, "train_summary.json")):
        return False
    try:
        return json.loads(_read(run, _ENDED)) == [*run.arguments, text]
    except ValueError:
        return False


def _write_table(runs, failed, options):
    from remixer_tf.analysis.comparison import read_run, title_of_seeds
    from remixer_tf.serving.lines import open_text_output

    settings = {}
    for run in runs:
        settings.setdefault(run.setting.replace(",", " "), []).append(run.folder)
    groups = {
        title_of_seeds(setting, len(folders)): folders
        for setting, folders in settings.items()
    }
    read = configuration.read_bindings
    found = {run.folder: read_run(run.folder, read) for run in runs}
    failed = {os.path.basename(run.folder): why for run, why in failed.items()}
    try:
        with open_text_output(options.output) as output:
            write_runs(found, groups, options, output, failed)
    except UserError as error:
        raise UserError(
            f"{error} All runs are kept. Compare them: remixer_tf compare "
            f"--metric=NAME {options.model_dir}/*"
        ) from error
