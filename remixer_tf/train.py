"""Trains a model: python -m remixer_tf.train --model_dir=DIR --gin_file=FILE ..."""

import os

from remixer_tf import gin_errors, gin_utils


def main(arguments):
    """Parses the command line and trains."""
    options = gin_utils.parse_command_line(
        arguments, "Trains a model, going on from the last checkpoint in --model_dir."
    )
    gin_utils.parse_gin(
        options.gin_file, options.gin_bindings, options.gin_search_paths
    )
    from remixer_tf.data.pipeline import over_length_errors

    with over_length_errors():
        gin_utils.call(
            "train", options.model_dir, write_configuration=write_configuration
        )


def write_configuration(model_dir):
    """Writes <model_dir>/operative_config.gin."""
    import tensorflow as tf

    tf.io.gfile.makedirs(model_dir)
    path = os.path.join(model_dir, "operative_config.gin")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(gin_utils.configuration_str())


if __name__ == "__main__":
    gin_errors.run_binary(main)
