"""Counts parameters, FLOPs and bytes.

Each row of the tables is a model, next to what its paper prints. Each --gin_file is a
model of its own. Any size can be counted: only --measure makes variables. --match and
--vary find the value of a macro with which a model has as many parameters, or FLOPs, as
another one.
"""

import math
import os
import sys

from remixer_tf import configuration, console
from remixer_tf.commands import (
    add_list,
    add_number,
    add_table,
    check_once,
    check_output,
)
from remixer_tf.configuration.bindings import find, folders_of_gin
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.configuration.values import MACRO
from remixer_tf.errors import UserError, nearest

# The default of each size: T5's pre-training.
_BATCH = {"batch_size": 128, "input_length": 512, "target_length": 114}
_LENGTHS = "input_length", "target_length"


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    for name, what in (
        ("batch_size", "examples in a batch"),
        ("input_length", "tokens of inputs"),
        ("target_length", "tokens of targets"),
    ):
        default = (
            "default: as the run of --model_dir trains, or as the row's paper counts, "
            f"else {_BATCH[name]}"
        )
        if name.endswith("_length"):
            default += ", or as many as the model takes"
        add_number(parser, f"--{name}", f"{what}; {default}")
    add_list(
        parser,
        "--table",
        "PAPER/TABLE",
        "all rows of a paper's table, such as remixer/table1: the files of the folder "
        "papers/PAPER/TABLE on the search path; repeat it for several",
    )
    add_list(
        parser,
        "--layout",
        "FILE",
        "gin file with the JaxEngine's mesh_shape and layout_rules, such as "
        "layouts/data_8_model_8.gin: what each device of that mesh would hold; a "
        "second one may change the rules of the first",
    )
    parser.add_argument(
        "--match",
        metavar="QUANTITY[=NUMBER]",
        help="change the models until they have as much of parameters, flops, "
        "matmul_flops or rest_flops as the first one, or as a number such as "
        "parameters=110e6; needs --vary",
    )
    parser.add_argument(
        "--vary", metavar="MACRO", help="macro of gin to change for --match, as D_FF"
    )
    help = "time training steps too; this makes the models and needs their memory"
    parser.add_argument("--measure", action="store_true", help=help)
    add_table(parser)


def run(options):
    check_output(options)
    own = [configuration.run_configuration(options)] if options.model_dir else []
    files = [*own, *options.gin_file, *_files_of_tables(options)]
    if not files:
        raise UserError(
            "there is nothing to count. Name models with --gin_file, such as "
            "--gin_file=models/t5_1_1_base.gin, or a paper's table with --table."
        )
    folders = folders_of_gin(options.gin_search_paths)
    check_once(files, [find(file, folders) for file in files], "file")
    configuration.load_tensorflow()
    from remixer_tf.analysis.cost_table import write_profiles
    from remixer_tf.data.failures import data_errors
    from remixer_tf.data.vocabulary_training import vocabularies_for_a_while
    from remixer_tf.serving.lines import open_text_output

    wanted = _wanted(options, len(files))
    profiles = {}
    for number, file in enumerate(files, start=1):
        with vocabularies_for_a_while(), data_errors():
            is_run = file in own
            match = wanted and wanted.number and _find(file, options, is_run, wanted)
            name, *profile = _profile(file, options, is_run, match)
        if len(files) > 1:
            done = f"counted {number} of {len(files)}: {name}"
            console.say(done, file=sys.stderr)
        if name in profiles:
            name = file
        profiles[name] = profile
        if wanted and not wanted.number:
            wanted = _as_first(wanted, name, profile[0], options)
    with open_text_output(options.output) as output:
        write_profiles(profiles, options.format, output)


def _wanted(options, models):
    """Returns what --match and --vary ask for, a `Wanted`, or None.

    Its number is 0 if it is that of the first model.
    """
    from remixer_tf.analysis.matching import QUANTITIES, Wanted

    if not (options.match and options.vary):
        if options.match or options.vary:
            raise UserError("--match and --vary go together, see --help.")
        return None
    quantity, equals, text = options.match.lower().partition("=")
    if quantity not in QUANTITIES:
        raise UserError(
            f"--match is one of {', '.join(QUANTITIES)}."
            f"{nearest(quantity, QUANTITIES)} Received: --match={options.match}"
        )
    try:
        number = float(text) if equals else 0.0
    except ValueError:
        number = math.nan
    if equals and not 0 < number < math.inf:
        raise UserError(
            f"--match={quantity}=NUMBER needs a number above 0, such as 110e6. "
            f"Received: --match={options.match}"
        )
    if not equals and models == 1:
        raise UserError(
            f"--match={quantity} needs a second model to change, or a number: "
            f"--match={quantity}=110e6."
        )
    return Wanted(quantity, number, options.vary)


def _as_first(wanted, name, profile, options):
    """Returns `wanted` with the number of a profile. FLOPs are those of its batch."""
    names = {"inputs": "input_length", "targets": "target_length"}
    if wanted.quantity != "parameters":
        for size, value in profile.batch.items():
            setattr(options, names.get(size, size), value)
    number = getattr(profile.total, wanted.quantity)
    return wanted._replace(number=number, of=name)


