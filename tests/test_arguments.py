"""`checked` reads the types of a signature, and checks the arguments of each call."""

import dataclasses
import inspect
from typing import Annotated

import gin
import numpy as np
import pytest

from remixer_tf.arguments import (
    Factory,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Rate,
    check_fields,
    checked,
    integer,
    one_of,
)
from remixer_tf.errors import UserError
from remixer_tf.layers import SelfAttention
from remixer_tf.models import Lora
from remixer_tf.objectives.objective import Objective
from remixer_tf.training.settings import Checkpointing


@checked
def declared(
    size: PositiveInt,
    start: NonNegativeInt = 0,
    two: Annotated[int, integer(2)] = 2,
    weight: Number = 0,
    jitter: NonNegativeFloat = 0,
    step: PositiveFloat = 1,
    rate: Rate = 0,
    part: Factory = str,
    mode: Annotated[str, one_of(("max", "min"))] = "max",
    flag: bool = False,
    free="x",
    limit: PositiveInt | None = None,
    choice: bool | None = None,
    **others,
):
    return size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1. Received: size=0"),
        ({"size": True}, "size must be an integer of at least 1. Received: size=True"),
        ({"start": -1}, "start must be an integer of at least 0. Received: start=-1"),
        ({"two": 1}, "two must be an integer of at least 2. Received: two=1"),
        ({"weight": "a"}, "weight must be a number of at least -inf."),
        ({"jitter": -1}, "jitter must be a number of at least 0. Received: jitter=-1"),
        ({"step": 0}, "step must be a number above 0. Received: step=0"),
        ({"rate": 1}, "rate must be a number in [0, 1). Received: rate=1"),
        ({"part": "a"}, "part must be a function or class that makes it"),
        ({"mode": "mux"}, "mode='mux'. Nearest: max."),
        ({"flag": 1}, "flag must be True or False. Received: flag=1"),
        ({"limit": 0}, "limit must be an integer of at least 1. Received: limit=0"),
        ({"choice": "no"}, "choice must be True or False. Received: choice='no'"),
    ],
)
def test_messages_name_the_argument(given, message):
    with pytest.raises(UserError) as caught:
        declared(**{"size": 3, **given})
    assert message in str(caught.value)


def test_what_is_declared_may_be_given():
    assert declared(3, 0, 2, -1.5, limit=None, choice=None, free=None, other=-1) == 3
    with pytest.raises(UserError, match="start must be"):
        declared(3, "0")  # by its position
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        declared()


def test_numbers_of_numpy_become_pythons():
    @checked
    def given(size: PositiveInt, *more, rate: Rate = 0, flag: bool = False, **others):
        return size, *more, rate, flag, *others.values()

    array = np.ones(1)
    found = given(
        np.int64(2), np.uint8(1), rate=np.float32(0.5), flag=np.True_, a=array
    )
    assert [*map(type, found)] == [int, int, float, bool, np.ndarray]
    assert found == (2, 1, 0.5, True, array)
    assert type(Settings(np.int64(3)).period) is int
    attention = SelfAttention(np.int64(2), d_kv=np.int64(4))
    attention.build((1, 3, 8))
    again = SelfAttention.from_config(attention.get_config())
    again.build((1, 3, 8))
    assert again.count_params() == attention.count_params() == 4 * 8 * 8


@dataclasses.dataclass(frozen=True)
class Settings:
    period: PositiveInt | None = None

    def __post_init__(self):
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class MoreSettings(Settings):
    flag: bool = False

    def __post_init__(self):
        super().__post_init__()
        assert isinstance(self.flag, bool)


def test_a_dataclass_is_checked_when_it_is_made():
    assert Settings(3).period == 3 and Settings() == Settings(None)
    for make in (
        Settings,
        MoreSettings,
        lambda x: dataclasses.replace(Settings(), period=x),
    ):
        with pytest.raises(UserError, match="period must be an integer"):
            make(0)
    with pytest.raises(UserError, match="flag must be True or False"):
        MoreSettings(flag="no")
    with pytest.raises(UserError, match="Settings declare its types in a checked"):
        checked(Settings)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Lora, {"rank": -1}),
        (Objective, {"micro_batches": 0}),
        (Checkpointing, {"keep": 0}),
    ],
)
def test_subclasses_of_settings_are_checked(kind, wrong):
    notes = [("note", str, "")]
    own = dataclasses.make_dataclass("Own", notes, bases=(kind,), frozen=True)
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be an integer"):
        own(**wrong)


def _even(name, value):
    if value % 2:
        raise UserError(f"{name} must be even")


def test_all_checks_of_a_type_run_in_order():
    @checked
    def function(
        a: Annotated[PositiveInt, _even] = 2,
        b: Annotated[bool, lambda name, value: None] = True,
        c: Annotated[PositiveInt, _even] | None = None,
        minimum: PositiveInt = 1,
    ):
        return a

    assert function(4, c=None) == 4
    for given, message in (
        ({"a": 3}, "a must be even"),
        ({"a": "3"}, "a must be an integer"),
        ({"b": 1}, "b must be True or False"),
        ({"c": 3}, "c must be even"),
        ({"minimum": 0}, "minimum must be an integer"),
    ):
        with pytest.raises(UserError, match=message):
            function(**given)


def test_types_in_quotes(monkeypatch):
    @checked
    def function(a: "PositiveInt" = 1, b: "Later | None" = None):  # noqa: F821
        return a

    with pytest.raises(UserError, match="function is checked, .* 'Later' is not"):
        function()
    monkeypatch.setitem(globals(), "Later", int)
    assert function() == 1
    with pytest.raises(UserError, match="a must be an integer"):
        function(0)


def test_a_union_in_which_a_check_would_not_run():
    @checked
    def function(a: PositiveInt | str, b: bool | int = 2):
        pass

    with pytest.raises(UserError, match=r"function: a is .*Annotated\[A | B, check"):
        function(1)


@pytest.mark.parametrize(
    ("args", "kwargs", "wrong"),
    [
        ((0, 1), {}, "a"),
        ((1, 2, 0), {}, "rest"),
        ((1, 2, 3, 0), {}, "rest"),
        ((1, 2), {"k": 0}, "k"),
        ((1,), {"other": 0}, "other"),
        ((1,), {"rest": 0}, "rest"),
        ((1,), {"a": 0}, "a"),
    ],
)
def test_values_are_checked_under_their_own_names(args, kwargs, wrong):
    @checked
    def function(
        a: PositiveInt,
        /,
        *rest: PositiveInt,
        k: PositiveInt = 1,
        **others: PositiveInt,
    ):
        return rest

    assert function(1, 2, 3, k=1, a=1) == (2, 3)
    with pytest.raises(UserError, match=f"^{wrong} must be"):
        function(*args, **kwargs)


def test_free_positions_before_a_name():
    @checked
    def function(*items, size: PositiveInt = 1):
        return items

    assert function("a", "b") == ("a", "b")


def test_a_signature_is_readable():
    text = str(inspect.signature(declared))
    assert "size: typing.Annotated[int, integer(1)]" in text
    assert "lambda" not in text and "0x" not in text


def test_others_see_the_signature():
    """gin reads it by `getfullargspec`, which does not look through a wrapper."""
    names = inspect.getfullargspec(declared).args
    assert names[:2] == ["size", "start"] and "others" not in names
    register = gin.register("declared_in_a_test", module="tests")
    assert register(declared)(3) == 3
