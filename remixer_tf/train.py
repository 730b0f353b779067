"""Trains a model: python -m remixer_tf.train --model_dir=DIR --gin_file=FILE ..."""

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and trains."""
    options = configuration.parse_command_line(
        arguments,
        "Trains a model, going on from the last checkpoint in --model_dir.",
        _add_arguments,
    )
    configuration.parse_gin(
        options.gin_file,
        options.gin_bindings,
        options.gin_search_paths,
        modules=options.module_import,
    )
    from remixer_tf.data.errors import data_errors

    with data_errors():
        configuration.call(
            "train",
            options.model_dir,
            configuration=_configuration,
            dry_run=options.dry_run,
        )


def _configuration():
    text = configuration.configuration_str()
    return text, configuration.hyperparameters(text)


def _add_arguments(parser):
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="build the model, read one batch, say what would run, and stop",
    )


if __name__ == "__main__":
    configuration.run_binary(main)
