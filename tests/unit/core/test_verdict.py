"""Order is the semantics: the strictest verdict wins, and of equals the first."""

from __future__ import annotations

import itertools

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.languages import canonical
from cellwall.core.verdict import Decision, Verdict, strictest


def test_verdicts_are_ordered() -> None:
    assert sorted(Verdict) == [Verdict.ALLOW, Verdict.ASK, Verdict.DENY]


@pytest.mark.parametrize("verdicts", list(itertools.product(Verdict, repeat=3)))
def test_the_strictest_wins_in_any_order(verdicts: tuple[Verdict, ...]) -> None:
    decisions = [Decision(verdict, str(place)) for place, verdict in enumerate(verdicts)]
    chosen = strictest(*decisions)
    assert chosen.verdict is max(verdicts)
    assert chosen.rule == str(verdicts.index(max(verdicts)))


@pytest.mark.parametrize(
    ("word", "name"), [("py", "python"), (" Bash ", "shell"), ("node", "javascript")]
)
def test_languages_have_one_name(word: str, name: str) -> None:
    assert canonical(word) == name


@pytest.mark.parametrize("word", ["", "perl", "python\0", "x" * 10_000])
def test_unknown_languages_are_told_what_there_is(word: str) -> None:
    with pytest.raises(BadInput) as refused:
        canonical(word)
    assert (refused.value.code, "python" in refused.value.hint) == ("CW-UNKNOWN-LANGUAGE", True)
    assert len(refused.value.message) < 100
