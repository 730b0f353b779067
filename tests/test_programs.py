"""What XLA compiles is kept for the next process, whole and by its owner alone."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from remixer_tf import programs

PROGRAM = """
import remixer_tf
import tensorflow as tf
from remixer_tf import programs
tf.config.list_physical_devices()
programs.find()
for sign in (1, -1):
    compiled = tf.function(lambda x: tf.sin(x) + sign * x, jit_compile=True)
    print(float(compiled(tf.ones([]))))
"""


def start(store, name="a", content=b"text"):
    """A process that compiles a program; returns what it had before."""
    with tempfile.TemporaryDirectory() as place:
        programs._link(str(store), place)
        found = {x.name: x.read_bytes() for x in pathlib.Path(place).iterdir()}
        if name not in found:
            pathlib.Path(place, name).write_bytes(content)
        programs._join(os.getpid(), str(store), place)
    return found


def test_the_next_process_has_what_one_compiled(tmp_path):
    assert start(tmp_path) == {}
    assert start(tmp_path, "b", b"more") == {"a": b"text"}
    assert start(tmp_path) == {"a": b"text", "b": b"more"}


@pytest.mark.parametrize("damage", [b"", b"tex", b"texT", b"text\0" * 1000])
def test_a_damaged_program_is_compiled_again(tmp_path, damage):
    start(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert start(tmp_path, content=b"anew") == {}
    assert start(tmp_path) == {"a": b"anew"}


def test_a_file_that_was_not_whole_is_removed(tmp_path):
    (tmp_path / "new.123").write_bytes(b"te")
    assert start(tmp_path) == {}
    assert start(tmp_path) == {"a": b"text"}


def test_two_processes_may_compile_the_same_program(tmp_path):
    """Not to the same bytes. One of both is read, and the folder serves all others."""
    store, places = tmp_path / "store", [tmp_path / "one", tmp_path / "two"]
    for folder in (store, *places):
        folder.mkdir()
    for place in places:
        (place / "a").write_text(place.name)
        programs._join(os.getpid(), str(store), str(place))
    assert len([*store.iterdir()]) == 2
    assert start(store, "b", b"more")["a"] in (b"one", b"two")
    assert sorted(start(store)) == ["a", "b"] and len([*store.iterdir()]) == 2


def test_another_process_may_remove_a_program_first(tmp_path, monkeypatch):
    start(tmp_path)
    digest = programs._digest

    def removed(path):
        os.remove(path)
        return digest(path)

    with monkeypatch.context() as patched:
        patched.setattr(programs, "_digest", removed)
        programs._link(str(tmp_path), str(tmp_path))
    assert start(tmp_path, content=b"anew") == {}


def test_the_oldest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_MOST_BYTES", 10)
    for age, name in enumerate("abc"):
        start(tmp_path, name)
        (path,) = tmp_path.glob(f"{name}.*")
        os.utime(path, (age, age))
    assert sorted(start(tmp_path, "c")) == ["b", "c"]


@pytest.fixture
def find(tmp_path, monkeypatch):
    """Calls `find` for a store, as in a new process."""
    monkeypatch.setattr(programs, "_place", str(tmp_path / "place"))
    (tmp_path / "place").mkdir()

    def find(store):
        programs.find.cache_clear()
        monkeypatch.setenv(programs.VARIABLE, str(store))
        return programs.find()

    yield find
    programs.find.cache_clear()


def test_it_can_be_switched_off(find, capsys):
    assert find("") is None and not capsys.readouterr().err


@pytest.mark.slower
def test_tensorflow_is_told_before_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for imports, told in [
        ("import remixer_tf", True),
        ("import remixer_tf, tensorflow", True),
        ("import tensorflow, remixer_tf", False),
    ]:
        code = f"{imports}, os; print(os.environ.get('TF_XLA_FLAGS', ''))"
        environment = {k: v for k, v in os.environ.items() if k != programs.VARIABLE}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert (str(tmp_path) in done.stdout) == told
        assert not [*tmp_path.iterdir()]  # It is removed at the end.


def test_children_have_a_folder_of_their_own(find, tmp_path, monkeypatch):
    own = "--tf_xla_auto_jit=2"
    monkeypatch.setattr(programs, "_place", None)
    monkeypatch.setattr(programs.atexit, "register", lambda *given: None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv("TF_XLA_FLAGS", own)
    places = []
    for _ in range(2):  # The second inherits what the first has set.
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "tensorflow", raising=False)
            programs.make_place()
        places.append(programs._place)
        assert os.environ["TF_XLA_FLAGS"].startswith(own)
        assert os.environ["TF_XLA_FLAGS"].count(programs._PLACE) == 1
        assert places[-1] in os.environ["TF_XLA_FLAGS"]
    assert places[0] != places[1]
    find(tmp_path / "store")  # TensorFlow has read it.
    assert os.environ["TF_XLA_FLAGS"] == own


def test_folders_of_killed_processes_go_a_day_later(find, tmp_path):
    """A process has locked its own, until it ends."""
    killed, lives, new = (f"{programs._PLACE}{i}" for i in range(3))
    for name in (killed, lives, new, "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(tmp_path / "another")
    for name in (killed, lives, "another"):
        os.utime(tmp_path / name, (1, 1))
    descriptor = programs.lock(tmp_path / lives)
    find(tmp_path / "store")
    others = {"another", "place", "store", new}
    assert {path.name for path in tmp_path.iterdir()} == {lives, *others}
    os.close(descriptor)
    programs.remove_abandoned(tmp_path, programs._PLACE)
    assert {path.name for path in tmp_path.iterdir()} == others
    assert (tmp_path / "another" / "link").is_symlink()


def test_a_folder_that_may_not_be_listed_stops_nothing(monkeypatch, tmp_path):
    """As /tmp of mode 1733: only names that are known can be opened there."""
    store, place = tmp_path / "store", tmp_path / "place"
    for folder in (store, place):
        folder.mkdir()
    (store / "a").write_bytes(b"text")
    listed = os.scandir

    def scandir(path="."):
        if str(path) == str(tmp_path):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(programs, "_place", str(place))
    monkeypatch.setattr(programs, "_store", lambda engine: str(store))
    monkeypatch.setattr(programs, "_forget_place", lambda: None)
    monkeypatch.setattr(programs.atexit, "register", lambda *_: None)
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
    assert programs.find.__wrapped__() == str(store)


@pytest.mark.parametrize("kind", ["file", "others may write", "of another user"])
def test_a_folder_that_cannot_be_used_is_one_line(
    tmp_path, find, monkeypatch, capsys, kind
):
    store = tmp_path / "store"
    if kind == "file":
        store.write_text("")
    else:
        store.mkdir()
        store.chmod(0o777 if kind == "others may write" else 0o700)
        if kind == "of another user":
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert find(store) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert str(store) in line and programs.VARIABLE in line


def test_a_full_disk_is_one_line_and_has_no_half_file(tmp_path, monkeypatch, capsys):
    def write_half(source, path):
        pathlib.Path(path).write_bytes(pathlib.Path(source).read_bytes()[:2])
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr("shutil.copyfile", write_half)
    assert start(tmp_path) == {} and not [*tmp_path.iterdir()]
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left" in line and programs.VARIABLE in line


def test_a_file_of_flags_stays_what_tensorflow_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_place", None)
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
    monkeypatch.setenv("TF_XLA_FLAGS", "/flags.txt")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "tensorflow", raising=False)
        programs.make_place()
    assert os.environ["TF_XLA_FLAGS"] == "/flags.txt" and programs._place is None


@pytest.mark.slow
def test_processes_share_programs_and_survive_damage(tmp_path):
    """The second process reads one of two programs, and compiles the other anew.

    The store is a relative path, and temporary folders have a name to be quoted.
    """
    store, places = tmp_path / "store", tmp_path / """a b"c'd\\"""
    places.mkdir()
    values, files = set(), []
    for _ in range(2):
        for path in files[:1]:
            path.write_bytes(path.read_bytes()[:100])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, programs.VARIABLE: "store", "TMPDIR": str(places)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        values.add(done.stdout)
        assert not [*places.iterdir()]
        assert {*tmp_path.iterdir()} == {store, places}
        before = {path: path.stat().st_mtime_ns for path in files[1:]}
        files = sorted(store.rglob("*XLA*"))
        assert len(files) == 2
        assert before.items() <= {p: p.stat().st_mtime_ns for p in files}.items()
        assert files[0].parent.stat().st_mode & 0o077 == 0
    assert len(values) == 1


