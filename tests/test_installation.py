"""One package is installed behind each name, in the versions that setup.py asks.

`pip install t5` with its dependencies brings tfds-nightly and seqio-nightly, which
overwrite tensorflow-datasets and seqio; `make install` repairs that.
"""

import argparse
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from importlib import metadata

import gin
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import remixer_tf
from remixer_tf import edit_distance
from remixer_tf.__main__ import main
from remixer_tf.commands import COMMANDS, load_command

ROOT = pathlib.Path(__file__).parent.parent
INSTALL_T5 = "pip install --no-deps t5==0.9.4"


@pytest.mark.parametrize(
    "module, distribution",
    [
        ("tensorflow_datasets", "tensorflow-datasets"),
        ("seqio", "seqio"),
        ("t5", "t5"),
        ("gin", "gin-config"),
    ],
)
def test_one_distribution_provides(module, distribution):
    names = set(metadata.packages_distributions().get(module, ()))
    providers = {name: metadata.version(name) for name in names}
    assert list(providers) == [distribution], (
        f"`import {module}` must come from {distribution} alone; it comes from "
        f"{providers or 'nowhere'}. Run `make install`, or without make "
        f"`pip uninstall tfds-nightly seqio-nightly`, `pip install --force-reinstall "
        f"--no-deps tensorflow-datasets seqio==0.0.20` and `{INSTALL_T5}`."
    )


def test_versions_are_those_declared():
    requirements = map(Requirement, metadata.requires("remixer_tf"))
    wrong = [
        f"{requirement} is asked for, {metadata.version(requirement.name)} is installed"
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if metadata.version(requirement.name) not in requirement.specifier
    ]
    assert not wrong
    assert metadata.version("t5") == "0.9.4", INSTALL_T5
    assert metadata.version("seqio") == "0.0.20"


def test_protobuf_is_as_new_as_what_generated_the_libraries():
    """They refuse an older one when they are imported, and their metadata do not."""
    (declared,) = re.findall(r'"protobuf>=([\d.]+)"', (ROOT / "setup.py").read_text())
    generated = {"0"}
    for library in ("sentencepiece", "tensorboard", "tensorflow_metadata"):
        place = pathlib.Path(importlib.util.find_spec(library).origin).parent
        for path in place.rglob("*_pb2.py"):
            version = r"Protobuf Python Version: ([\d.]+)"
            generated |= {*re.findall(version, path.read_text())}
    assert Version(declared) >= max(map(Version, generated))


def test_a_folder_that_has_the_packages_name(tmp_path):
    """In the folder above a clone, Python takes the clone for the package."""
    (tmp_path / "remixer_tf").mkdir()
    code = f"import runpy; runpy.run_path({str(ROOT / 'remixer_tf/__main__.py')!r})"
    command = [sys.executable, "-S", "-c", code]  # -S: without what is installed
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: Python takes the folder {tmp_path}/remixer_tf for")


def test_tensorflow_and_tensorflow_text_match():
    minor = {
        metadata.version(name).rsplit(".", 1)[0]
        for name in ("tensorflow", "tensorflow-text")
    }
    assert len(minor) == 1, minor


def test_version_of_the_package():
    assert remixer_tf.__version__ == metadata.version("remixer_tf")


def modules_after(statements):
    """Names of the modules loaded by a fresh Python that runs `statements`."""
    code = f"import sys\nknown = set(sys.modules)\n{statements}\n"
    code += "print(*sorted(set(sys.modules) - known))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_no_other_library():
    found = modules_after("import remixer_tf") - sys.stdlib_module_names
    # The second and third where the library editdistance is missing (Python 3.13).
    stands_in = {"remixer_tf.edit_distance", "editdistance"}
    assert found - stands_in == {"remixer_tf", "remixer_tf.programs"}


def test_a_second_checkout_uses_its_own_tasks_and_gin_files(tmp_path):
    """One environment has only one checkout installed."""
    for folder in ("remixer_tf", "tasks", "gin"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "tasks" / "__init__.py").write_text('REGISTERED = ["anothers"]')
    (tmp_path / "gin" / "models" / "anothers_tiny.gin").write_text("")
    asked = """import remixer_tf.tasks
from remixer_tf.named_models import preset_names
print(remixer_tf.tasks.REGISTERED, "anothers_tiny" in preset_names())
"""
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "['anothers'] True\n", done.stderr


def test_edit_distance():
    # Levenshtein's own example has 3: k/s, e/i and a g.
    assert edit_distance.distance("kitten", "sitting") == 3
    assert edit_distance.eval("", "abc") == 3


def versions(file):
    """`{name: version}` of a file of requirements."""
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in lines}


def test_the_lock_has_the_versions_of_the_constraints():
    constraints, lock = versions("constraints.txt"), versions("requirements.lock")
    different = {
        name: (lock[name], version)
        for name, version in constraints.items()
        if lock.get(name, version) != version
    }
    assert not different, "run .ci/lock.sh"
    for name in ("tensorflow", "keras", "seqio", "t5", "pytest", "rapidfuzz"):
        assert name in lock


def test_t5_imports_without_mesh_tensorflow():
    with gin.unlock_config():  # A command that ran before in this process locked it.
        importlib.import_module("t5.data.mixtures")
        importlib.import_module("t5.evaluation.metrics")
    assert {"t5.data.tasks", "seqio", "tensorflow_datasets"} <= set(sys.modules)
    assert not {"mesh_tensorflow", "transformers"} & set(sys.modules)


@pytest.mark.parametrize("arguments", [["--help"], ["train_vocabulary", "--help"]])
def test_the_command_without_tensorflow(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "remixer_tf", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "train_vocabulary" in done.stdout
    assert "keras" not in done.stderr and "tensorflow" not in done.stderr
    assert "numpy" not in done.stderr


def test_all_commands_are_listed():
    folder = pathlib.Path(remixer_tf.__file__).parent / "commands"
    assert {*COMMANDS, "__init__"} == {path.stem for path in folder.glob("*.py")}
    for name in COMMANDS:
        command = load_command(name)
        assert command.__doc__.count("\n\n") == 1 and len(command.__doc__) > 50
        assert callable(command.add_arguments) and callable(command.run)


def test_one_line_for_a_command_that_is_not_there(capsys, monkeypatch):
    for name, words in [
        ("inspect", "there is no command 'inspect': it is 'data_report' now."),
        ("profile", "it is 'costs' now."),
        ("trian", "Nearest: train. There are: train, sweep, eval, "),
    ]:
        monkeypatch.setattr("sys.argv", ["remixer_tf", name])
        with pytest.raises(SystemExit) as exit_:
            main()
        (line,) = capsys.readouterr().err.splitlines()
        assert exit_.value.code == 2 and words in line


def test_commands_that_read_a_configuration_have_the_same_first_options():
    without = {"compare", "presets", "quickstart", "report", "serve", "tasks"}
    for name in set(COMMANDS) - without:
        parser = argparse.ArgumentParser()
        load_command(name).add_arguments(parser)
        first = [action.option_strings[0] for action in parser._actions[1:6]]
        assert first == [
            "--model_dir",
            "--gin_file",
            "--gin.NAME=VALUE",
            "--gin_search_paths",
            "--module_import",
        ], name


def test_an_unknown_option_is_named_before_what_is_required(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["remixer_tf", "train", "--modeldir=x"])
    with pytest.raises(SystemExit):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown argument '--modeldir=x'" in line and "--model_dir" in line


def test_a_reader_that_stops_early_sees_no_traceback():
    command = f"{sys.executable} -m remixer_tf | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and done.stdout in ("0\n", "141\n")
