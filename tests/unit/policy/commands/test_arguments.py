"""Options are told from operands as programs do it, and in doubt a word is looked at twice."""

from __future__ import annotations

import pytest

from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import build_model
from unit.policy.commands.opening import words

MODEL = build_model(
    "x",
    {
        "flags": "-a -b --all",
        "values": "-n --number",
        "optional": "-i --color",
        "digits": "-0",
        "next": "-o",
        "does": {"--exec": "script: it runs it", "--pair": "value pair"},
        "operands": "read",
    },
)
STRICT = build_model("x", {"values": "--number", "flags": "--all", "strict": True})


def scanned(text: str, **changes: object) -> Scan:
    table = {"flags": "-a -b --all", "values": "-n --number", "operands": "read", **changes}
    return scan(build_model("x", table), words(text)) if changes else scan(MODEL, words(text))


def given(text: str) -> list[tuple[str, str | None]]:
    return [(each.spelled, each.value and each.value.text) for each in scanned(text).options]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-ab", [("-a", None), ("-ab", None)]),
        (
            "-n5 -n 6 --number=7 --number 8",
            [("-n", "5"), ("-n", "6"), ("--number", "7"), ("--number", "8")],
        ),
        ("-abn5", [("-a", None), ("-ab", None), ("-abn", "5")]),
        (
            "-i -isuf --color=x --color y",
            [("-i", None), ("-i", "suf"), ("--color", "x"), ("--color", None)],
        ),
        ("-0777a", [("-0777a", None)]),
        ("-oa x", [("-oa", None), ("-o", "x")]),
        ("--exe x --ex=y", [("--exe", "x"), ("--ex", "y")]),
        ("--pair a b", [("--pair", "b")]),
        ("-n", [("-n", None)]),
    ],
)
def test_values_are_found_where_they_stand(text: str, found: list[tuple[str, str | None]]):
    assert given(text) == found


def test_options_and_operands_may_be_mixed():
    found = scanned("a -a b -- -b")
    assert [word.text for word in found.operands] == ["a", "b", "-b"]
    assert [each.spelled for each in found.options] == ["-a"]


def test_an_option_that_is_not_listed_hides_no_word():
    found = scanned("--strange --exec x")
    assert [each.spelled for each in found.options] == ["--exec"]
    assert [word.text for word in found.strange] == ["--strange"]


def test_two_dashes_may_be_the_value_of_an_option_that_is_not_listed():
    assert [each.spelled for each in scanned("--strange -- --exec x").options] == ["--exec"]
    assert [each.spelled for each in scanned("--strange=1 -- --exec x").options] == []


def test_a_shortened_option_takes_a_value_only_where_the_list_is_complete():
    assert [w.text for w in scanned("--num x").operands] == ["x"]
    assert scan(STRICT, words("--num x")).operands == []


@pytest.mark.parametrize(
    "text", ["@u", "@s", "-@u", "--@u", "-a@u", "@g*", "-a@s", "-n @s", "--number=@s"]
)
def test_an_unknown_word_at_the_place_of_an_option_is_told(text: str):
    assert scanned(text).is_unsure


@pytest.mark.parametrize(
    "text", ["-n @u", "-n@u", "--number=@u", "-- @u @s", "x@u", "./@g*", "-n x@g*"]
)
def test_an_unknown_value_is_no_option(text: str):
    assert not scanned(text).is_unsure


def test_the_first_operand_ends_the_options_of_some_programs():
    found = scanned("a -b", stops=True)
    assert [word.text for word in found.operands] == ["a", "-b"]


def test_the_first_word_of_tar_is_a_cluster():
    table = {"bundled": True, "flags": "-x -z", "values": "-f -C"}
    found = scan(build_model("x", table), words("xzfC a b c"))
    assert [(e.spelled, e.value and e.value.text) for e in found.options] == [
        ("x", None),
        ("xz", None),
        ("xzf", "a"),
        ("xzfC", "b"),
    ]
    assert [word.text for word in found.operands] == ["c"]
