"""A secret that a server shows back becomes its placeholder before the code sees it."""

from __future__ import annotations

import base64
import json

import pytest

from holdfast.core.errors import VaultError
from holdfast.core.network import SecretUse
from holdfast.egress.echoes import EchoFilter, EchoIndex

TOKEN = b"tok-5f9c/2e+81d7=="
PASSWORD = b"correct horse battery"
TOKEN_SHOWN = b"hfsecret_token_aaaaaaaaaaaaaaaaaaaaaaaaaa"
PASSWORD_SHOWN = b"hfsecret_password_bbbbbbbbbbbbbbbbbbbbbbbbbb"


def use(name: str, value: bytes, placeholder: bytes) -> SecretUse:
    return SecretUse(name=name, placeholder=placeholder.decode(), bindings=(), reveal=lambda: value)


USES = (use("TOKEN", TOKEN, TOKEN_SHOWN), use("PASSWORD", PASSWORD, PASSWORD_SHOWN))


@pytest.mark.requirement("SEC-5")
def test_an_echoed_request_comes_back_with_placeholders() -> None:
    echoed = {
        "Authorization": f"Bearer {TOKEN.decode()}",
        "url": "/?key=tok-5f9c%2F2e%2B81d7%3D%3D",
        "basic": base64.b64encode(b"me:" + PASSWORD).decode(),
        "debug": PASSWORD.hex(),
        "other": "stays",
    }
    echoes = EchoFilter(USES)
    answer = echoes.feed(json.dumps(echoed).encode()) + echoes.end()
    shown = json.loads(answer)
    assert shown == {
        "Authorization": f"Bearer {TOKEN_SHOWN.decode()}",
        "url": f"/?key={TOKEN_SHOWN.decode()}",
        "basic": "bWU6" + PASSWORD_SHOWN.decode(),
        "debug": PASSWORD_SHOWN.decode(),
        "other": "stays",
    }
    assert echoes.found == ("TOKEN", "PASSWORD")


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("step", [1, 2, 3, 5, 17])
def test_a_value_cut_in_pieces_is_replaced(step: int) -> None:
    body = b"<" + TOKEN + b"|" + PASSWORD + TOKEN + b">" + TOKEN[:-1]
    echoes = EchoFilter(USES)
    parts = [echoes.feed(body[at : at + step]) for at in range(0, len(body), step)]
    assert b"".join([*parts, echoes.end()]) == (
        b"<" + TOKEN_SHOWN + b"|" + PASSWORD_SHOWN + TOKEN_SHOWN + b">" + TOKEN[:-1]
    )


def test_events_are_passed_on_at_once() -> None:
    echoes = EchoFilter(USES)
    event = b'data: {"delta": "a word of the answer"}\n\n'
    assert [echoes.feed(event) for _ in range(3)] == [event] * 3


def test_only_what_may_be_a_beginning_waits() -> None:
    echoes = EchoFilter(USES)
    assert echoes.feed(b"data: tok-5f") == b"data: "
    assert echoes.feed(b"ine") == b"tok-5fine"
    assert echoes.feed(b"data: tok-5f") == b"data: "
    assert echoes.feed(TOKEN[6:] + b".") == TOKEN_SHOWN + b"."
    assert echoes.feed(b"tok-") == b""
    assert echoes.end() == b"tok-"


def test_an_answer_without_a_value_names_none() -> None:
    echoes = EchoFilter(USES)
    assert echoes.feed(b"nothing") + echoes.end() == b"nothing"
    assert echoes.found == ()


def test_one_index_serves_many_answers() -> None:
    index = EchoIndex(USES)
    first, second = EchoFilter(index), EchoFilter(index)
    assert first.feed(b"tok-5f9c") == b""
    assert second.feed(b"/2e+81d7==") + second.end() == b"/2e+81d7=="
    assert first.end() == b"tok-5f9c"
    assert index.cleaned(b"id=" + TOKEN) == b"id=" + TOKEN_SHOWN


def test_the_longer_of_two_values_with_one_beginning_is_not_torn() -> None:
    short, long = b"abcdefgh", b"abcdefgh-ijklmnop"
    uses = (use("LONG", long, b"hfsecret_long"), use("SHORT", short, b"hfsecret_short"))
    echoes = EchoFilter(uses)
    answer = echoes.feed(b"[" + long + b"]") + echoes.end()
    # The shortest counts, for the longer one might not have come yet; no whole value is left.
    assert answer == b"[hfsecret_short-ijklmnop]"


def test_a_short_value_stays() -> None:
    echoes = EchoFilter([use("PIN", b"1234567", b"hfsecret_pin")])
    assert echoes.feed(b"1234567 of 12345678") + echoes.end() == b"1234567 of 12345678"


def test_without_secrets_all_passes() -> None:
    echoes = EchoFilter(())
    assert echoes.feed(TOKEN) + echoes.end() == TOKEN


@pytest.mark.requirement("SEC-3")
def test_an_ended_lease_gives_no_filter() -> None:
    def ended() -> bytes:
        raise VaultError("the lease has ended", mend="Run it again.")

    with pytest.raises(VaultError):
        EchoFilter([SecretUse(name="A", placeholder="hfsecret_a", bindings=(), reveal=ended)])
