"""Arguments of host functions are of the types that their hints name, and of no others (LANG-3)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import anyio
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from cellwall.core.errors import BadInput
from cellwall.interfaces.sdk.tools import ToolBroker, ToolFailed

pytestmark = pytest.mark.requirement("LANG-3")


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class PlainNumber(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Row(TypedDict):
    x: int


class Model(BaseModel):
    x: int
    when: dt.date | None = None


class Bits(enum.IntFlag, boundary=enum.CONFORM):
    ONE = 1
    TWO = 2


def called(hint: object, value: object) -> object:
    """What reaches a function with one argument of this hint."""
    reached: list[object] = []

    def function(y):
        reached.append(y)

    function.__annotations__ = {"y": hint}
    broker = ToolBroker({"f": function})
    anyio.run(functools.partial(broker.call, "f", [], {"y": value}))
    return reached[0]


ALLOWED = [
    (int, 1, 1),
    (int, 2**70, 2**70),
    (float, 1.5, 1.5),
    (float, 1, 1.0),
    (bool, True, True),
    (str, "1", "1"),
    (int | None, None, None),
    (int | str, "1", "1"),
    (int | float, 1.0, 1.0),
    (bool | int, True, True),
    (list[int], [1], [1]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[int], [1], {1}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[str, list[bool]], {"a": [True]}, {"a": [True]}),
    (Literal[1, "a"], 1, 1),
    (Literal[True], True, True),
    (Colour, "red", Colour.RED),
    (Number, 1, Number.ONE),
    (PlainNumber, 1, PlainNumber.ONE),
    (Point, {"x": 1, "y": 2}, Point(1, 2.0)),
    (Row, {"x": 1}, {"x": 1}),
    (Model, {"x": 1, "when": "2026-01-02"}, Model(x=1, when=dt.date(2026, 1, 2))),
    (list[Point], [{"x": 1}], [Point(1)]),
    (dt.datetime, "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    (decimal.Decimal, "1.5", decimal.Decimal("1.5")),
    (Annotated[int, Field(gt=0)], 1, 1),
    (Iterable[int], [1, 2], [1, 2]),
    (Iterable, [1, "a"], [1, "a"]),
    (Bits, 3, Bits.ONE | Bits.TWO),
    (float, 10**300, 1e300),
    (Any, 1.0, 1.0),
    (Any, True, True),
]
REFUSED = [
    *((int, value) for value in (True, False, 1.0, 1.5, "1", None, [], {})),
    *((float, value) for value in (True, "1", None)),
    *((bool, value) for value in (0, 1, 1.0, "true", "yes", None)),
    *((str, value) for value in (1, 1.5, True, None, ["a"])),
    *((int | None, value) for value in (True, 1.0, "1")),
    *((int | str, value) for value in (True, 1.0)),
    *((int | float, value) for value in (True, "1")),
    *((list[int], value) for value in ([True], [1.0], ["1"], "1", {"0": 1})),
    *((tuple[int, str], value) for value in ([True, "a"], [1], [1, "a", "b"])),
    *((set[int], value) for value in ([True], [1.0])),
    *((dict[str, int], value) for value in ({"a": True}, {"a": 1.0}, [["a", 1]])),
    *((Literal[1], value) for value in (True, 1.0, "1")),
    *((Literal[True], value) for value in (1, 1.0, "true")),
    *((list[Literal[0]], value) for value in ([False], [0.0])),
    *((Colour, value) for value in ("RED", 1, None)),
    *((Number, value) for value in (True, 1.0, "1", 2)),
    *((PlainNumber, value) for value in (True, 1.0)),
    *((dict[str, list[Number]], value) for value in ({"a": [1, True]}, {"a": [1.0]})),
    *((Point, value) for value in ({"x": True}, {"x": 1.0}, {"x": 1, "y": "2"}, [1, 2])),
    *((Row, value) for value in ({"x": True}, {"x": "1"}, {})),
    *((Model, value) for value in ({"x": 1.0}, {"x": 1, "when": 1})),
    *((list[Point], value) for value in ([{"x": 1}, {"x": True}],)),
    *((dt.datetime, value) for value in (1, 1.5, True)),
    *((decimal.Decimal, value) for value in (True,)),
    *((Annotated[int, Field(gt=0)], value) for value in (0, True)),
    *((Iterable[int], value) for value in ([True], [1.0], ["1"], "1", {"0": 1}, 1)),
    *((Iterator[int], value) for value in ([True], "1")),
    *((Bits, value) for value in (True, 4, -1, 1.0)),
    *((hint, value) for hint in (float, float | None, Any) for value in (math.nan, math.inf)),
    *((float, value) for value in (10**400, -(10**400))),
    *((list[float], value) for value in ([math.nan], [10**400])),
    (dict[str, float], {"a": 10**400}),
]


@pytest.mark.parametrize(("hint", "value", "reached"), ALLOWED)
def test_plain_data_of_the_hinted_type_reaches_the_function(hint, value, reached):
    found = called(hint, value)
    assert (found, type(found)) == (reached, type(reached))


@pytest.mark.parametrize("hint", [list[Iterable[int]], Iterable[int] | None])
def test_a_function_whose_arguments_would_be_checked_late_is_not_offered(hint):
    with pytest.raises(BadInput) as caught:
        called(hint, [])
    assert caught.value.code == "CW-TOOL-HINTS"
    assert "list[" in caught.value.hint


@pytest.mark.parametrize(("hint", "value"), REFUSED)
def test_data_of_another_type_never_reaches_the_function(hint, value):
    with pytest.raises(ToolFailed) as caught:
        called(hint, value)
    assert caught.value.code == "CW-TOOL-ARGUMENTS"


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (int, True, "y: int_type, got boolean"),
        (int, 1.0, "y: int_type, got number"),
        (list[int], [1, "2"], "y.1: int_type, got string"),
        (Literal[1], True, "y: integer_type, got boolean"),
        (Point, {"x": 1.0}, "y.x: int_type, got number"),
    ],
)
def test_the_code_is_told_which_argument_is_wrong_and_how(hint, value, told):
    with pytest.raises(ToolFailed) as caught:
        called(hint, value)
    assert caught.value.message == f"wrong arguments ({told})"


def test_every_way_to_pass_an_argument_is_checked():
    def function(a: int, /, b: int, *rest: int, c: int = 1, **more: int) -> list[object]:
        return [a, b, rest, c, more]

    broker = ToolBroker({"f": function})

    def call(*args: object, **kwargs: object) -> object:
        return anyio.run(functools.partial(broker.call, "f", args, kwargs))

    assert call(1, 2, 3, 4, c=5, d=6) == [1, 2, [3, 4], 5, {"d": 6}]
    assert call(1, b=2) == [1, 2, [], 1, {}]
    for args, kwargs in [
        ((True, 2), {}),
        ((1, True), {}),
        ((1,), {"b": True}),
        ((1, 2, True), {}),
        ((1, 2, 3, 1.0), {}),
        ((1, 2), {"c": True}),
        ((1, 2), {"d": True}),
        ((), {"a": 1, "b": 2}),
    ]:
        with pytest.raises(ToolFailed):
            call(*args, **kwargs)


def test_defaults_are_the_hosts_own():
    marker = object()

    def function(a: int = True, b: Annotated[int, Field(gt=5)] = 0, c: Any = marker) -> bool:
        return a is True and b == 0 and c is marker

    broker = ToolBroker({"f": function})
    assert anyio.run(functools.partial(broker.call, "f", [], {})) is True
    with pytest.raises(ToolFailed):
        anyio.run(functools.partial(broker.call, "f", [], {"b": 0}))
