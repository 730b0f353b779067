"""The named models, read from the heads of their gin files."""

import fnmatch
import functools
import os
import re
from typing import NamedTuple

from gin.config_parser import IncludeStatement

from remixer_tf.configuration.bindings import gin_folder, read_statements
from remixer_tf.errors import UserError, nearest
from remixer_tf.tables import aligned

_OURS = re.compile(r"Parameters:(?:[^\n]*?ours)? ([\d.]+)M")
_PAPER = re.compile(r"Parameters: paper (\S+M(?: \([^)]*\))?)")


class Preset(NamedTuple):
    """A named model.

    Attributes:
        name: str, for `create`; models/NAME.gin for --gin_file.
        family: str, its architecture, the file gin/architectures/FAMILY.gin.
        parameters: int, rounded as in the head of its file.
        paper: str, the parameters that its paper prints, such as "224M (Table 1)"; ""
            if no paper has the model.
        description: str, a sentence.
    """

    name: str
    family: str
    parameters: int
    paper: str
    description: str


class Presets(tuple[Preset, ...]):
    """`Preset`s, printed as a table."""

    def __repr__(self):
        rows = [("preset", "family", "parameters", "paper")]
        for p in self:
            rows.append((p.name, p.family, f"{p.parameters / 1e6:,.1f}M", p.paper))
        return "\n".join(aligned(rows))


def presets(pattern: str = "*") -> Presets:
    """Returns the named models.

    Args:
        pattern: str, a name with `*` for any letters: "gmlp*".

    Returns:
        `Presets`, a tuple of `Preset`s in the order of their names.

    Raises:
        ValueError: no name matches. The message has the nearest.

    Examples:
        >>> import remixer_tf as rt
        >>> [preset.name for preset in rt.presets("remixer_s*")]
        ['remixer_sbase', 'remixer_sbase_literal', 'remixer_sbase_table1', \
'remixer_small']
        >>> rt.presets("remixer_small")[0].parameters
        81160000
    """
    return Presets(map(read_preset, find_presets(pattern)))


def find_presets(pattern, match=fnmatch.fnmatchcase, how="remixer_tf.presets()"):
    """Returns the names, at least one, that fit a pattern by `match(name, pattern)`.

    `how` is the code or command that lists all.
    """
    if not isinstance(pattern, str):
        raise UserError(
            "The name of a preset is a str, such as 'remixer_small'. Received: "
            f"{pattern!r:.200}"
        )
    names = preset_names()
    found = [name for name in names if match(name, pattern)]
    if not found:
        raise UserError(
            f"there is no preset {pattern!r}.{nearest(pattern, names)} {how} lists all."
        )
    return found


def preset_names():
    """Returns the names of all presets, a list of str."""
    files = os.listdir(os.path.join(gin_folder(), "models"))
    return sorted(f.removesuffix(".gin") for f in files if f.endswith(".gin"))


@functools.cache
def read_preset(name):
    """Returns the `Preset` of a name, from the head of its gin file."""
    path = os.path.join(gin_folder(), "models", f"{name}.gin")
    with open(path) as file:
        lines = file.read().splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")]
    head = "\n".join(line.removeprefix("#").strip() for line in head)
    text = " ".join(head.partition("\nParameters:")[0].split())
    parameters = round(float(_OURS.search(head)[1]) * 1e6)
    paper = _PAPER.search(head)
    return Preset(name, _family(path), parameters, paper[1] if paper else "", text)


def _family(path):
    """Returns the last architecture that a file includes, else that of its model."""
    statements = read_statements(path)
    included = [s.filename for s in statements if isinstance(s, IncludeStatement)]
    for file in reversed(included):
        if file.startswith("architectures/"):
            return os.path.basename(file).removesuffix(".gin")
    models = (os.path.join(gin_folder(), f) for f in included if "sizes" not in f)
    return next(map(_family, models), "")
