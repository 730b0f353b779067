"""A model as a folder to publish: safetensors, configuration, card, checksums.

`model.safetensors` has the variables by their paths without the model's name.
`operative_config.gin` is the run's configuration. `vocabularies.json` and
`vocabularies/` are its vocabularies, `README.md` is the model card. `MANIFEST.sha256`
has the checksums of these files, for `sha256sum -c`.
"""

import hashlib
import math
import os
import re

import numpy as np

from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.checkpoints.vocabularies import name_copies, remember_vocabularies
from remixer_tf.checkpoints.whole_folder import check_absent, whole_folder
from remixer_tf.errors import (
    MissingFileError,
    StorageError,
    UserError,
    printable,
    shorten,
)
from remixer_tf.evaluation.results import with_unit
from remixer_tf.tables import markdown
from remixer_tf.weights.names import same
from remixer_tf.weights.safetensors_files import (
    WEIGHTS,
    SafetensorsFolder,
    write_safetensors,
)
from remixer_tf.weights.source import (
    Source,
    exported_variables,
    merged_arrays,
    model_variables,
)

MANIFEST = "MANIFEST.sha256"
_GIN = "operative_config.gin"


def is_model_folder(path):
    """Whether `write_model_folder` wrote the folder."""
    return all(os.path.exists(os.path.join(path, name)) for name in (WEIGHTS, _GIN))


def write_model_folder(model, folder, configuration, vocabularies, card):
    """Writes a model of any architecture as a folder that `remixer_tf.load` reads.

    The folder must not be there, and appears whole or not at all. `configuration` is
    the gin text of the run, `vocabularies` what `describe_vocabularies` returns, {} for
    a model of images. `card` is the text of README.md, see `model_card`.
    """
    check_absent(folder)
    arrays = {k: np.ascontiguousarray(x) for k, x in merged_arrays(model).items()}
    with whole_folder(folder) as place:
        write_safetensors(os.path.join(place, WEIGHTS), arrays)
        if vocabularies:
            remember_vocabularies(place, vocabularies)
        texts = {
            _GIN: name_copies(configuration, place),
            "README.md": card,
        }
        for name, text in texts.items():
            with open(os.path.join(place, name), "w", encoding="utf-8") as file:
                file.write(text)
        lines = [f"{_sha256(place, name)}  {name}\n" for name in _files(place)]
        with open(os.path.join(place, MANIFEST), "w", encoding="utf-8") as file:
            file.writelines(lines)


def check_manifest(folder, weights=True):
    """Compares the checksums of the files in a folder of `write_model_folder`.

    `weights` says whether the weights' file is compared too, which takes longest.
    Raises a ValueError if a file differs, the manifest is damaged or leaves one out, or
    a newer version wrote the folder.
    """
    check_run_version(folder)
    path = os.path.join(folder, MANIFEST)
    if not os.path.exists(path):
        raise MissingFileError(f"There is no {path}, which has the files' checksums.")
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().removesuffix("\n").split("\n")
    found = [re.fullmatch("([0-9a-f]{64})  (.+)", line) for line in lines]
    if not all(found):
        raise UserError(
            f"{path} is damaged. Expected in each line: a SHA-256, two spaces, and the "
            "name of a file."
        )
    sums = {match[2]: match[1] for match in found}
    there = set(_files(folder))
    required = {WEIGHTS, _GIN}
    required |= {x for x in there if x.startswith("vocabularies")}
    if unlisted := sorted(required - sums.keys()):
        raise UserError(f"{path} does not list {shorten(unlisted)}.")
    for name, expected in sums.items():
        if name not in there:
            raise MissingFileError(
                f"{folder} lacks {name}, which {MANIFEST} lists. Copy the folder again."
            )
        if (weights or name != WEIGHTS) and _sha256(folder, name) != expected:
            raise UserError(
                f"{os.path.join(folder, name)} is not the file that was exported: its "
                f"SHA-256 differs from that in {MANIFEST}. Copy the folder again."
            )


def read_model_folder(folder):
    """Reads a folder of `write_model_folder` as a `Source`, see `check_manifest`."""
    check_manifest(folder)
    files = SafetensorsFolder(folder, "")
    return Source(
        "model of its operative_config.gin",
        (os.path.abspath(os.path.join(folder, _GIN)),),
        {},
        ((r"(.+)", r"\1", same),),
        files.shapes,
        files.read,
        run=None,
    )


def _files(folder):
    """Names of the files that a manifest lists."""
    names = [
        os.path.relpath(os.path.join(place, name), folder)
        for place in (folder, os.path.join(folder, "vocabularies"))
        if os.path.isdir(place)
        for name in os.listdir(place)
        if os.path.isfile(os.path.join(place, name))
    ]
    return sorted(name for name in names if name != MANIFEST)


def _sha256(folder, name):
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error}.") from error


def model_card(model, run, step, vocabularies, metrics):
    """Returns the text of a model card, Markdown, of a built model and its `Run`.

    `metrics` is {"TASK/SPLIT/METRIC": value} at that step. For `vocabularies` see
    `write_model_folder`.
    """
    layers = {}
    for path in model_variables(model):
        if match := re.search(r"(\w+)/layer_\d+_(\w+)/", path):
            layers.setdefault(match[1], {})[match[2]] = None
    # LoRA's adapters are merged into the file's weights.
    size = sum(math.prod(v.shape) for v in exported_variables(model).values())
    rows = {
        "model": f"{type(model).__name__}, {size:,} parameters",
        **{stack: ", ".join(names) for stack, names in layers.items()},
        "precision": f"weights float32, computed in {run.dtype_policy}",
        "step": f"{step:,}",
    }
    if run.task is not None:
        lengths = ", ".join(f"{k} {n}" for k, n in run.feature_lengths.items())
        rows |= {"data": f"task {run.get_task().name}", "lengths in tokens": lengths}
    else:
        rows["data"] = "images, `image_dataset` in operative_config.gin"
    rows |= {
        f"vocabulary of {name}": f"{v['kind']}, {v['size']:,} ids, {v['extra_ids']} of "
        "them extra ids"
        for name, v in vocabularies.items()
    }
    values = {
        with_unit(name, value): f"{value:.6g}"
        for name, value in metrics.items()
        if not isinstance(value, str)
    }
    results = _table(("metric", "value"), values)
    return f"""---
library_name: remixer_tf
---

# {printable(model.name)} at step {step:,}

{_table(("", ""), rows)}
## Use

```python
import remixer_tf as rt

run = rt.load("FOLDER")  # this folder
```

## Training

`operative_config.gin` holds every setting, the data's included. This command trains the
model again:

```sh
remixer_tf train --model_dir=RUN --gin_file=operative_config.gin
```

## Metrics

{results if values else "The run has no evaluation of this step."}

## Checksums

```sh
sha256sum -c {MANIFEST}
```
"""


def _table(head, rows):
    texts = [[printable(str(cell)) for cell in row] for row in rows.items()]
    return markdown(head, texts) + "\n"
