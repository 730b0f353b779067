"""The folder of a LiteRT or ONNX export: what its model.json says."""

import json
import os

from remixer_tf.checkpoints.versions import check_version
from remixer_tf.errors import StorageError, UserError

DESCRIPTION = "model.json"
CONFIGURATION = "operative_config.gin"
_MOST_BYTES = 2**20  # of a description
_LONGEST = 2**20  # ids of a row


def is_export(folder):
    """Whether `export --format=litert` or `onnx` wrote the folder.

    Raises a ValueError if an older version did, which kept no configuration there.
    """
    if not os.path.isfile(os.path.join(folder, DESCRIPTION)):
        return False
    if not os.path.isfile(os.path.join(folder, CONFIGURATION)):
        raise UserError(
            f"{folder} has no {CONFIGURATION}, so an export of before 2026-11-27 wrote "
            "it. Its runtime reads it as before. To load it here, export it again."
        )
    return True


def describe(folder, formats):
    """Returns the description of an export, a dictionary, checked.

    `formats` is a dictionary of the formats' names, to their files' names. Raises a
    ValueError if the description is damaged, or a newer version wrote it.
    """
    path = os.path.join(folder, DESCRIPTION)
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}.") from None
    try:
        about = json.loads(text[:_MOST_BYTES])
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("format") not in [*formats]:
        names = " or ".join(formats)
        raise UserError(f"{path} does not describe an export of {names}.")
    check_version(about.get("version"), path)
    length = about.get("max_input_length")
    good = (
        about.get("file") == formats[about["format"]]
        and isinstance(about.get("sha256"), str)
        and isinstance(about.get("language_model"), bool)
        and type(length) is int
        and 0 < length <= _LONGEST
    )
    if not good:
        raise UserError(f"{path} is damaged. Copy the folder again.")
    return about
