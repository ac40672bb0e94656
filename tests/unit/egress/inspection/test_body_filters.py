"""A secret that a server shows back becomes its placeholder before the code sees it."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.egress.inspection.body_filters import Echoes, EchoFilter, EchoIndex, SentValue
from cellwall.parsing.credentials.known_forms import forms, max_bytes

TOKEN = b"tok-5f9c/2e+81d7=="
PASSWORD = b"correct horse battery"
TOKEN_SHOWN = b"hfsecret_token_aaaaaaaaaaaaaaaaaaaaaaaaaa"
PASSWORD_SHOWN = b"hfsecret_password_bbbbbbbbbbbbbbbbbbbbbbbbbb"


def told(name: str, value: bytes, placeholder: bytes) -> SentValue:
    return SentValue(name=name, placeholder=placeholder.decode(), value=value)


ONE = told("TOKEN", TOKEN, TOKEN_SHOWN)
OTHER = told("PASSWORD", PASSWORD, PASSWORD_SHOWN)


def filter_of(*each: SentValue) -> EchoFilter:
    return EchoFilter(EchoIndex(each))


@pytest.mark.requirement("SEC-5")
def test_an_echoed_request_comes_back_with_placeholders() -> None:
    echoed = {
        "Authorization": f"Bearer {TOKEN.decode()}",
        "url": "/?key=tok-5f9c%2F2e%2B81d7%3D%3D",
        "basic": base64.b64encode(b"me:" + PASSWORD).decode(),
        "debug": PASSWORD.hex(),
        "other": "stays",
    }
    echoes = filter_of(ONE, OTHER)
    answer = echoes.feed(json.dumps(echoed).encode()) + echoes.end()
    shown = json.loads(answer)
    assert shown == {
        "Authorization": f"Bearer {TOKEN_SHOWN.decode()}",
        "url": f"/?key={TOKEN_SHOWN.decode()}",
        "basic": "bWU6" + PASSWORD_SHOWN.decode(),
        "debug": PASSWORD_SHOWN.decode(),
        "other": "stays",
    }
    assert echoes.removed_names == ("TOKEN", "PASSWORD")


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize(
    "written",
    [
        "it&#039;s/mine",
        "it&#X27;s&#x2F;mine",
        "it&#x0027;s&#47;mine",
        "".join(f"&#{ord(c)};" for c in "it's/mine"),
        "".join(f"&#x{ord(c):X};" for c in "it's/mine"),
    ],
)
def test_entities_are_recognised_however_they_are_written(written: str) -> None:
    index = EchoIndex([told("A", b"it's/mine", b"hfsecret_a")])
    assert index.clean(f"<b>{written}</b>".encode()) == b"<b>hfsecret_a</b>"


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("step", [1, 2, 3, 5, 17])
def test_a_value_cut_in_pieces_is_replaced(step: int) -> None:
    body = b"<" + TOKEN + b"|" + PASSWORD + TOKEN + b">" + TOKEN[:-1]
    echoes = filter_of(ONE, OTHER)
    parts = [echoes.feed(body[at : at + step]) for at in range(0, len(body), step)]
    assert b"".join([*parts, echoes.end()]) == (
        b"<" + TOKEN_SHOWN + b"|" + PASSWORD_SHOWN + TOKEN_SHOWN + b">" + TOKEN[:-1]
    )


@pytest.mark.requirement("SEC-5")
@given(st.lists(st.integers(0, 300), max_size=12), st.integers(1, len(TOKEN) - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_waits_does_not_tell_whether_a_guess_is_right(
    sizes: list[int], known: int, is_hex: bool
) -> None:
    """The lengths of what comes out are those that come out of other bytes of the same length."""
    right, wrong = TOKEN[:known], b"Z" * known
    right, wrong = (right.hex().encode(), wrong.hex().encode()) if is_hex else (right, wrong)
    seen = []
    for guess in (right, wrong):
        echoes = filter_of(ONE, OTHER)
        pieces = (echoes.feed(b"." * size + guess) for size in sizes)
        seen.append([*map(len, pieces), len(echoes.end())])
    assert seen[0] == seen[1]
    # Without the end of a value nothing was there to tell; with it, something is.
    echoes = filter_of(ONE)
    assert echoes.feed(b"." + TOKEN) + echoes.end() == b"." + TOKEN_SHOWN


@given(st.binary(min_size=8, max_size=64))
@settings(max_examples=60, deadline=None)
def test_no_form_is_longer_than_what_waits(value: bytes) -> None:
    for form in forms(value):
        longest = b"".join(max(unit, key=len) for unit in form.units)
        assert len(longest) <= max_bytes(len(value))
        echoes = filter_of(told("A", value, b"hfsecret_a"))
        out = b"".join(echoes.feed(longest[at : at + 1]) for at in range(len(longest)))
        assert b"hfsecret_a" in out + echoes.end()


def test_events_are_passed_on_at_once() -> None:
    echoes = filter_of(ONE, OTHER)
    event = b'data: {"delta": "a word of the answer"}\n\n'
    assert [echoes.feed(event) for _ in range(3)] == [event] * 3
    assert [echoes.feed(part) for part in (b"data: x\r\n", b"\r\ndata")] == [
        b"",
        b"data: x\r\n\r\n",
    ]
    assert echoes.end() == b"data"


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("value", [b"\nsecret-key", b"secret\n\nkey-1", b"secret-key\n"])
def test_a_value_of_several_lines_waits_behind_an_empty_one_too(value: bytes) -> None:
    for cut in range(len(value)):
        echoes = filter_of(told("PEM", value, b"hfsecret_pem"))
        body = b"a\n" + value + b"\nb"
        parts = (body[: cut + 2], body[cut + 2 :])
        assert b"".join([*map(echoes.feed, parts), echoes.end()]) == b"a\nhfsecret_pem\nb"


def test_an_answer_without_a_value_names_none() -> None:
    echoes = filter_of(ONE, OTHER)
    assert echoes.feed(b"nothing") + echoes.end() == b"nothing"
    assert echoes.removed_names == ()


def test_one_index_serves_many_answers() -> None:
    index = EchoIndex([ONE, OTHER])
    first, second = EchoFilter(index), EchoFilter(index)
    assert first.feed(b"tok-5f9c") == b""
    assert second.feed(b"/2e+81d7==") + second.end() == b"/2e+81d7=="
    assert first.end() == b"tok-5f9c"
    assert index.clean(b"id=" + TOKEN) == b"id=" + TOKEN_SHOWN


@pytest.mark.requirement("SEC-5")
def test_a_value_told_while_an_answer_comes_is_taken_out_of_its_rest() -> None:
    index = EchoIndex([ONE])
    echoes = EchoFilter(index)
    assert echoes.feed(b"begun\n\n") == b"begun\n\n"
    index.add([OTHER])
    assert echoes.feed(TOKEN + PASSWORD) + echoes.end() == TOKEN_SHOWN + PASSWORD_SHOWN


@pytest.mark.requirement("SEC-5")
def test_what_was_told_is_taken_out_for_good_and_only_where_it_can_be() -> None:
    echoes = Echoes()
    one, both = frozenset({ONE.placeholder}), frozenset({ONE.placeholder, OTHER.placeholder})
    before = echoes.of(both)
    new = told("TOKEN", b"rotated-value", TOKEN_SHOWN)
    for each in (ONE, OTHER, new):
        echoes.add([each])
    body = TOKEN + b" rotated-value " + PASSWORD
    assert before.clean(body) == TOKEN_SHOWN + b" " + TOKEN_SHOWN + b" " + PASSWORD_SHOWN
    assert echoes.of(both) is before
    assert echoes.of(one).clean(body) == TOKEN_SHOWN + b" " + TOKEN_SHOWN + b" " + PASSWORD


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("name", [b"S3cretVaLue", b"x-s3cretvalue", b"S3CRETVALUE-y"])
def test_a_value_as_a_name_is_not_clean(name: bytes) -> None:
    index = EchoIndex([told("A", b"S3cretVaLue", b"hfsecret_a")])
    assert not index.is_clean_name(name)
    assert index.is_clean_name(b"Content-Type")


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"[abcdefgh-ijklmnop]", b"[hfsecret_long]"),
        (b"[abcdefgh-ijklmno]", b"[hfsecret_short-ijklmno]"),
        (b"[xxxxabcdefgh-ijklmnop]", b"[hfsecret_before]"),
        (b"[xxxxabcdefgh]", b"[hfsecret_before]"),
        (b"[YWJjZGVmZ2gtaWprbG1ub3A=]", b"[hfsecret_longA=]"),
    ],
)
def test_nothing_is_left_of_values_that_overlap(text: bytes, shown: bytes) -> None:
    values = {"long": b"abcdefgh-ijklmnop", "short": b"abcdefgh", "before": b"xxxxabcdefgh"}
    for size in (1, 7, len(text)):
        echoes = filter_of(*(told(n, v, b"hfsecret_" + n.encode()) for n, v in values.items()))
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert b"".join([*map(echoes.feed, pieces), echoes.end()]) == shown


def test_a_short_value_stays() -> None:
    echoes = filter_of(told("PIN", b"1234567", b"hfsecret_pin"))
    assert echoes.feed(b"1234567 of 12345678") + echoes.end() == b"1234567 of 12345678"


def test_without_secrets_all_passes() -> None:
    echoes = filter_of()
    assert echoes.feed(TOKEN) == TOKEN
    assert echoes.end() == b""


def test_no_value_is_shown_by_what_holds_it() -> None:
    assert TOKEN.decode() not in repr([ONE, EchoIndex([ONE])])
