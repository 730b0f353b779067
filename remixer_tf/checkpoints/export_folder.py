"""The folder of a LiteRT or ONNX export: what its model.json says."""

import json
import os

from remixer_tf.checkpoints.versions import check_version
from remixer_tf.errors import StorageError, UserError

DESCRIPTION = "model.json"
CONFIGURATION = "operative_config.gin"
FILES = LITERT, ONNX = "model.tflite", "model.onnx"
_KEYS = {"vocabularies", "max_input_length"}  # some of a description's
_MOST_BYTES = 2**20  # of a description
_LONGEST = 2**20  # ids of a row


def is_export(folder):
    """Whether `export --format=litert` or `onnx` wrote the folder.

    Raises a ValueError if an older version did, which kept no configuration there.
    """
    path = os.path.join(folder, DESCRIPTION)
    if not os.path.isfile(path):
        return False
    has_model = any(os.path.isfile(os.path.join(folder, file)) for file in FILES)
    if not has_model and not _KEYS <= _read(path).keys():  # another program's
        return False
    if not os.path.isfile(os.path.join(folder, CONFIGURATION)):
        raise UserError(
            f"{folder} has no {CONFIGURATION}, so an export of before 2026-11-27 wrote "
            "it. Its runtime reads it as before. To load it here, export it again."
        )
    return True


def check_no_export(folder):
    """Raises a ValueError if the folder of a run is an export's."""
    if is_export(folder):
        raise UserError(
            f"{folder} is an export: remixer_tf infer and load(..).generate() answer "
            "by it. All else needs the run that it was made of."
        )


def describe(folder, formats):
    """Returns the description of an export, a dictionary, checked.

    `formats` is a dictionary of the formats' names, to their files' names. Raises a
    ValueError if the description is damaged, or a newer version wrote it.
    """
    path = os.path.join(folder, DESCRIPTION)
    about = _read(path)
    if about.get("format") not in [*formats]:
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


def _read(path):
    """Returns the dictionary in a file of JSON; {} if there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}.") from None
    try:
        found = json.loads(text[:_MOST_BYTES])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
