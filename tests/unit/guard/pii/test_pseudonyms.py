"""Tokens stand for values in one session, and only there (GRD-6)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from cellwall.core.errors import BadInput
from cellwall.guard.pii import Pseudonyms

TEXT = "Mail ann@example.com or call +1 415 555 2671; ann@example.com again."
TOKEN = re.compile(r"\[[a-z]+-[0-9]+-[a-z2-7]{8}\]")


@pytest.mark.requirement("GRD-6")
def test_values_are_hidden_and_come_back_for_the_user() -> None:
    session = Pseudonyms()
    hidden = session.hide(TEXT)
    assert "ann" not in hidden
    assert "415" not in hidden
    first, phone, second = TOKEN.findall(hidden)
    assert first == second != phone  # the same value, the same token
    assert session.restore(hidden) == TEXT
    assert session.restore(f"I wrote to {first}.") == "I wrote to ann@example.com."


def test_a_value_keeps_its_token_from_text_to_text() -> None:
    session = Pseudonyms()
    assert session.hide("to ann@example.com") == session.hide("to ann@example.com")


def test_two_spellings_share_a_number_and_come_back_as_they_were() -> None:
    session = Pseudonyms()
    text = "020 7946 0018, 020-7946-0018"
    hidden = session.hide(text)
    one, other = TOKEN.findall(hidden)
    assert one != other
    assert one.rpartition("-")[0] == other.rpartition("-")[0]
    assert session.restore(hidden) == text


@pytest.mark.requirement("GRD-6")
def test_a_token_of_one_session_says_nothing_in_another() -> None:
    mine, other = Pseudonyms(), Pseudonyms()
    hidden = mine.hide("ann@example.com")
    other.hide("bob@example.com")
    assert other.restore(hidden) == hidden
    assert mine.restore(hidden) == "ann@example.com"  # the control


@pytest.mark.requirement("GRD-6")
def test_text_from_outside_cannot_name_a_value_by_guess() -> None:
    session = Pseudonyms()
    token = session.hide("ann@example.com")
    guesses = [token[:-9] + "aaaaaaaa]", token.upper(), token.replace("-1-", "-2-"), "[mail-1]"]
    assert [session.restore(guess) for guess in guesses] == guesses


@pytest.mark.requirement("GRD-6")
def test_text_with_tokens_comes_back_as_it_was() -> None:
    session = Pseudonyms()
    token = session.hide("ann@example.com")
    for text in (
        f"see {token}",
        f"{token}{token} bob@example.com",
        "[mail-1-abcdefgh]",
        f"[{token}",
    ):
        hidden = session.hide(text)
        assert hidden != text
        assert session.restore(hidden) == text


@pytest.mark.requirement("GRD-6")
def test_what_was_forgotten_does_not_come_back() -> None:
    session = Pseudonyms()
    hidden = session.hide(TEXT)
    session.forget()
    assert session.restore(hidden) == hidden
    assert session.hide(TEXT) != hidden


def test_too_many_values_are_refused_and_nothing_is_shown() -> None:
    session = Pseudonyms(max_values=2)
    assert session.hide("a1@example.com a2@example.com")
    with pytest.raises(BadInput) as refused:
        session.hide("a3@example.com")
    assert refused.value.code == "CW-PII-FULL"
    assert "a3" not in str(refused.value)
    assert session.hide("a1@example.com")  # known ones still are


@pytest.mark.requirement("GRD-6")
def test_a_flood_of_made_up_values_does_not_end_the_hiding_of_others() -> None:
    session = Pseudonyms(max_values=2)
    first = session.cover("a1@example.com a2@example.com")
    assert session.restore(first) == "a1@example.com a2@example.com"  # while there is room
    later = session.cover("write to a3@example.com or a1@example.com")
    assert later == "write to [mail-unkept] or " + first.split()[0]
    assert session.restore(later) == "write to [mail-unkept] or a1@example.com"
    assert session.cover("[mail-unkept]") == "[mail-unkept]"


@pytest.mark.requirement("GRD-6")
@pytest.mark.slow
def test_more_personal_data_than_is_looked_at_is_covered_whole() -> None:
    text = " ".join(f"u{number}@example.com" for number in range(20_100))
    covered = Pseudonyms().cover(text)
    assert "@" not in covered
    with pytest.raises(BadInput):
        Pseudonyms().hide(text)


def test_threads_agree_on_the_tokens() -> None:
    session = Pseudonyms()
    text = " ".join(f"u{number}@example.com" for number in range(50))
    with ThreadPoolExecutor(4) as pool:
        hidden = set(pool.map(session.hide, [text] * 16))
    assert len(hidden) == 1
    assert session.restore(hidden.pop()) == text
