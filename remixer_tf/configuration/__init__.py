"""The command line and the configuration of commands, as gin reads them."""

from remixer_tf.configuration.bindings import RUN_FILE, gin_folder, read_bindings
from remixer_tf.configuration.command_line import (
    add_common,
    add_module_import,
    add_run,
    configuration_of_run,
    parse_command_line,
    read_configuration,
    read_run,
    run_configuration,
)
from remixer_tf.configuration.parts import register_configurables
from remixer_tf.configuration.reading import (
    hyperparameters,
    macros,
    put_into_gin,
    read,
    read_again,
)
from remixer_tf.configuration.values import Bound, Configuration
from remixer_tf.errors import UserError
from remixer_tf.startup import check_backend, load_tensorflow
