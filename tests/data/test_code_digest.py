"""Checksums of code: what counts, and that versions of Python agree."""

import json
import pathlib
import runpy
import subprocess
import sys

import pytest

from remixer_tf.data import code_digest as module
from remixer_tf.data.code_digest import code_digest, has_source

SOURCE = '''
def decorated(*_):
    return lambda function: function

def plain(dataset, shift: int = 3) -> "a dataset":
    """Adds."""
    def inner(x):
        """Inner."""
        return x | {"n": shift + 1, **x}
    return dataset.map(inner)

@decorated(1,
           2)
def everything(x, *a, b=None, **k):
    t = [f"{y!r:>{b}.{b}} {y=} {{}}" "end" f"{y:{{}}}" u"u" for y in a if y in {"p"}]
    try:
        with open(x) as f, open(x):
            yield from f
    except* ValueError as e:
        raise
    match x:
        case {"a": [1, *_], **rest}: return b"x\\xff", 1e400, 3j, ..., rest
        case str() | None: pass
    async def nested():
        async for i in x: await i
    while (z := x): z @= 1; del z
    return super().x, [*a], x[1:2, ...], lambda: 1, 10**20, -0.0, t

one, two = (lambda x: x + 1), (lambda x: x + 2)
three = (lambda x:
         x + 3)

class Own:
    """Own."""
    def __call__(self, x): return super().__init__(), __class__, {i for i in x}

FUNCTIONS = [plain, everything, one, two, three, Own.__call__]
'''
# As of Python 3.11.7, 3.12.1 and 3.13.0.
DIGESTS = [
    "506c65c268a3faab",
    "b2df3ca59fb691cd",
    "f88939beea08a4d0",
    "ad7ba938fd9d6a77",
    "815aef835ceae346",
    "25591caff9cee7a0",
]
RUN = """
import json, runpy, sys
digest = runpy.run_path(sys.argv[1])["code_digest"]
print(json.dumps([*map(digest, runpy.run_path(sys.argv[2])["FUNCTIONS"])]))
"""
OTHERS = sorted(pathlib.Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python"))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    return path


def test_this_python(path):
    functions = runpy.run_path(str(path))["FUNCTIONS"]
    assert [*map(code_digest, functions)] == DIGESTS


@pytest.mark.parametrize("python", OTHERS, ids=lambda path: path.parts[-3])
def test_another_python(path, python):
    command = [python, "-c", RUN, module.__file__, path]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == DIGESTS


def test_comments_and_docstrings_do_not_count_and_operators_do(path):
    def digests(source):
        path.write_text(source)
        return [*map(code_digest, runpy.run_path(str(path))["FUNCTIONS"])]

    for old, new in (
        ('"""Adds."""', "'''Sums up.'''  # a comment"),
        ('"""Inner."""', ""),
        (": int", ": float"),
        ("\ndef plain", "\n\n\n@decorated(3)\ndef plain"),
    ):
        assert SOURCE.count(old) == 1
        assert digests(SOURCE.replace(old, new)) == DIGESTS
    for place, old, new in (
        (0, "shift + 1", "shift - 1"),
        (0, "shift + 1", "shift + 2"),
        (3, "x: x + 2", "x: x + 3"),  # the second lambda of a line
    ):
        found = digests(SOURCE.replace(old, new))
        assert [a == b for a, b in zip(found, DIGESTS, strict=True)] == [
            number != place for number in range(len(DIGESTS))
        ]


def test_without_source_the_version_is_said():
    function = eval("lambda x: x in {'a', 'b'}")
    assert not has_source(function)
    version = ".".join(map(str, sys.version_info[:2]))
    assert code_digest(function).endswith(f" (Python {version})")


def test_a_file_is_parsed_once(path, monkeypatch):
    """A file of 3,000 lines takes a second."""
    functions = runpy.run_path(str(path))["FUNCTIONS"]
    module._functions.cache_clear()
    parsed, parse = [], module.ast.parse
    monkeypatch.setattr(module.ast, "parse", lambda x: parsed.append(x) or parse(x))
    assert [*map(code_digest, functions)] == DIGESTS
    assert len(parsed) == 1
