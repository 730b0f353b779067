"""`checked` reads the types of a signature, and checks the arguments of each call."""

import dataclasses
import inspect
from typing import Annotated

import gin
import pytest

from remixer_tf.arguments import (
    Factory,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Rate,
    checked,
    integer,
    one_of,
)
from remixer_tf.errors import UserError


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


def test_a_dataclass_is_checked_when_it_is_made():
    @checked
    @dataclasses.dataclass(frozen=True)
    class Settings:
        period: PositiveInt | None = None

    assert Settings(3).period == 3 and Settings() == Settings(None)
    for make in (Settings, lambda x: dataclasses.replace(Settings(), period=x)):
        with pytest.raises(UserError, match="period must be an integer"):
            make(0)


def test_others_see_the_signature():
    """gin reads it by `getfullargspec`, which does not look through a wrapper."""
    names = inspect.getfullargspec(declared).args
    assert names[:2] == ["size", "start"] and "others" not in names
    register = gin.register("declared_in_a_test", module="tests")
    assert register(declared)(3) == 3
