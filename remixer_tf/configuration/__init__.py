"""What binaries know of gin: their command line, their configuration, its errors."""

from remixer_tf.configuration.bindings import read_bindings
from remixer_tf.configuration.command_line import (
    add_trust,
    parse_command_line,
    parse_run,
    run_configuration,
)
from remixer_tf.configuration.errors import (
    UserError,
    check_on_tensorflow,
    is_users_error,
    nearest,
    plain_message,
    run_binary,
)
from remixer_tf.configuration.gin_files import (
    bind_relative_paths,
    call,
    configuration_str,
    evaluation_bindings,
    get_arguments,
    get_value,
    gin_folder,
    hyperparameters,
    is_set,
    parse_gin,
    register_configurables,
)
from remixer_tf.configuration.startup import load_tensorflow

__all__ = [
    "UserError",
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
    "is_users_error",
    "load_tensorflow",
    "nearest",
    "parse_command_line",
    "parse_gin",
    "parse_run",
    "plain_message",
    "read_bindings",
    "register_configurables",
    "run_binary",
    "run_configuration",
]
