"""Options of commands that read a configuration."""

import argparse
import os
import re

from remixer_tf.command_line import parse_command_line  # noqa: F401  its home was here
from remixer_tf.configuration import parts
from remixer_tf.configuration.bindings import RUN_FILE
from remixer_tf.configuration.reading import put_into_gin, read
from remixer_tf.configuration.trust import check_run_configuration
from remixer_tf.errors import UserError

# (part, parameter, value) that put a model on one device. They are names: an engine's
# module imports TensorFlow, which comes after all checks that need none.
_ONE_DEVICE = (
    ("TensorFlowEngine", "strategy", "single"),
    ("JaxEngine", "mesh_shape", ""),
    ("JaxEngine", "distributed", None),
)


def add_common(parser, run="needed"):
    """Adds the options of every command that reads a configuration.

    These are `model_dir`, the lists `gin_file`, `gin_bindings`, `gin_search_paths` and
    `module_import`, and `trust` for a run that is read. A binding is text such as
    "Run.seed = 1". `run` is "needed" if --model_dir must be given, "optional" if it may
    be given, and "new" if the command makes the run.
    """
    own = "; if none is given, what training wrote into --model_dir is read"
    needed, help = run != "optional", "folder of the run"
    parser.add_argument("--model_dir", required=needed, metavar="DIR", help=help)
    several = {"action": "extend", "type": _names, "default": []}
    parser.add_argument(
        "--gin_file",
        metavar="FILE",
        help="gin file, such as models/t5_1_1_tiny.gin; repeat it or separate several "
        "with commas: later files override earlier ones" + own * (run != "new"),
        **several,
    )
    parser.add_argument(
        "--gin.NAME=VALUE",
        dest="unused",
        default=argparse.SUPPRESS,
        metavar="",
        help="sets a macro or parameter: --gin.BATCH_SIZE=64, --gin.Run.seed=1, "
        "--gin.TASK=cogs",
    )
    help = "folders of gin files, after the current one and before the package's"
    parser.add_argument("--gin_search_paths", metavar="P,Q", help=help, **several)
    add_module_import(parser)
    if run != "new":
        parser.add_argument(
            "--trust",
            action="store_true",
            help="let the run's own configuration import any module and include files, "
            "which runs code of whoever made it; --module_import allows one module",
        )


def add_module_import(parser):
    """Adds `module_import`, a list of modules to import first."""
    parser.add_argument(
        "--module_import",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of yours to import first, which registers tasks or parts; repeat "
        "it for several",
    )


def add_run(parser, words=("best",)):
    """Adds the options of a command that reads a checkpoint: `add_common` and `step`.

    --step takes one of `words` instead of a number.
    """
    add_common(parser)

    def step(text):
        if text in words:
            return text
        if not re.fullmatch(r"\d+", text):
            expected = " or ".join(["a number", *words])
            raise argparse.ArgumentTypeError(f"expected {expected}. Received: {text!r}")
        return int(text)

    help = f"step of the checkpoint, or {' or '.join(words)}; default: the newest"
    parser.add_argument("--step", type=step, metavar="N", help=help)


def read_configuration(options, default=(), complete=True):
    """Reads the `Configuration` that the options of a command name.

    `default` are the gin files for neither --gin_file nor --model_dir. For `complete`
    see `read`. It is gin's own too, see `put_into_gin`.
    """
    configuration = _read(options, default, complete)
    put_into_gin(configuration)
    return configuration


def read_run(options, devices="one"):
    """As `read_configuration`, for a checkpoint of --model_dir, see `add_run`.

    The command runs on `devices`, see `configuration_of_run`.
    """
    configuration = configuration_of_run(options, devices)
    put_into_gin(configuration)
    return configuration


def configuration_of_run(options, devices="one"):
    """Returns the `Configuration` for a checkpoint of --model_dir, see `add_run`.

    `devices` are "configured": those of the configuration; "asked": those of one
    process that --gin_file or --gin name, and not the run's own; or "one": one device,
    and others that --gin_file or --gin name are an error.
    """
    one_device = () if devices == "configured" else _ONE_DEVICE
    over_run = [f"{part}.{parameter} = {one!r}" for part, parameter, one in one_device]
    configuration = _read(options, over_run=over_run, run=options.model_dir)
    import keras  # late, as all that is slow to import

    for part, parameter, one in one_device:
        name = f"{part}.{parameter}"
        # Engines are called as their backends. The other engine's settings are ignored.
        if not name.lower().startswith(keras.backend.backend()):
            continue
        value = configuration.value(parts.find(part).wrapped, parameter, one)
        of_processes = name == "JaxEngine.distributed" or value == "multi_worker"
        if value != one and (devices == "one" or of_processes):
            what = "in one process" if devices == "asked" else "on one device"
            raise UserError(
                f"this command runs {what}, and the configuration has {name} = "
                f'{value!r}. Add --gin.{name}="{one!r}". (eval takes it.)'
            )
    return configuration


def _read(options, default=(), complete=True, over_run=(), run=None):
    """Reads a configuration, with what training wrote unless --gin_file names others.

    The bindings `over_run` come after what training wrote, and before the command
    line's.
    """
    files, bindings = options.gin_file or default, options.gin_bindings
    if options.model_dir and not options.gin_file:
        files, bindings = [run_configuration(options)], [*over_run, *bindings]
    folders, modules = options.gin_search_paths, options.module_import
    return read(files, bindings, folders, complete, modules, run)


def run_configuration(options):
    """Returns the path of the gin file that training wrote into a run's folder.

    All commands read such a file by this function. It raises a UserError if the file
    could run code that neither --module_import nor --trust allows.
    """
    path = os.path.join(options.model_dir, RUN_FILE)
    if not os.path.exists(path):
        if os.path.exists(os.path.join(options.model_dir, "config.json")):
            raise UserError(
                f"{options.model_dir} holds published weights and is no run. Make one "
                f"of them: import_weights --from={options.model_dir} --model_dir=RUN"
            )
        missing = path if os.path.isdir(options.model_dir) else options.model_dir
        raise UserError(
            f"there is no {missing}. Set --model_dir to the folder of a run, or name "
            "the configuration with --gin_file: a model's file and then a run's, such "
            "as --gin_file=models/t5_1_1_tiny.gin --gin_file=runs/mini_cogs.gin."
        )
    if not options.trust:
        check_run_configuration(path, options.module_import)
    return path


def _names(text):
    """Returns the names in "a,b"."""
    return [name for name in text.split(",") if name]
