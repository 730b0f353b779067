"""Arrays of safetensors files, one file or several."""

import json
import os
import re

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from remixer_tf import __version__
from remixer_tf.errors import MissingFileError, StorageError, UserError, shorten
from remixer_tf.weights.values import short

WEIGHTS = "model.safetensors"
_INDEX = f"{WEIGHTS}.index.json"
# NumPy's types and bfloat16, as safetensors calls them.
_DTYPES = {"BF16", "F16", "F32", "F64", "BOOL"}
_DTYPES |= {f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64)}
# DataParallel's, torch.compile's, and that of a merged model of PEFT.
_WRAPPERS = re.compile(r"((module|_orig_mod|base_model\.model)\.)*")
_PEFT = re.compile(r"\.lora_|\.(base_layer|modules_to_save|original_module)\.")
MERGE_ADAPTERS = (
    "Merge them into their model: peft's merge_and_unload(), then save_pretrained(NEW)."
)
# Files of these kinds are never read: some run code, others need another library.
_PICKLE = "a pickle, and reading it runs the code in it"
_REFUSED = {
    **dict.fromkeys((".bin", ".pt", ".pth"), _PICKLE),
    ".h5": "in TensorFlow's HDF5 form",
    ".msgpack": "in Flax's form of it",
}


class SafetensorsFolder:
    """The arrays of a folder with `model.safetensors`, or with shards and their index.

    The single file counts where both are there, as in transformers. `shapes` is
    {name: shape}, without a prefix that a wrapper of PyTorch's gave all names.
    `converting` is the part of a message that explains how to make safetensors of
    another form. Raises a ValueError if a file is damaged, the index is wrong, the
    arrays are PEFT's, or NumPy lacks the type of an array.

    Attributes:
        files: list of str, the names of the files that were read.
    """

    def __init__(self, folder, converting):
        names = sorted(os.listdir(folder))
        if WEIGHTS in names:
            weight_map, shards = None, [WEIGHTS]
        elif _INDEX in names:
            weight_map = read_json(os.path.join(folder, _INDEX)).get("weight_map")
            if not isinstance(weight_map, dict) or any(
                type(shard) is not str for shard in weight_map.values()
            ):
                raise UserError(f"{_INDEX} has no weight_map from arrays to files.")
            shards = sorted(set(weight_map.values()))
        else:
            raise MissingFileError(_no_weights(folder, names, converting))
        self.files = shards if weight_map is None else [_INDEX, *shards]
        self._files, shapes = {}, {}
        for shard in shards:
            path = os.path.join(folder, shard)
            if os.path.basename(shard) != shard or shard not in names:
                raise MissingFileError(
                    f"{_INDEX} names the file {shard!r}, which {folder} lacks. All "
                    "files of the model are needed."
                )
            try:
                file = safe_open(path, framework="np")
            except (SafetensorError, OSError) as error:
                raise UserError(
                    f"{path} is not a safetensors file, or not all of it: {error}."
                ) from error
            for name in file.keys():
                part = file.get_slice(name)
                if part.get_dtype() not in _DTYPES:
                    raise UserError(
                        f"{name} in {path} has the type {part.get_dtype()}. Expected: "
                        "float32, float16 or bfloat16."
                    )
                if weight_map is not None and weight_map.get(name) != shard:
                    raise UserError(
                        f"{shard} has {name}, and {_INDEX} says that "
                        f"{weight_map.get(name, 'no file')!s} has it. Save the model "
                        "anew, or remove the file that is not its own."
                    )
                self._files[name] = file
                shapes[name] = tuple(part.get_shape())
        if weight_map is not None and weight_map.keys() != shapes.keys():
            wrong = sorted(weight_map.keys() - shapes.keys())
            raise UserError(f"The files that {_INDEX} names lack {shorten(wrong)}.")
        if parts := [name for name in shapes if _PEFT.search(name)]:
            raise UserError(
                f"{folder} has arrays of PEFT's adapters, such as {parts[0]}. "
                f"{MERGE_ADAPTERS}"
            )
        self._prefix = _prefix(shapes)
        self.shapes = {x.removeprefix(self._prefix): y for x, y in shapes.items()}

    def read(self, name):
        """Returns an array, in its own dtype."""
        name = self._prefix + name
        return self._files[name].get_tensor(name)


def _prefix(names):
    """The prefix that torch's wrappers gave all names of a model's arrays."""
    found = [re.match(_WRAPPERS, name)[0] for name in names]
    return found[0] if len({*found}) == 1 else ""


def read_file(path):
    """Returns {name: array} of one file, and its metadata."""
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            return arrays, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a safetensors file, or not all of it: {error}."
        ) from error


def write_safetensors(path, arrays, metadata=None):
    """Writes {name: array}; arrays must be contiguous, others would be written wrong.

    `metadata` is a dictionary of str, or None. The file also has this version of
    remixer_tf. Raises StorageError if it cannot be written.
    """
    # transformers reads no other format.
    metadata = {"format": "pt", "remixer_tf": __version__, **(metadata or {})}
    try:
        save_file(arrays, path, metadata)
    except SafetensorError as error:  # of the disk too
        raise StorageError(f"Cannot write {path}: {error}") from error


def read_json(path, optional=False):
    """Returns the dictionary in a JSON file; {} if an `optional` one is missing."""
    if optional and not os.path.exists(path):
        return {}
    return _read_json(path, dict, "object")


def read_json_list(path):
    """Returns the list in a JSON file."""
    return _read_json(path, list, "array")


def _read_json(path, kind, name):
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} must hold a JSON {name}. Received: {short(content)}")
    return content


def _no_weights(folder, names, converting):
    """The message for a folder without safetensors."""
    message = f"There is no {WEIGHTS} in {folder}."
    for name in names:
        if why := _REFUSED.get(os.path.splitext(name)[1]):
            return f"{message} It has {name}, which is {why}. {converting}"
    return f"{message} It holds: {shorten(names) or 'nothing'}."
