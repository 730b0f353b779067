"""Counts what models are made of: python -m remixer_tf.profile --gin_file=FILE ..."""

import functools
import os
import sys

from remixer_tf import gin_errors, gin_utils
from remixer_tf.gin_errors import UserError


def main(arguments):
    """Parses the command line, counts and writes the tables."""
    options = gin_utils.parse_command_line(
        arguments,
        "Prints parameters, forward FLOPs and bytes of models, beside what their paper "
        "prints. Each --gin_file is a model of its own. Without --measure no variable "
        "is made, so that any size can be counted.",
        _add_arguments,
        needs_run=False,
    )
    from remixer_tf.analysis.profile_table import FORMATS, write_profiles

    if options.format not in FORMATS:
        raise UserError(
            f"--format must be one of {', '.join(FORMATS)}. Received: {options.format}"
        )
    files = [*options.gin_file, *_files_of_table(options)]
    if not files:
        raise UserError(
            "there is nothing to count. Name models with --gin_file, such as "
            "--gin_file=models/t5_1_1_base.gin, or a paper's table with --table."
        )
    profiles = {}
    for file in files:
        name, *profile = _profile(file, options)
        if name in profiles:
            name = file
        profiles[name] = profile
    if not options.output:
        write_profiles(profiles, options.format, sys.stdout)
        return
    with open(options.output, "w", encoding="utf-8") as output:
        write_profiles(profiles, options.format, output)


def _profile(file, options):
    """Returns a name, `Profile` and `PaperRow` of the model of a gin file."""
    from remixer_tf.analysis.profile import count, measure
    from remixer_tf.optimizers import Adafactor

    gin_utils.parse_gin(
        [file], options.gin_bindings, options.gin_search_paths, complete=False
    )
    model = gin_utils.get_value("train.model")
    if model is None:
        raise UserError(
            f"{file} names no model. Expected: a model file, which binds train.model, "
            "such as models/t5_1_1_base.gin."
        )
    arguments = {
        "model": model,
        "optimizer": gin_utils.get_value("train.optimizer", Adafactor),
        "batch_size": options.batch_size,
        "feature_lengths": {
            "inputs": options.input_length,
            "targets": options.target_length,
        },
        "dtype_policy": gin_utils.get_value("train.dtype_policy", "float32"),
    }
    profile = count(**arguments)
    if options.measure:
        profile.steps_per_second, profile.tokens_per_second = measure(
            **arguments, jit_compile=gin_utils.get_value("train.jit_compile")
        )
    row = gin_utils.call("PaperRow")
    return row.row or os.path.basename(file).removesuffix(".gin"), profile, row


def _files_of_table(options):
    """Returns the paths of all rows of --table, from the first folder that has it."""
    if not options.table:
        return []
    folders = ["", *options.gin_search_paths, gin_utils.gin_folder()]
    papers = [os.path.join(folder, "papers") for folder in folders]
    tables = {
        os.path.relpath(path, folder): (path, sorted(names))
        for folder in reversed(papers)
        for path, _, names in os.walk(folder)
        if any(name.endswith(".gin") for name in names)
    }
    if options.table not in tables:
        raise UserError(
            f"there is no table {options.table!r}."
            f"{gin_errors.nearest(options.table, tables)} There are: "
            f"{', '.join(sorted(tables))}."
        )
    path, names = tables[options.table]
    return [os.path.join(path, name) for name in names if name.endswith(".gin")]


def _add_arguments(parser):
    def positive(text):
        if (number := int(text)) < 1:
            raise ValueError
        return number

    add = functools.partial(parser.add_argument, type=positive, metavar="N")
    add("--batch_size", default=128, help="examples in a batch; default 128")
    add("--input_length", default=512, help="tokens of inputs; default 512")
    add("--target_length", default=114, help="tokens of targets; default 114")
    parser.add_argument(
        "--table",
        metavar="PAPER/TABLE",
        help="all rows of a paper's table, such as remixer/table1: the files of the "
        "folder papers/PAPER/TABLE on the search path",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time training steps too; this makes the models and needs their memory",
    )
    parser.add_argument(
        "--format", default="text", help="text, markdown or csv; default text"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="file to write; default standard output"
    )


if __name__ == "__main__":
    gin_errors.run_binary(main)
