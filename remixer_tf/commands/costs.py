"""Counts parameters, FLOPs and bytes.

Each row of the tables is a model, next to what its paper prints. Each --gin_file is a
model of its own. Without --measure no variable is made, so that any size can be
counted.
"""

import os
import sys

from remixer_tf import configuration, console
from remixer_tf.commands import add_list, add_number, add_table
from remixer_tf.errors import UserError, nearest

# The default of each size: T5's pre-training.
_BATCH = {"batch_size": 128, "input_length": 512, "target_length": 114}


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
    help = "time training steps too; this makes the models and needs their memory"
    parser.add_argument("--measure", action="store_true", help=help)
    add_table(parser)


def run(options):
    configuration.load_tensorflow()
    from remixer_tf.analysis.cost_table import write_profiles
    from remixer_tf.data.failures import data_errors
    from remixer_tf.data.vocabulary_training import vocabularies_for_a_while
    from remixer_tf.serving.lines import open_text_output

    configuration.check_backend("Counting")
    own = [configuration.run_configuration(options)] if options.model_dir else []
    files = [*own, *options.gin_file, *_files_of_tables(options)]
    if not files:
        raise UserError(
            "there is nothing to count. Name models with --gin_file, such as "
            "--gin_file=models/t5_1_1_base.gin, or a paper's table with --table."
        )
    profiles = {}
    for number, file in enumerate(files, start=1):
        with vocabularies_for_a_while(), data_errors():
            name, *profile = _profile(file, options, file in own)
        if len(files) > 1:
            done = f"counted {number} of {len(files)}: {name}"
            console.say(done, file=sys.stderr)
        if name in profiles:
            name = file
        profiles[name] = profile
    with open_text_output(options.output) as output:
        write_profiles(profiles, options.format, output)


def _profile(file, options, is_run):
    """Returns a name, `Profile` and `PaperRow` of the model of a gin file.

    `is_run` is whether a run has written the file: its batch counts.
    """
    from remixer_tf.analysis.costs import count, count_activations, measure
    from remixer_tf.optimizers import Adafactor

    configuration.parse_gin(
        [file, *options.layout],
        options.gin_bindings,
        options.gin_search_paths,
        complete=False,
        modules=options.module_import,
    )
    model = configuration.get_value("Run.model")
    if model is None:
        raise UserError(
            f"{file} names no model. Expected: a model file, which binds Run.model, "
            "such as models/t5_1_1_base.gin."
        )
    row = configuration.call("PaperRow")
    known = _trained_batch() if is_run else row.batch
    batch = {
        name: getattr(options, name) or known.get(name) or default
        for name, default in _BATCH.items()
    }
    lengths = {"inputs": batch["input_length"], "targets": batch["target_length"]}
    # Without task, lengths and vocabulary: their files need not be there.
    run = configuration.call("Run", model, None, None, None)
    arguments = {
        "model": run.make_model,
        "batch_size": batch["batch_size"],
        "feature_lengths": lengths,
        "dtype_policy": run.dtype_policy,
    }
    optimizer = configuration.get_value("train.optimizer", Adafactor)
    layout = configuration.configured_layout()
    layout = layout if layout.axes else None
    profile = count(optimizer=optimizer, layout=layout, **arguments)
    profile.activation_bytes = count_activations(**arguments)
    if options.measure:
        compiled = configuration.get_value("TensorFlowEngine.jit_compile")
        profile.rates = measure(optimizer=optimizer, jit_compile=compiled, **arguments)
    return row.row or os.path.basename(file).removesuffix(".gin"), profile, row


def _trained_batch():
    """Returns the sizes of a run's batch that its configuration has."""
    lengths = configuration.get_value("Run.feature_lengths", None) or {}
    images = configuration.get_value("image_dataset.batch_size")
    return {
        "batch_size": configuration.get_value("Batching.batch_size", images),
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
