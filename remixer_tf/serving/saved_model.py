"""A `TextToText` as a SavedModel."""

import os
import tempfile

import tensorflow as tf


def export(model, directory, number, configuration):
    """Writes a `TextToText` as the SavedModel `<directory>/<number>`.

    TensorFlow Serving serves the highest number of a folder, so exports are numbered
    by step. The folder appears under its number when it is whole. Its assets are the
    vocabulary's file, if it has one, and the configuration: operative_config.gin.

    Args:
        model: a `TextToText`.
        directory: folder of numbered exports, made if it is missing.
        number: int.
        configuration: str, gin text.

    Returns:
        str, the path of the SavedModel.

    Raises:
        FileExistsError: there is an export of that number.
        OSError: the folder cannot be written.
    """
    path = os.path.join(directory, str(number))
    if tf.io.gfile.exists(path):
        raise FileExistsError(
            f"There is an export {path} already. Remove it, or choose another "
            "checkpoint with --step."
        )
    temporary = os.path.join(directory, f"temporary-{number}-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        text_file = os.path.join(folder, "operative_config.gin")
        with open(text_file, "w") as file:
            file.write(configuration)
        model.assets = [
            tf.saved_model.Asset(file) for file in (text_file, *model.vocabulary_files)
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
