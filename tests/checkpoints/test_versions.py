"""A run says which version wrote it, and one of a newer version is refused."""

import pathlib
import shutil

import gin
import pytest

import remixer_tf
from remixer_tf import configuration
from remixer_tf.analysis.benchmark_report import write_report
from remixer_tf.analysis.comparison import read_run
from remixer_tf.checkpoints import versions
from remixer_tf.checkpoints.initial import InitialCheckpoint
from remixer_tf.checkpoints.reading import check_coverage
from remixer_tf.checkpoints.versions import check_run_version, check_version
from remixer_tf.errors import UserError
from remixer_tf.weights.model_folder import read_model_folder

OLD_RUNS = pathlib.Path(__file__).parents[1] / "testdata" / "old_runs"


def test_no_way_leads_around_a_newer_version(tmp_path, clear_gin):
    shutil.unpack_archive(OLD_RUNS / "9844387.tar.xz", tmp_path)
    folder = tmp_path / "words"
    path = folder / "operative_config.gin"
    path.write_text("# Written by remixer_tf 10.0.\nNew.setting = 1\n")
    for read in (
        lambda: remixer_tf.load(folder),
        lambda: configuration.read([str(path)], []),  # --gin_file
        lambda: InitialCheckpoint(str(folder)),
        lambda: InitialCheckpoint(str(folder / "checkpoints" / "2")),
        lambda: InitialCheckpoint(f"{folder}/checkpoints/2/"),
        lambda: read_model_folder(str(folder)),
        lambda: read_run(str(folder), None),  # compare, sweep
        lambda: write_report(str(folder)),
    ):
        with pytest.raises(UserError, match="was written by remixer_tf 10.0, and"):
            read()


def test_a_configuration_says_its_version_first(tmp_path, clear_gin):
    settings = configuration.read(["models/t5_1_1_tiny.gin"], [], complete=False)
    text = settings.text()
    version = remixer_tf.__version__
    assert text.splitlines()[0] == f"# Written by remixer_tf {version}."
    path = tmp_path / "operative_config.gin"
    path.write_text(text)
    check_run_version(str(tmp_path))
    path.write_text(text.replace(version, "0.10.0", 1))
    with pytest.raises(UserError, match=f"by remixer_tf 0.10.0, and this is {version}"):
        remixer_tf.load(str(tmp_path))
    path.write_text("# Another comment.\n")  # as those before had it
    check_run_version(str(tmp_path))
    gin.clear_config()


# PEP 440's own order.
ORDER = [
    "0.0.9",
    "0.1.0.post1",
    "0.2.0.dev1",
    "0.2.0a1",
    "0.2.0rc1",
    "0.2.0",
    "0.2.0.post1",
    "0.2.1.dev0",
    "0.10.0",
]


@pytest.mark.parametrize("this", ["0.1.0.post1", "0.2.0rc1", "0.2.0"])
def test_this_and_older_versions_are_read(this, monkeypatch):
    monkeypatch.setattr(versions, "__version__", this)
    number = ORDER.index(this)
    for version in [None, *ORDER[: number + 1], f"{this}+cu12"]:
        check_version(version, "RUN")
    for version in ORDER[number + 1 :]:
        with pytest.raises(UserError, match=f"^RUN was .* {version}, and this is "):
            check_version(version, "RUN")


@pytest.mark.parametrize("version", ["banana", "", 2])
def test_what_is_no_version_is_named(version):
    with pytest.raises(UserError, match=f"^CACHE says .* {version!r} .* no version"):
        check_version(version, "CACHE")


def test_what_this_version_lacks_is_said_to_be_of_an_earlier_one(tmp_path, clear_gin):
    path = tmp_path / "operative_config.gin"
    for header, old in [("", True), ("# Written by remixer_tf 0.0.1.\n", False)]:
        path.write_text(f"{header}RemixerBlock.gone = 1\n")
        with pytest.raises(UserError, match="no parameter 'gone'") as error:
            configuration.read([str(path)], [])
        assert ("Such runs are read from 2026-11-22 on" in str(error.value)) == old
    shutil.unpack_archive(OLD_RUNS / "9844387.tar.xz", tmp_path)
    folder = str(tmp_path / "words/checkpoints/2")
    with pytest.raises(UserError, match="model variables .* from 2026-11-22 on"):
        check_coverage(folder, {"model": {}})
