"""Rule files in the gitleaks format: what they say counts, and what is wrong is said."""

from __future__ import annotations

import pytest

from cellwall.core.errors import ConfigError
from cellwall.guard.redact import Redactor, load_gitleaks

RULES = (
    r'''
title = "ours"

[allowlist]
description = "everywhere"
regexes = ["^allowed-"]
stopwords = ["sample"]

[[rules]]
id = "acme-token"
description = "one"
regex = """(?i)acme[_-]?(?:token|key)\\s*[:=]\\s*['"]?([a-z0-9-]{12,40})['"]?"""
keywords = ["ACME"]
entropy = 2.5

[[rules.allowlists]]
condition = "AND"
regexTarget = "line"
regexes = ["# nosecret"]
stopwords = ["zzz"]

[[rules.allowlists]]
paths = ["vendor/"]

[[rules]]
id = "second-group"
regex = '''
    "'''"
    r"""b(o)x-([0-9]{6})"""
    "'''"
    r"""
secretGroup = 2
keywords = ["box-"]

[[rules]]
id = "several-lines"
regex = """
    "'''"
    r"""(?s)<<<.{4,200}?>>>"""
    "'''"
    r"""
keywords = ["<<<"]

[[rules]]
id = "no-keywords"
regex = """
    "'''"
    r"""\bQQ[0-9]{8}\b"""
    "'''"
    r"""

[[rules]]
id = "of-files"
path = """
    "'''"
    r"""\.p12$"""
    "'''"
    """
"""
)
LOADED = load_gitleaks(RULES)
REDACTOR = Redactor(LOADED)


def test_rules_are_read_and_those_of_files_left_out() -> None:
    assert [rule.id for rule in LOADED.searches] == [
        "acme-token",
        "second-group",
        "several-lines",
        "no-keywords",
    ]


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("acme_token = 'a1b2c3d4e5f6g7'", "acme_token = '[redacted:acme-token]'"),
        ("ACME-KEY: a1b2c3d4e5f6g7\n", "ACME-KEY: [redacted:acme-token]\n"),
        ("acme_token = aaaaaaaaaaaaaaa", "acme_token = aaaaaaaaaaaaaaa"),
        ("acme_token = allowed-1b2c3d4e5f6g7", "acme_token = allowed-1b2c3d4e5f6g7"),
        ("acme_token = a1b2sample3d4e5f6g7", "acme_token = a1b2sample3d4e5f6g7"),
        ("acme_token=a1b2c3d4e5zzz # nosecret", "acme_token=a1b2c3d4e5zzz # nosecret"),
        ("acme_token=a1b2c3d4e5f6 # nosecret", "acme_token=[redacted:acme-token] # nosecret"),
        ("box-123456", "box-[redacted:second-group]"),
        ("a <<<one\ntwo\nthree>>> b", "a [redacted:several-lines] b"),
        ("x QQ12345678 y", "x [redacted:no-keywords] y"),
        ("x QQ123456789 y", "x QQ123456789 y"),
    ],
)
def test_what_a_file_says_is_done(text: str, shown: str) -> None:
    assert REDACTOR.redact_text(text).text == shown
    assert REDACTOR.redact_text(shown).text == shown
    stream = REDACTOR.stream()
    letters = [letter.encode() for letter in text]
    assert b"".join([*map(stream.feed, letters), stream.end()]).decode() == shown


def test_a_list_for_some_rules_is_for_those_alone() -> None:
    table = """
[[allowlists]]
targetRules = ["b"]
regexes = ["1"]
[[rules]]
id = "a"
regex = "a-[0-9]{4}"
keywords = ["a-"]
[[rules]]
id = "b"
regex = "b-[0-9]{4}"
keywords = ["b-"]
"""
    told = Redactor(load_gitleaks(table)).redact_text("a-1111 b-1111 b-2222")
    assert told.text == "[redacted:a] b-1111 [redacted:b]"


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("= nothing", "it is not TOML"),
        ("title = 'a'", "no rule with a regex"),
        ("rules = 3", "rules is not a list of tables"),
        ("[[rules]]\nregex = 'a'", "rule 1 has no id"),
        ("[[rules]]\nid = 'a]b'\nregex = 'a'", "rule 1 has no id"),
        ("[[rules]]\nid = 'a'", "rule 'a' has no regex"),
        ("[[rules]]\nid = 'a'\nregex = '('", "rule 'a': a pattern is not one that RE2 reads"),
        ("[[rules]]\nid = 'a'\nregex = '(?=a)'", "rule 'a': a pattern is not one that RE2 reads"),
        ("[[rules]]\nid = 'a'\nregex = 'a'\nentropy = 'x'", "entropy is not a number"),
        ("[[rules]]\nid = 'a'\nregex = 'a'\nsecretGroup = 1", "has no group 1"),
        ("[[rules]]\nid = 'a'\nregex = 'a'\nkeywords = 'k'", "keywords is not a list"),
        ("[[rules]]\nid = 'a'\nregex = 'a'\n[[rules]]\nid = 'a'\nregex = 'b'", "two rules"),
        (
            "[[rules]]\nid = 'a'\nregex = 'a'\n[[rules.allowlists]]\ncondition = 'XOR'",
            "neither OR nor AND",
        ),
        (
            "[[rules]]\nid = 'a'\nregex = 'a'\n[[rules.allowlists]]\nregexTarget = 'file'",
            "regexTarget is none of",
        ),
        ("[extend]\nuseDefault = true\n[[rules]]\nid = 'a'\nregex = 'a'", "extends another file"),
        ("[extend]\npath = 'b'\n[[rules]]\nid = 'a'\nregex = 'a'", "extends another file"),
    ],
)
def test_a_bad_file_says_what_is_wrong_with_it(table: str, said: str) -> None:
    with pytest.raises(ConfigError, match="a rule file cannot be used") as caught:
        load_gitleaks(table)
    assert said in caught.value.message
    assert caught.value.hint


def test_an_extension_that_adds_nothing_is_no_mistake() -> None:
    table = "[extend]\nuseDefault = false\n[[rules]]\nid = 'a'\nregex = 'a'"
    assert [rule.id for rule in load_gitleaks(table).searches] == ["a"]
