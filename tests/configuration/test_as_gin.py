"""A `Configuration` gives parts the values that gin itself gives them."""

import gin
import pytest

from remixer_tf import configuration
from remixer_tf.configuration import parts
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.configuration.values import Bound
from remixer_tf.errors import UserError

pytestmark = pytest.mark.usefixtures("clear_gin")
MODULE = "as_gin"


@gin.configurable(module=MODULE)
def helper(x=1):
    return x


@gin.register(module=MODULE)
def calls_helper(z=0):
    return helper(), gin.current_scope_str(), z


@gin.register(module=MODULE)
def star(a, *rest, k=1):
    return a, rest, k


@gin.register(module=MODULE)
def needs(x=gin.REQUIRED, y=2):
    return x, y


@gin.register(module=MODULE)
def same(value=None):
    return value


@gin.register(module=MODULE, denylist=["label"])
def listed(initial=1.0, label="none"):
    return initial, label


def flagged():
    pass


flagged.flag = "set"
gin.register(flagged, module=MODULE)
gin.external_configurable(max, "a_max", module=MODULE)


def ours(name, lines, *args, **kwargs):
    read = configuration.read([], lines, complete=False)
    put_into_gin(read)
    selector = parts.find(f"{MODULE}.{name}").selector
    return Bound(read, selector)(*args, **kwargs)


def theirs(name, lines, *args, **kwargs):
    gin.clear_config()
    gin.parse_config(lines)
    return gin.get_configurable(f"{MODULE}.{name}")(*args, **kwargs)


NAMED = [
    f"{MODULE}.helper.x = 3",
    f"a/{MODULE}.helper.x = 2",
    f"a/{MODULE}.calls_helper.z = 5",
]


@pytest.mark.parametrize(
    ("name", "lines", "args"),
    [
        ("star", [f"{MODULE}.star.k = 5"], (1, 2)),
        ("star", [f"{MODULE}.star.k = 5", f"{MODULE}.star.a = 4"], ()),
        ("needs", [f"{MODULE}.needs.x = 3"], ()),
        ("same", [*NAMED, f"{MODULE}.same.value = @a/calls_helper()"], ()),
        ("same", [*NAMED, f"{MODULE}.same.value = @a/b/calls_helper()"], ()),
        ("same", [*NAMED, f"{MODULE}.same.value = @calls_helper()"], ()),
        ("same", [*NAMED, "M = @calls_helper()", f"{MODULE}.same.value = %M"], ()),
        ("a_max", [], (2, 1)),
    ],
    ids=str,
)
def test_parts_get_what_gin_gives_them(name, lines, args):
    if name == "needs":
        found = ours(name, lines, x=gin.REQUIRED), ours(name, lines)
        expected = theirs(name, lines, x=gin.REQUIRED), theirs(name, lines)
    else:
        found, expected = ours(name, lines, *args), theirs(name, lines, *args)
    assert found == expected


def test_what_is_required_and_not_set_is_named():
    with pytest.raises(UserError, match="needs needs a value for 'x'"):
        ours("needs", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("@a/scope()", "a"), ("%M", "M"), ("[%M, @b/scope()]", ["M", "b"])],
)
def test_scopes_have_gins_names(text, expected):
    lines = ["M = @scope()"] * ("%M" in text) + [f"{MODULE}.same.value = {text}"]
    assert ours("same", lines) == expected


def test_a_reference_has_what_its_function_has():
    lines = [f"{MODULE}.same.value = @flagged"]
    assert ours("same", lines).flag == "set" and not hasattr(ours("same", lines), "no")


def test_lists_of_register_hold_for_texts():
    read = configuration.read([], [f"{MODULE}.listed.initial = 2.0"], complete=False)
    assert Bound(read, f"{MODULE}.listed")() == (2.0, "none")
    assert "label" not in read.text()
    put_into_gin(read)  # as the next command reads it
    with pytest.raises(UserError, match="listed.label cannot be set"):
        configuration.read([], [f"{MODULE}.listed.label = 'a'"], complete=False)


def test_what_is_asked_apart_is_not_in_the_text():
    read = configuration.read([], [], complete=False)
    Bound(read.apart(), f"{MODULE}.listed")()
    assert "listed" not in read.text()


def test_a_module_that_binds_values_is_refused(tmp_path, monkeypatch):
    (tmp_path / "binds.py").write_text(
        f"import gin\ngin.bind_parameter('{MODULE}.helper.x', 7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="'binds'.* sets values in gin"):
        configuration.read([], [], modules=["binds"])
