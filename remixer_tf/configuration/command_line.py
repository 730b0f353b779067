"""The command line of the binaries."""

import argparse
import os
import re

from remixer_tf.checkpoints import paths
from remixer_tf.configuration.errors import UserError, nearest
from remixer_tf.configuration.gin_files import RUN_FILE, get_value, parse_gin
from remixer_tf.configuration.startup import load_tensorflow
from remixer_tf.configuration.trust import check_run_configuration

# What puts a model on several devices, of Keras' backend, and the value that does not.
_ONE_DEVICE = {
    "tensorflow": {"TensorFlowEngine.strategy": "single"},
    "jax": {"JaxEngine.mesh_shape": "", "JaxEngine.distributed": None},
}


def parse_command_line(arguments, description, add_arguments=None, needs_run=True):
    """Parses a binary's command line.

    Args:
        arguments: list of str, without the program's name.
        description: str, the help's first line.
        add_arguments: a function that adds the binary's own options to the
            `argparse.ArgumentParser`; None for none.
        needs_run: bool, whether --model_dir has to be given.

    Returns:
        `argparse.Namespace` with `model_dir`, `gin_file` (a list), `gin_search_paths`
        (a list), `gin_bindings` (a list such as ["train.seed = 1"]), `module_import`
        (a list), and the binary's own.

    Raises:
        UserError: an argument is unknown or malformed.
    """
    parser = argparse.ArgumentParser(
        description=description, allow_abbrev=False, usage="%(prog)s [options]"
    )
    if needs_run:
        parser.add_argument(
            "--model_dir", required=True, metavar="DIR", help="folder of the run"
        )
    parser.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="gin file, such as models/t5_1_1_tiny.gin; repeat it or separate several "
        "with commas: later files override earlier ones",
    )
    parser.add_argument(
        "--gin.NAME=VALUE",
        dest="unused",
        default=argparse.SUPPRESS,
        metavar="",
        help="sets a macro or parameter: --gin.TRAIN_STEPS=100, --gin.train.seed=1; "
        "a string needs quotes of its own: --gin.TASK=\"'cogs'\"",
    )
    parser.add_argument(
        "--gin_search_paths",
        default="",
        metavar="P,Q",
        help="more folders to look for gin files, after the current one and before "
        "the package's",
    )
    parser.add_argument(
        "--module_import",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of yours to import first, which registers tasks or parts; repeat "
        "it for several",
    )
    if add_arguments:
        add_arguments(parser)
    options, rest = parser.parse_known_args(arguments)
    options.gin_bindings = [_to_binding(argument, parser) for argument in rest]
    options.gin_file = [f for value in options.gin_file for f in value.split(",") if f]
    options.gin_search_paths = [p for p in options.gin_search_paths.split(",") if p]
    return options


def parse_run(
    arguments, description, add_arguments=None, steps=("best",), devices="one"
):
    """Parses the command line of a binary that reads a run, and its configuration.

    Without --gin_file that is the one which training wrote into --model_dir, see
    `run_configuration`.

    Args:
        arguments, description, add_arguments: as in `parse_command_line`.
        steps: words that --step takes beside a number.
        devices: what the binary runs on. "configured": what the configuration says.
            "asked": those of one process that --gin_file or --gin ask for; what a run's
            own configuration says of devices is not read. "one": the same, and none
            but one device may be asked for.

    Returns:
        what `parse_command_line` does, with `step`: int or one of `steps`, None for the
        newest checkpoint.

    Raises:
        UserError: what `parse_command_line` and `parse_gin` raise, the folder has no
            configuration, or devices are asked for that the binary does not take.
    """

    def step(text):
        return text if text in steps else int(text)

    def add_step(parser):
        parser.add_argument(
            "--step",
            type=step,
            metavar="N",
            help=f"step of the checkpoint, or {' or '.join(steps)}; the newest if not "
            "given",
        )
        add_trust(parser)
        if add_arguments:
            add_arguments(parser)

    options = parse_command_line(
        arguments,
        f"{description} Without --gin_file, the configuration is the one that training "
        "wrote into --model_dir.",
        add_step,
    )
    files, bindings = options.gin_file, options.gin_bindings
    own = [] if files else [run_configuration(options)]
    load_tensorflow()
    one_device = {} if devices == "configured" else _one_device()
    if own:
        files = own
        bindings = [f"{name} = {one!r}" for name, one in one_device.items()] + bindings
    parse_gin(files, bindings, options.gin_search_paths, modules=options.module_import)
    paths.start_from([options.model_dir, *paths.starts()], run=options.model_dir)
    for name, one in one_device.items():
        value = get_value(name, one)
        of_processes = name == "JaxEngine.distributed" or value == "multi_worker"
        if value != one and (devices == "one" or of_processes):
            what = "in one process" if devices == "asked" else "on one device"
            raise UserError(
                f"this program runs {what}, and the configuration has {name} = "
                f'{value!r}. Add --gin.{name}="{one!r}". (remixer_tf.eval takes it.)'
            )
    return options


def _one_device():
    """{parameter: its value} of one device, for Keras' backend."""
    import keras  # late, as all that is slow to import

    return _ONE_DEVICE.get(keras.backend.backend(), {})


def add_trust(parser):
    """Adds the option of who reads a run's own configuration."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let the run's own configuration import any module and include files, "
        "which runs code of whoever made it; --module_import allows one module",
    )


def run_configuration(options):
    """Returns the path of the gin file that training wrote into a run's folder.

    The only place that hands such a file to gin: it is checked here.

    Args:
        options: `argparse.Namespace` with `model_dir`, `module_import` and `trust`.

    Raises:
        UserError: the folder has none, or it could run code that neither
            --module_import nor --trust allows.
    """
    path = os.path.join(options.model_dir, RUN_FILE)
    if not os.path.exists(path):
        raise UserError(
            f"there is no {path}. Set --model_dir to the folder of a run, or name the "
            "configuration with --gin_file: a model's file and then a run's, such as "
            "--gin_file=models/t5_1_1_tiny.gin --gin_file=runs/mini_cogs.gin."
        )
    if not options.trust:
        check_run_configuration(path, options.module_import)
    return path


def _to_binding(argument, parser):
    """Turns '--gin.NAME=VALUE' into 'NAME = VALUE'."""
    match = re.fullmatch(r"--gin\.([^=]+)=(.*)", argument, re.DOTALL)
    if match:
        return f"{match[1].strip()} = {match[2]}"
    if argument.startswith("--gin."):
        raise UserError(f"{argument} has no value. Expected: {argument}=VALUE")
    if match := re.match(r"--gin_(?:params?|bindings?)\b=?(.*)", argument, re.DOTALL):
        name, _, value = match[1].strip("'\" ").partition("=")
        meant = f"--gin.{name.strip() or 'NAME'}={value.strip() or 'VALUE'}"
        raise UserError(f"unknown argument {argument!r}. Did you mean {meant}")
    flags = [flag for flag in parser._option_string_actions if "NAME" not in flag]
    raise UserError(
        f"unknown argument {argument!r}.{nearest(argument, flags)} --help lists all."
    )
