"""`remixer_tf.presets`, and what `import remixer_tf` costs."""

import pathlib
import subprocess
import sys

import pytest

import remixer_tf
from remixer_tf.errors import UserError
from remixer_tf.named_models import presets

# Of the papers: gMLP Table 5 and 1, Remixer Table 1, Switch's T5 sizes.
OF_PAPERS = {
    "gmlp_large_mlm": ("gmlp_mlm", "365M (gMLP Table 5)"),
    "gmlp_b": ("gmlp_vision", "73.4M"),
    "t5_1_1_base": ("t5_1_1", "248M (Remixer Table 1)"),
    "remixer_base": ("remixer", "324M (Table 1)"),
}


def test_all_have_a_family_a_count_and_a_sentence():
    for preset in presets():
        assert preset.family and preset.parameters > 1e5, preset
        assert preset.description.rstrip(")")[-1:] == ".", preset
        assert "Parameters" not in preset.description, preset


@pytest.mark.parametrize("name", OF_PAPERS)
def test_family_and_the_papers_count(name):
    (preset,) = presets(name)
    assert (preset.family, preset.paper) == OF_PAPERS[name]


def test_patterns_and_the_table():
    names = [preset.name for preset in presets("gmlp*")]
    assert "gmlp_base_mlm" in names and all(n.startswith("gmlp") for n in names)
    lines = repr(presets("t5_1_1_*l")).splitlines()
    assert lines[0].split() == ["preset", "family", "parameters", "paper"]
    assert lines[1].split()[:3] == ["t5_1_1_small", "t5_1_1", "77.0M"]


def test_unknown_names_have_the_nearest():
    with pytest.raises(UserError, match="Nearest: remixer_small, "):
        presets("remixr_smal")


def test_importing_imports_no_other_library():
    code = (
        "import sys; before = {*sys.modules}; import remixer_tf; "
        "print(*{m.split('.')[0] for m in {*sys.modules} - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    others = {*done.stdout.split()} - sys.stdlib_module_names
    # editdistance on Python 3.13, of `remixer_tf.edit_distance`
    assert others <= {"remixer_tf", "editdistance"}
    assert {"create", "load", "presets", "Adafactor"} <= {*dir(remixer_tf)}
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        remixer_tf.lod  # noqa: B018


def test_names_are_no_modules():
    """A module of the same name would take the function's place once imported."""
    root = pathlib.Path(remixer_tf.__file__).parent
    modules = {path.stem for path in root.iterdir()}
    assert not modules & {*remixer_tf._HOMES}
