"""Code is screened with exact places; honest code is left alone; nothing makes it raise (GRD-9)."""

from __future__ import annotations

import sysconfig
import threading
import warnings
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.guard.code import (
    PATTERN_RULE,
    RULES,
    CodePattern,
    screen,
    screening,
)
from cellwall.guard.report import Hit
from unit.guard.code.samples import HONEST, SEEN


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize(("rule", "language", "code", "span"), SEEN)
def test_it_is_seen_where_it_stands(rule: str, language: str, code: str, span: str) -> None:
    found = {(hit.rule, code[hit.start : hit.end]) for hit in screen(code, language)}
    assert (f"code.{rule}", span) in found


def test_every_rule_is_seen_in_a_sample() -> None:
    assert {f"code.{rule}" for rule, *_ in SEEN} == set(RULES) - {
        "code.text.too-long",
        "code.text.not-finished",
    }


@pytest.mark.requirement("GRD-8", "GRD-9")
@pytest.mark.parametrize(("language", "code"), HONEST)
def test_honest_code_is_left_alone(language: str, code: str) -> None:
    assert screen(code, language) == ()


def test_a_hit_says_all_that_its_rule_says() -> None:
    assert screen("eval(x)", "python") == (
        Hit(
            category="code:eval",
            severity="low",
            rule="code.python.eval",
            message="evaluates a text as an expression",
            start=0,
            end=7,
            score=0.1,
        ),
    )


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize("language", ["python", "javascript", "typescript", "shell", "ruby"])
def test_patterns_of_the_configuration_hold_for_every_language(language: str) -> None:
    pattern = CodePattern.parse(r"high internal\.example")
    code = "é = 1 # internal.example"
    found = [hit for hit in screen(code, language, patterns=[pattern]) if hit.rule == PATTERN_RULE]
    assert [(code[hit.start : hit.end], hit.severity) for hit in found] == [
        ("internal.example", "high")
    ]
    long = screen(code, language, max_characters=1, patterns=[pattern])
    assert PATTERN_RULE in {hit.rule for hit in long}


@pytest.mark.parametrize("text", ["", "high", "high ", "huge a", "low (", r"low (?=a)"])
def test_a_pattern_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        CodePattern.parse(text)


def test_advice_is_never_more_than_medium() -> None:
    assert {rule.severity for rule in RULES.values()} == {"low", "medium"}
    assert all(rule.id == name for name, rule in RULES.items())


def test_code_that_is_too_long_is_not_screened_and_that_is_said() -> None:
    long = screen("eval(x)", "python", max_characters=6)
    assert [hit.rule for hit in long] == ["code.text.too-long"]
    assert [hit.rule for hit in screen("eval(x)", "python", max_characters=7)] == [
        "code.python.eval"
    ]


@pytest.mark.slow
@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize("language", ["python", "javascript", "typescript", "shell"])
def test_a_flood_of_one_finding_hides_no_other(language: str) -> None:
    last = {"python": "\n().__class__.__base__.__subclasses__()", "shell": "\ncurl u | sh"}
    rule = {
        "python": "code.python.introspection-chain",
        "shell": "code.shell.download-run",
    }
    flood = "eval(x)\n" if language != "shell" else "eval x\n"
    code = flood * 1_000 + last.get(language, "\na.__proto__.b = 1")
    found = [hit.rule for hit in screen(code, language)]
    assert found[-1] == rule.get(language, "code.javascript.pollution")
    assert len(found) <= 6


HOSTILE = {
    "python": [
        "-" * 50_000 + "1", "not " * 20_000 + "1", "lambda:" * 20_000 + "1", "a" + ".b" * 20_000,
        "a" + "()" * 20_000, "1+" * 20_000 + "1", "(" * 50_000, "if 1:pass\n" + "elif 1:pass\n" * 20_000,
        "import " + "a." * 50_000 + "a", "import a\\\n" + ".a\\\n" * 20_000, "x\0y", "x = '\ud800'", "1" * 10_000,
        "\t" * 10_000, "# coding: none\nx", "exec(" * 90 + ")" * 90, "'\\d'", "x is 1",
    ],
    "javascript": [
        sign * 20_000 for sign in ("(", "[", "{", "`${", '"', "a(", "a[", "eval(", "/*", "/", "/[", "=/[", "a=", "f<a,", "\\", "\ud800", "\0", "<!--", "\n-->", "a++/", "</[", "a.__proto__", "\\u{110000}", "x=atob ")
    ],
    "shell": [
        sign * 20_000 for sign in ("(", "$(", "`", '"', "${a", "a|", "<<A ", "<<A\n", "'", "$'", "<(", "\\", "\ud800", "\0", "if ", ")")
    ],
}  # fmt: skip
CASES = [(language, code) for language, codes in HOSTILE.items() for code in codes]


@pytest.mark.slow
@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize(("language", "code"), CASES, ids=range(len(CASES)))
@pytest.mark.sample(20)
def test_hostile_code_gets_an_answer(language: str, code: str) -> None:
    # In a thread, whose stack is smaller, and with warnings turned to errors, as tests are run.
    found: list[tuple[Hit, ...]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=lambda: found.append(screen(code, language)))
        thread.start()
        thread.join()
    assert len(found) == 1
    assert all(0 <= hit.start <= hit.end <= len(code) for hit in found[0])


@pytest.mark.requirement("GRD-8")
@pytest.mark.slow
def test_the_standard_library_has_next_to_no_medium_finding() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(folder.glob("[a-f]*.py")) if path.stat().st_size < 60_000]
    assert len(files) > 30
    flagged = {
        path.name
        for path in files
        for hit in screen(path.read_text("utf-8"), "python")
        if hit.severity == "medium" or hit.rule == "code.text.unparsable"
    }
    # `cgitb` does read the built-in functions of another frame.
    assert len(flagged) <= 1 + len(files) // 100, flagged


@pytest.mark.requirement("GRD-9", "GRD-11")
@pytest.mark.parametrize("language", ["python", "javascript", "shell"])
def test_code_that_takes_too_long_is_not_screened_further_and_that_is_said(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "a 1\n" * 400 if language == "shell" else "a(1)\n" * 4000
    assert screen(code, language) == (), "the control"
    monkeypatch.setattr(screening, "_BASE_S", -1.0)  # nothing is left from the start
    found = screen(f"{code}\n", language)  # another text: the first one is known to be clean
    assert [hit.rule for hit in found] == ["code.text.not-finished"]


@pytest.mark.requirement("GRD-9")
def test_a_comment_of_html_that_may_be_code_is_said() -> None:
    """`<!--` begins a comment in scripts, and none in modules."""
    for code in ("<!-- <!-- `\neval(x)\n`", "x <!--y; eval(z)", "\n --> `\n`"):
        assert "code.text.unparsable" in {hit.rule for hit in screen(code, "javascript")}
    assert screen("<!-- a\n--> b\nwhile (x --> 0) f()", "javascript") == ()
