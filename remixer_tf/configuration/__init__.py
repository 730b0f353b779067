"""What commands know of gin: their command line, and their configuration."""

from remixer_tf.configuration.bindings import RUN_FILE, gin_folder, read_bindings
from remixer_tf.configuration.command_line import (
    add_common,
    add_run,
    add_trust,
    parse_command_line,
    read_configuration,
    read_run,
)
from remixer_tf.configuration.gin_files import (
    bind_relative_paths,
    call,
    configuration_str,
    get_arguments,
    get_value,
    hyperparameters,
    is_set,
    macros,
    parse_gin,
    recorded,
    register_configurables,
)
from remixer_tf.configuration.result_bindings import evaluation_bindings
from remixer_tf.configuration.startup import check_on_tensorflow, load_tensorflow
from remixer_tf.errors import UserError

__all__ = [
    "RUN_FILE",
    "UserError",
    "add_common",
    "add_run",
    "add_trust",
    "bind_relative_paths",
    "call",
    "check_on_tensorflow",
    "configuration_str",
    "evaluation_bindings",
    "get_arguments",
    "get_value",
    "gin_folder",
    "hyperparameters",
    "is_set",
    "load_tensorflow",
    "macros",
    "parse_command_line",
    "parse_gin",
    "read_bindings",
    "read_configuration",
    "read_run",
    "recorded",
    "register_configurables",
]
