"""A pack that a user brings is used whole or not at all, and every mistake in it is named."""

from __future__ import annotations

import pytest

from cellwall.core.errors import ConfigError
from cellwall.guard.detect import Detector, load_pack
from cellwall.guard.detect.rule_packs import shipped_packs

GOOD = {
    "id": '"acme.project"',
    "category": '"exfiltration"',
    "severity": '"high"',
    "languages": '["en"]',
    "words": '["Project Falcon"]',
    "pattern": "'project[\\s_]falcon'",
    "message": '"names a secret project"',
    "match": '["about Project Falcon"]',
    "not_match": '["a falcon project"]',
}


def pack(*changes: dict[str, str | None]) -> str:
    """One rule for each change: keys replaced, or left out if `None`."""
    rules = []
    for change in changes or ({},):
        fields = {**GOOD, **change}
        rules.append("[[rule]]\n" + "\n".join(f"{k} = {v}" for k, v in fields.items() if v))
    return "\n".join(rules)


def told(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_pack(text, name="acme")
    assert caught.value.hint
    return caught.value.message


def test_a_good_pack_is_loaded_and_finds_what_it_says() -> None:
    loaded = load_pack(pack(), name="acme")
    assert [rule.id for rule in loaded.rules] == ["acme.project"]
    text = "We must not talk about project\nfalcon in public."
    found = [
        hit for hit in Detector.shipped([loaded]).find(text).hits if hit.rule == "acme.project"
    ]
    assert [(hit.severity, text[hit.start : hit.end]) for hit in found] == [
        ("high", "project\nfalcon")
    ]
    # The control: without the pack nobody minds.
    assert not [hit for hit in Detector.shipped().find(text).hits if hit.category != "task"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": None}, "acme: rule number 1: `id` is missing"),
        ({"id": '"No Spaces"'}, "acme: rule number 1: `id` is made of a-z"),
        ({"severity": '"awful"'}, "acme: rule acme.project: `severity` is not one of low, medium"),
        ({"severity": "3"}, "acme: rule acme.project: `severity` is not one of"),
        ({"category": '"weather"'}, "acme: rule acme.project: `category` is not one of injection"),
        ({"languages": '["english"]'}, "acme: rule acme.project: `languages` has an element"),
        ({"languages": '["EN"]'}, "acme: rule acme.project: `languages` is a list of codes"),
        ({"words": None}, "acme: rule acme.project: `words` is missing"),
        ({"words": "[]"}, "acme: rule acme.project: `words` is a list of 1 to 200 texts"),
        ({"words": '["ab"]'}, "acme: rule acme.project: `words` has a word with less than 3"),
        (
            {"words": '["eagle"]'},
            "acme: rule acme.project: none of the words stands in the example",
        ),
        ({"near": '["eagle"]'}, "acme: rule acme.project: none of the words in `near` stands in"),
        ({"pattern": "'(?=x)y'"}, "acme: rule acme.project: a pattern is not one that RE2 reads"),
        ({"pattern": "'(a)\\1'"}, "acme: rule acme.project: a pattern is not one that RE2 reads"),
        ({"pattern": "'x*'"}, "acme: rule acme.project: the pattern matches nothing at all"),
        ({"pattern": "'Project Falcon'"}, "does not match the example `about Project Falcon`"),
        (
            {"pattern": "'falcon'"},
            "the pattern matches `a falcon project`, which is in `not_match`",
        ),
        ({"score": "1.5"}, "acme: rule acme.project: `score` is a number above 0 and up to 1"),
        ({"score": "true"}, "acme: rule acme.project: `score` is a number above 0 and up to 1"),
        ({"message": '"two\\nlines"'}, "acme: rule acme.project: `message` is not one printable"),
        ({"match": "[]"}, "acme: rule acme.project: `match` is a list of 1 to 200 texts"),
        ({"not_match": None}, "acme: rule acme.project: `not_match` is missing"),
        ({"match": "[1]"}, "acme: rule acme.project: `match` has an element that is not"),
        ({"colour": '"red"'}, "acme: rule acme.project: unknown key `colour`"),
    ],
)
def test_a_mistake_is_told_with_pack_and_rule(change: dict[str, str | None], problem: str) -> None:
    assert problem in told(pack(change))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule]]\nid = ", "acme: not valid TOML"),
        ("", "acme: there is no `[[rule]]` in it"),
        ("rule = 3", "acme: there is no `[[rule]]` in it"),
        ("rule = [3]", "acme: rule number 1: it is not a table"),
        ('title = "x"\n' + pack(), "acme: unknown key `title`"),
        ("x = " + "[" * 50 + "]" * 50, "acme:1: nested more than 4 deep"),
        ("#" * (1 << 20) + "\n", "acme: longer than 1048576 characters"),
    ],
)
def test_a_file_that_is_no_pack_is_refused(text: str, problem: str) -> None:
    assert problem in told(text)


def test_every_mistake_is_listed_not_only_the_first() -> None:
    message = told(pack({"id": '"one"', "severity": '"x"'}, {"id": '"two"', "category": '"y"'}))
    assert [line.split(":")[1] for line in message.splitlines()] == [" rule one", " rule two"]


def test_two_rules_of_one_id_are_refused_in_one_pack_and_across_packs() -> None:
    assert told(pack({}, {})) == "acme: rule acme.project: two rules have this id"
    taken = shipped_packs()[0].rules[0].id
    with pytest.raises(ConfigError, match=f"acme: rule {taken}: .* has a rule of this id"):
        Detector.shipped([load_pack(pack({"id": f'"{taken}"'}), name="acme")])
