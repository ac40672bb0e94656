"""Limits are numbers within bounds, with a reason each; sizes are read or refused (LIM-1)."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.core.limits import GIB, KIB, MIB, LimitName, Limits, parse_size, size_text

PROMISED = {
    *("wall_s", "cpu_s", "memory_bytes", "processes", "open_files", "file_size_bytes"),
    *("disk_bytes", "output_bytes"),
}


@pytest.mark.requirement("LIM-1")
def test_every_limit_has_a_default_within_its_bounds_and_a_reason() -> None:
    limits = Limits()
    assert {spec.name for spec in fields(Limits)} >= PROMISED
    for spec in fields(Limits):
        assert spec.metadata["least"] <= getattr(limits, spec.name) <= spec.metadata["most"]
        assert spec.metadata["most"] < math.inf
        assert spec.metadata["reason"]


def test_the_names_of_limits_are_the_contract_s() -> None:
    assert [name.value for name in LimitName] == [
        "wall", "cpu", "memory", "processes", "disk", "file_size", "output", "open_files",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [spec.name for spec in fields(Limits)])
@pytest.mark.parametrize(
    "value", [0, -1, math.inf, -math.inf, math.nan, 10**30, 10**400, True, "5", None]
)
def test_no_limit_can_be_switched_off(name: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        Limits(**{name: value})  # type: ignore[arg-type]  # on purpose
    assert refused.value.code == "CW-BAD-LIMIT"


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("4096", 4096), ("512m", 512 * MIB), ("1.5G", 3 * GIB // 2), ("64KiB", 64 * KIB), (" 1 kb ", KIB), (7, 7)],
)  # fmt: skip
def test_sizes_are_read(text: str | int, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "m", "-1", "1e3", "1,5m", "٣m", "1 m m", "0x10", "1.2345m", "9" * 16, "1mm", "1\0m", True],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_size(text)


@given(st.text(max_size=40))
def test_any_text_is_a_size_or_bad_input(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except BadInput:
        pass


@given(st.integers(0, 10**15))
def test_a_size_is_shown_in_a_form_that_is_read_as_the_same_number(number: int) -> None:
    assert parse_size(size_text(number)) == number


def test_a_size_out_of_range_is_told_in_units() -> None:
    with pytest.raises(BadInput) as refused:
        Limits(memory_bytes=5)
    assert refused.value.hint == "Use a value from 8m to 1t."


@pytest.mark.parametrize("value", [0.0, 1e9, "soon"])
def test_a_time_out_of_range_is_told_in_seconds(value: object) -> None:
    with pytest.raises(BadInput) as refused:
        Limits(wall_s=value)  # type: ignore[arg-type]  # as it comes from outside
    assert refused.value.hint == "Use a value from 0.01 to 86400 seconds."
