"""One kind of error for what a user can mend."""

import ast
import pickle
import re

import gin
import pytest

from remixer_tf import errors
from tests.test_imports import modules

OTHER_KINDS = {
    "ExistingFileError": FileExistsError,
    "MissingFileError": FileNotFoundError,
    "MissingLibraryError": ImportError,
    "NotFiniteError": FloatingPointError,
    "StorageError": OSError,
}


@pytest.mark.parametrize(("name", "kind"), OTHER_KINDS.items())
def test_errors_of_other_kinds_are_users_errors(name, kind):
    error = getattr(errors, name)("There is no file 'a'.")
    assert isinstance(error, errors.UserError) and isinstance(error, kind)
    assert str(error) == "There is no file 'a'."


def test_gin_and_pickling_keep_errors_as_they_are():
    @gin.register
    def wrong_in_gin():
        raise errors.MissingFileError("There is no file 'a'.")

    @gin.register
    def caller_in_gin():
        gin.get_configurable("wrong_in_gin")()

    with pytest.raises(errors.MissingFileError) as caught:
        gin.get_configurable("caller_in_gin")()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert type(error) is errors.MissingFileError
        assert repr(error) == """MissingFileError("There is no file 'a'.")"""


def test_a_message_is_one_line():
    """A message may quote an error of a library."""
    assert str(errors.UserError("a.py is no module: \n  line 2\n")) == (
        "a.py is no module: line 2"
    )


def test_long_lists_are_cut():
    names = [f"{i:04}" for i in range(3000)]
    first = ", ".join(names[:5])
    assert errors.shorten(names) == f"{first}, and 2,995 more"
    assert errors.shorten(names[:5]) == first
    assert errors.shorten([]) == ""


def test_messages_are_those_of_users_errors():
    """A command shows the traceback of others."""
    plain = {"ValueError", *(kind.__name__ for kind in OTHER_KINDS.values())}
    found = [
        f"{module}, line {node.lineno}"
        for module, source in modules().items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if getattr(node.exc.func, "id", None) in plain and node.exc.args
    ]
    assert not found, "raise UserError, or another of remixer_tf.errors"


def test_choices_are_listed_with_the_nearest():
    errors.check_choices(("max", "min"), mode="max", other="min")
    errors.check_choices((None, "start"), trim=None)
    for value, received in (
        ("maximum", "mode='maximum'. Nearest: max."),
        (["max"], "mode=['max']."),
        (3, "mode=3."),
    ):
        message = re.escape(f"mode must be one of max, min. Received: {received}")
        with pytest.raises(errors.UserError, match=f"^{message}$"):
            errors.check_choices(("max", "min"), mode=value)
    with pytest.raises(errors.UserError) as caught:
        errors.check_choices(("max", "min"), mode="m" * 10_000)
    assert len(str(caught.value)) < 300
