"""The command line and the configuration of commands, as gin reads them."""

from remixer_tf.configuration.bindings import RUN_FILE, gin_folder, read_bindings
from remixer_tf.configuration.command_line import (
    add_common,
    add_module_import,
    add_run,
    call_on_run,
    parse_command_line,
    read_configuration,
    read_run,
    run_configuration,
)
from remixer_tf.configuration.gin_files import (
    bind_relative_paths,
    call,
    configuration_str,
    configured_layout,
    get_arguments,
    get_value,
    hyperparameters,
    is_set,
    macros,
    parse_gin,
    register_configurables,
    train,
)
from remixer_tf.configuration.result_bindings import evaluation_bindings
from remixer_tf.errors import UserError
from remixer_tf.startup import check_backend, load_tensorflow