def start_on_jax(folder, name="a-cache", content=b"text"):
    """A process that compiles a program of JAX, unless there is one; what it had."""
    found = {pathlib.Path(x).name for x in programs._whole_programs(str(folder))}
    before = {str(folder / x) for x in found}
    if name not in found:
        (folder / name).write_bytes(content)
    programs._note_digests(os.getpid(), str(folder), before)
    return found


@pytest.mark.parametrize("damage", [b"", b"tex", b"texT"])
def test_a_damaged_program_of_jax_is_compiled_once(tmp_path, damage):
    assert start_on_jax(tmp_path) == set()
    assert start_on_jax(tmp_path) == {"a-cache"}
    (tmp_path / "a-cache").write_bytes(damage)
    assert start_on_jax(tmp_path) == set()
    assert start_on_jax(tmp_path, "b-cache") == {"a-cache"}
    (tmp_path / "a-cache").unlink()  # JAX does so where there are too many.
    assert start_on_jax(tmp_path, "b-cache") == {"b-cache"}
    assert {x.name for x in tmp_path.iterdir()} == {"b-cache", "b-cache.sha256"}


def test_what_a_killed_process_made_for_jax_goes_a_day_later(tmp_path):
    (tmp_path / "a-cache").write_bytes(b"tex")
    assert start_on_jax(tmp_path, "b-cache") == {"a-cache"}
    os.utime(tmp_path / "a-cache", (0, 0))
    assert start_on_jax(tmp_path, "b-cache") == {"b-cache"}
