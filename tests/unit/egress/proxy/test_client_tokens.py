"""Credentials of a request to the proxy: which client they name, and when they name none."""

from __future__ import annotations

import base64
import hashlib

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.proxy.client_tokens import read_credentials, without_credentials

TOKEN = b"right"
DIGEST = hashlib.sha256(TOKEN).digest()


def basic(text: bytes) -> bytes:
    return b"Basic " + base64.b64encode(text)


def is_agent(value: bytes) -> bool:
    found = read_credentials([(b"host", b"a"), (b"proxy-authorization", value)])
    return found is not None and found.belong_to("agent", DIGEST)


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    "value",
    [
        basic(b"agent:right"),
        basic(b"agent:right").replace(b"Basic", b"bAsIc"),
        b"Bearer right",
        b"bearer  right",
    ],
)
def test_token_names_its_client(value: bytes) -> None:
    assert is_agent(value)


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Basic",
        b"Bearer",
        b"Bearer wrong",
        b"Digest right",
        b"right",
        b"Basic agent:right",
        basic(b"agent:wrong"),
        basic(b"other:right"),
        basic(b"Agent:right"),
        basic(b":right"),
        basic(b"right"),
        basic(b"agent:right\n"),
        basic(b"agent:right:"),
        basic("ägent:right".encode()),
        basic(b"agent:right") + b"!",
        basic(b"agent:right") + b" " * 600,
        basic(b"agent:" + b"x" * 600),
        b"Bearer right," + basic(b"agent:right"),
    ],
)
def test_anything_else_names_no_client(value: bytes) -> None:
    assert not is_agent(value)
    assert is_agent(basic(b"agent:right"))  # the control


@pytest.mark.requirement("NET-8")
def test_two_headers_are_refused_even_if_one_is_right() -> None:
    header = (b"proxy-authorization", b"Bearer right")
    assert read_credentials([header]) is not None
    with pytest.raises(EgressRefused, match="more than one Proxy-Authorization"):
        read_credentials([header, header])


@pytest.mark.requirement("NET-8")
def test_no_token_is_shown_or_forwarded() -> None:
    headers = [(b"host", b"a"), (b"proxy-authorization", b"Bearer right")]
    assert "right" not in repr(read_credentials(headers))
    assert without_credentials(headers) == [(b"host", b"a")]
    assert read_credentials([(b"host", b"a")]) is None