def _find(file, options, is_run, wanted):
    """Returns the `Match` of the model of a gin file."""
    from remixer_tf.analysis.costs import count
    from remixer_tf.analysis.matching import find_value
    from remixer_tf.models import TransformerStack

    settings = read_model(file, options)
    used = {key for own in settings.bindings for _, key in settings.used_by(*own)}
    whole = {
        name: value
        for name, value in configuration.hyperparameters(settings.text(False)).items()
        if type(value) is int and value > 0 and (name, MACRO) in used
    }
    if wanted.macro not in whole:
        raise UserError(
            f"{file} uses no macro {wanted.macro!r} with a whole number above 0."
            f"{nearest(wanted.macro, whole)} It has: {', '.join(sorted(whole))}."
        )

    with_flops = wanted.quantity != "parameters"
    longest = settings.value(TransformerStack, "max_length")
    shorter = ""
    asked = {name: getattr(options, name) or 0 for name in _LENGTHS}
    if with_flops and longest and max(asked.values()) > longest:
        names = " ".join(f"--{x}={min(n, longest)}" for x, n in asked.items() if n)
        shorter = f" To count all models at a length that this one takes: {names}."

    def count_with(value):
        binding = f"{wanted.macro} = {value}"
        try:
            settings = read_model(file, options, [binding])
            _, optimizer, arguments = what_to_count(settings, options, is_run)
            profile = count(optimizer=optimizer, with_flops=with_flops, **arguments)
        except ValueError as error:
            raise UserError(f"with {binding}: {error}{shorter}") from error
        found = getattr(profile.total, wanted.quantity)
        tried = f"{os.path.basename(file)}, {binding}: {found:,} {wanted.quantity}"
        console.say(tried, file=sys.stderr)
        return found

    try:
        return find_value(count_with, whole[wanted.macro], wanted)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def read_model(file, options, bindings=()):
    """Returns the `Configuration` of a model's gin file, and then other bindings."""
    from remixer_tf.run import Run

    settings = configuration.read(
        [file, *options.layout],
        [*options.gin_bindings, *bindings],
        options.gin_search_paths,
        complete=False,
        modules=options.module_import,
    )
    put_into_gin(settings)
    if settings.value(Run, "model") is None:
        raise UserError(
            f"{file} names no model. Expected: a model file, which binds Run.model, "
            "such as models/t5_1_1_base.gin."
        )
    return settings


def what_to_count(settings, options, is_run=False):
    """Returns what a configuration says of a model to count.

    They are a `PaperRow`, an optimizer's factory and the other arguments of `count`.
    `is_run` is whether a run has written the configuration: its batch counts.
    """
    from remixer_tf.analysis.cost_table import PaperRow
    from remixer_tf.configured import run_without_data
    from remixer_tf.models import TransformerStack
    from remixer_tf.optimizers import Adafactor
    from remixer_tf.training.loop import train

    row = settings.call(PaperRow)
    known = _trained_batch(settings) if is_run else row.batch
    longest = settings.value(TransformerStack, "max_length")
    batch = {}
    for name, default in _BATCH.items():
        if longest and name.endswith("_length"):
            default = min(default, longest)
        batch[name] = getattr(options, name) or known.get(name) or default
    lengths = {"inputs": batch["input_length"], "targets": batch["target_length"]}
    run = run_without_data(settings)
    arguments = {
        "model": run.make_model,
        "batch_size": batch["batch_size"],
        "feature_lengths": lengths,
        "dtype_policy": run.dtype_policy,
    }
    optimizer = settings.value(train, "optimizer", Adafactor)
    return row, optimizer, arguments


def _profile(file, options, is_run, match):
    """Returns a name, `Profile` and `PaperRow` of the model of a gin file.

    For `is_run` see `what_to_count`. `match` is a `Match` or None.
    """
    from remixer_tf.analysis.costs import count, count_activations, measure
    from remixer_tf.configured import layout_of
    from remixer_tf.engines.tensorflow.engine import TensorFlowEngine

    found = [f"{match.wanted.macro} = {match.value}"] if match else []
    settings = read_model(file, options, found)
    row, optimizer, arguments = what_to_count(settings, options, is_run)
    layout = layout_of(settings)
    layout = layout if layout.axes else None
    profile = count(optimizer=optimizer, layout=layout, **arguments)
    profile.match = match or None
    profile.activation_bytes = count_activations(**arguments)
    if options.measure:
        compiled = settings.value(TensorFlowEngine, "jit_compile")
        profile.rates = measure(optimizer=optimizer, jit_compile=compiled, **arguments)
    return row.row or os.path.basename(file).removesuffix(".gin"), profile, row


def _trained_batch(settings):
    """Returns the sizes of a run's batch that its configuration has."""
    from remixer_tf.data.images import image_dataset
    from remixer_tf.data.pipeline import Batching
    from remixer_tf.run import Run

    lengths = settings.value(Run, "feature_lengths") or {}
    images = settings.value(image_dataset, "batch_size")
    return {
        "batch_size": settings.value(Batching, "batch_size", images),
        "input_length": lengths.get("inputs"),
        "target_length": lengths.get("targets"),
    }


def _files_of_tables(options):
    """Yields the paths of all rows of each --table, from the first folder with it."""
    folders = ["", *options.gin_search_paths, configuration.gin_folder()]
    papers = [os.path.join(folder, "papers") for folder in folders]
    tables = {
        os.path.relpath(path, folder): (path, sorted(names))
        for folder in reversed(papers)
        for path, _, names in os.walk(folder)
        if any(name.endswith(".gin") for name in names)
    }
    for table in options.table:
        if table not in tables:
            raise UserError(
                f"there is no table {table!r}.{nearest(table, tables)} "
                f"There are: {', '.join(sorted(tables))}."
            )
        path, names = tables[table]
        yield from (os.path.join(path, name) for name in names if name.endswith(".gin"))
