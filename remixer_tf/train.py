"""Trains a model: python -m remixer_tf.train --model_dir=DIR --gin_file=FILE ..."""

from remixer_tf import gin_errors, gin_utils


def main(arguments):
    """Parses the command line and trains."""
    options = gin_utils.parse_command_line(
        arguments,
        "Trains a model, going on from the last checkpoint in --model_dir.",
        _add_arguments,
    )
    gin_utils.parse_gin(
        options.gin_file, options.gin_bindings, options.gin_search_paths
    )
    from remixer_tf.data.errors import data_errors

    with data_errors():
        gin_utils.call(
            "train",
            options.model_dir,
            configuration=_configuration,
            dry_run=options.dry_run,
        )


def _configuration():
    text = gin_utils.configuration_str()
    return text, gin_utils.hyperparameters(text)


def _add_arguments(parser):
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="build the model, read one batch, say what would run, and stop",
    )


if __name__ == "__main__":
    gin_errors.run_binary(main)
