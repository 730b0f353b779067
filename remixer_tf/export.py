"""Writes a SavedModel: python -m remixer_tf.export --model_dir=DIR [--step=N] ..."""

import os
import tempfile

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and exports."""
    options = configuration.parse_run(
        arguments,
        "Writes a checkpoint of --model_dir as the SavedModel <model_dir>/export/"
        "<step>: strings in, answers and scores out.",
    )
    model, step = configuration.call(
        "text_to_text", options.model_dir, step=options.step
    )
    print(export(model, os.path.join(options.model_dir, "export"), step))


def export(model, directory, number):
    """Writes a `TextToText` as the SavedModel `<directory>/<number>`.

    TensorFlow Serving serves the highest number of a folder, so exports are numbered
    by step. The folder appears under its number when it is whole. Its assets are the
    vocabulary's file, if it has one, and the configuration: operative_config.gin.

    Args:
        model: a `TextToText`.
        directory: folder of numbered exports, made if it is missing.
        number: int.

    Returns:
        str, the path of the SavedModel.

    Raises:
        FileExistsError: there is an export of that number.
        OSError: the folder cannot be written.
    """
    import tensorflow as tf

    path = os.path.join(directory, str(number))
    if tf.io.gfile.exists(path):
        raise FileExistsError(
            f"There is an export {path} already. Remove it, or choose another "
            "checkpoint with --step."
        )
    temporary = os.path.join(directory, f"temporary-{number}-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        configuration = os.path.join(folder, "operative_config.gin")
        with open(configuration, "w") as file:
            file.write(configuration.configuration_str())
        model.assets = [
            tf.saved_model.Asset(file)
            for file in (configuration, *model.vocabulary_files)
        ]
        try:
            tf.io.gfile.makedirs(directory)
            tf.saved_model.save(
                model, temporary, signatures={"serving_default": model.__call__}
            )
            tf.io.gfile.rename(temporary, path)
        except tf.errors.OpError as error:
            raise OSError(f"Cannot write {path}: {error.message}") from error
        finally:
            if tf.io.gfile.exists(temporary):
                tf.io.gfile.rmtree(temporary)
    return path


if __name__ == "__main__":
    configuration.run_binary(main)
