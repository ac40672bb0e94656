"""Values of secrets are put where they are bound, and nowhere else."""

from __future__ import annotations

import base64

import pytest

from cellwall.core.errors import EgressRefused, VaultError
from cellwall.core.network import Binding, SecretUse
from cellwall.egress.inspection.body_filters import SentValue
from cellwall.egress.inspection.injection import OutgoingHead, inject_secrets

VALUE = b"v@lue/1 2"
SHOWN = "hfsecret_token_abcdefghijklmnopqrstuvwxyz"
MARK = SHOWN.encode()
HEADERS = [(b"accept", b"*/*"), (b"authorization", b"Bearer " + MARK)]
PUT = [(b"accept", b"*/*"), (b"authorization", b"Bearer " + VALUE)]


TOLD = (SentValue(name="TOKEN", placeholder=SHOWN, value=VALUE),)


def use(
    *bindings: Binding, value: bytes = VALUE, name: str = "TOKEN", mark: str = SHOWN
) -> SecretUse:
    return SecretUse(name=name, placeholder=mark, bindings=bindings, reveal=lambda: value)


def injected(
    *uses: SecretUse,
    headers: list[tuple[bytes, bytes]] = HEADERS,
    host: str = "api.example.com",
    port: int = 443,
    method: str = "GET",
    path: str = "/v1/items?x=1",
    is_tls: bool = True,
) -> OutgoingHead:
    return inject_secrets(
        headers, uses, host=host, port=port, method=method, path=path, is_tls=is_tls
    )


BOUND = Binding(host="api.example.com")


@pytest.mark.requirement("SEC-5")
def test_a_value_is_put_into_the_bound_header() -> None:
    given = list(HEADERS)
    assert injected(use(BOUND), headers=given) == OutgoingHead(
        "/v1/items?x=1", PUT, ("TOKEN",), (), TOLD
    )
    assert given == HEADERS


@pytest.mark.requirement("SEC-3", "SEC-5")
@pytest.mark.parametrize(
    ("binding", "asked"),
    [
        (BOUND, {"host": "evil.com"}),
        (BOUND, {"host": "evilapi.example.com"}),
        (BOUND, {"host": "sub.api.example.com"}),
        (BOUND, {"host": "api.example.com.evil.com"}),
        (BOUND, {"port": 8443}),
        (BOUND, {"port": 80, "is_tls": False}),
        (BOUND, {"port": 443, "is_tls": False}),
        (Binding(host="api.example.com", ports=(8080,)), {"port": 8080, "is_tls": False}),
        (Binding(host="*.example.com"), {"host": "example.com"}),
        (Binding(host="*.example.com"), {"host": "evilexample.com"}),
        (Binding(host="*.example.com"), {"host": ".example.com.evil.com"}),
        (Binding(host="api.example.com", methods=("POST",)), {}),
        (Binding(host="api.example.com", methods=("GET",)), {"method": "get"}),
        (Binding(host="api.example.com", path="/v2"), {}),
        (Binding(host="api.example.com", path="/v1"), {"path": "/v1x"}),
        (Binding(host="api.example.com", path="/v1"), {"path": "/v1/../admin"}),
        (Binding(host="api.example.com", path="/v1"), {"path": "/v1/%2e%2e/admin"}),
        (Binding(host="api.example.com", path="/v1"), {"path": "/v1%2f..%2fadmin"}),
        (Binding(host="api.example.com", path="/v1"), {"path": "/admin?/v1"}),
        (Binding(host="api.example.com", name="x-api-key"), {}),
        (Binding(host="api.example.com", place="query", name="authorization"), {}),
        (Binding(host="api.example.com", place="basic", name="password"), {}),
    ],
)
def test_elsewhere_the_placeholder_stays(binding: Binding, asked: dict) -> None:
    path = asked.get("path", "/v1/items?x=1")
    assert injected(use(binding), **asked) == OutgoingHead(path, HEADERS, (), ("TOKEN",))
    # The same secret, bound to just this request, is put in: nothing else kept it out.
    at = {"host": "api.example.com", "port": 443, "path": "/v1/items?x=1", **asked}
    there = Binding(host=at["host"], ports=(at["port"],))
    assert injected(use(binding, there), **{**asked, "is_tls": True}).headers == PUT


@pytest.mark.parametrize(
    ("binding", "asked"),
    [
        (Binding(host="*.example.com"), {}),
        (Binding(host="*.example.com"), {"host": "a.b.example.com"}),
        (Binding(host="api.example.com", ports=(80,)), {"port": 80, "is_tls": False}),
        (Binding(host="api.example.com", ports=(443, 8443)), {"port": 8443}),
        (Binding(host="api.example.com", methods=("POST", "GET")), {}),
        (Binding(host="api.example.com", path="/v1"), {}),
        (Binding(host="api.example.com", path="/v1/"), {"path": "/v1"}),
        (Binding(host="api.example.com", path="/v1/items"), {}),
        (Binding(host="api.example.com"), {"path": "/projects/a%2Fb"}),
        (Binding(host="api.example.com", name="Authorization"), {}),
    ],
)
def test_a_binding_is_met(binding: Binding, asked: dict) -> None:
    assert injected(use(binding), **asked).headers == PUT


@pytest.mark.requirement("SEC-5")
def test_only_the_bound_header_gets_the_value() -> None:
    headers = [*HEADERS, (b"x-copy", MARK), (MARK, b"1"), (b"Authorization", MARK)]
    result = injected(use(BOUND), headers=headers, path=f"/{SHOWN}?authorization={SHOWN}")
    assert result == OutgoingHead(
        f"/{SHOWN}?authorization={SHOWN}",
        [*PUT, (b"x-copy", MARK), (MARK, b"1"), (b"Authorization", VALUE)],
        ("TOKEN",),
        ("TOKEN",),
        TOLD,
    )


@pytest.mark.requirement("SEC-5")
def test_a_value_is_put_into_the_bound_field_of_a_query() -> None:
    binding = Binding(host="api.example.com", place="query", name="api key")
    path = f"/{SHOWN}?a={SHOWN}&api+key={SHOWN}&api%20key=k-{SHOWN}&{SHOWN}&{SHOWN}=1"
    assert injected(use(binding), headers=[], path=path) == OutgoingHead(
        f"/{SHOWN}?a={SHOWN}&api+key=v%40lue%2F1%202&api%20key=k-v%40lue%2F1%202&{SHOWN}&{SHOWN}=1",
        [],
        ("TOKEN",),
        ("TOKEN",),
        TOLD,
    )


def test_a_value_cannot_add_fields_to_a_query() -> None:
    binding = Binding(host="api.example.com", place="query", name="key")
    result = injected(
        use(binding, value=b"a&admin=1#\r\n\x00\xff"), headers=[], path=f"/?key={SHOWN}"
    )
    assert result.path == "/?key=a%26admin%3D1%23%0D%0A%00%FF"


def basic(user: bytes, password: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Basic " + base64.b64encode(user + b":" + password))


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize(
    ("part", "sent", "put", "stayed"),
    [
        ("password", (b"me", MARK), (b"me", VALUE), ()),
        ("password", (b"me", b"a:" + MARK), (b"me", b"a:" + VALUE), ()),
        ("password", (MARK, MARK), (MARK, VALUE), ("TOKEN",)),
        ("username", (MARK, b"x-oauth-basic"), (VALUE, b"x-oauth-basic"), ()),
        ("username", (MARK, MARK), (VALUE, MARK), ("TOKEN",)),
    ],
)
def test_a_value_is_put_into_the_bound_part_of_basic_authentication(
    part: str, sent: tuple, put: tuple, stayed: tuple
) -> None:
    binding = Binding(host="api.example.com", place="basic", name=part)
    result = injected(use(binding), headers=[basic(*sent)])
    assert result == OutgoingHead("/v1/items?x=1", [basic(*put)], ("TOKEN",), stayed, TOLD)


@pytest.mark.parametrize(
    "value", [b"Basic !!!", b"Basic", b"Basic bm9jb2xvbg==", b"Digest bWU6eA=="]
)
def test_what_is_no_basic_authentication_stays(value: bytes) -> None:
    binding = Binding(host="api.example.com", place="basic", name="password")
    headers = [(b"authorization", value), (b"x", MARK)]
    assert injected(use(binding), headers=headers).headers == headers


def test_a_placeholder_hidden_in_basic_authentication_is_told() -> None:
    result = injected(use(BOUND), headers=[basic(b"me", MARK)])
    assert result == OutgoingHead("/v1/items?x=1", [basic(b"me", MARK)], (), ("TOKEN",))


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize(
    "value",
    [
        *(b"a-value\r\nX: y", b"a-value\nb", b"a-value\x00b", b"a-value\x7f", b"a-value\x1b[0m"),
        *(b"a-value ", b"", b"7 bytes", b"x" * 20_000),
    ],
)
def test_a_value_that_would_break_a_header_is_refused(value: bytes) -> None:
    with pytest.raises(EgressRefused) as error:
        injected(use(BOUND, value=value))
    assert error.value.code == "CW-SECRET-UNFIT"
    assert len(value) < 3 or value.decode() not in str(error.value)


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("before", [b"A" * 33, b"Bearer " + b"A" * 26, MARK, MARK * 100])
def test_code_cannot_choose_where_a_value_stands_in_its_field(before: bytes) -> None:
    """A server that shows the first bytes of a field would show just so much of the value."""
    query = Binding(host="api.example.com", place="query", name="key")
    password = Binding(host="api.example.com", place="basic", name="password")
    for binding, headers, path in (
        (BOUND, [(b"authorization", before + MARK)], "/v1"),
        (query, [], f"/v1?key={before.decode().replace(' ', '+')}{SHOWN}"),
        (password, [basic(b"me", before + MARK)], "/v1"),
    ):
        result = injected(use(binding), headers=headers, path=path)
        assert result == OutgoingHead(path, headers, (), ("TOKEN",))
    near = injected(use(BOUND), headers=[(b"authorization", b"A" * 32 + MARK + b"B" * 100)])
    assert near.headers == [(b"authorization", b"A" * 32 + VALUE + b"B" * 100)]


def test_a_value_is_asked_for_once_in_a_request() -> None:
    """It may be another one a moment later; what is told is what was put in."""
    values = iter([b"the first value", b"another value"])
    changing = SecretUse(
        name="TOKEN",
        placeholder=SHOWN,
        bindings=(BOUND, Binding(host="api.example.com", place="query", name="key")),
        reveal=lambda: next(values),
    )
    result = injected(changing, path=f"/?key={SHOWN}")
    assert (result.path, result.headers[1][1]) == (
        "/?key=the%20first%20value",
        b"Bearer the first value",
    )
    assert result.sent_values == (
        SentValue(name="TOKEN", placeholder=SHOWN, value=b"the first value"),
    )


def test_a_name_with_a_colon_is_refused_in_basic_authentication() -> None:
    binding = Binding(host="api.example.com", place="basic", name="username")
    with pytest.raises(EgressRefused) as error:
        injected(use(binding, value=b"me:admin"), headers=[basic(MARK, b"x")])
    assert error.value.code == "CW-SECRET-UNFIT"


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "connection"])
def test_no_value_is_put_where_a_request_is_framed(name: str) -> None:
    headers = [(name.encode(), MARK)]
    result = injected(use(Binding(host="api.example.com", name=name)), headers=headers)
    assert result == OutgoingHead("/v1/items?x=1", headers, (), ("TOKEN",))


@pytest.mark.requirement("SEC-3")
def test_a_lease_that_has_ended_refuses_the_request() -> None:
    def ended() -> bytes:
        raise VaultError("the lease has ended", hint="Run it again.")

    over = SecretUse(name="TOKEN", placeholder=SHOWN, bindings=(BOUND,), reveal=ended)
    with pytest.raises(VaultError):
        injected(over)
    assert injected(over, headers=[]).used == ()


def test_secrets_do_not_take_each_others_place() -> None:
    other = "hfsecret_other_abcdefghijklmnopqrstuvwxyz"
    key = use(
        Binding(host="api.example.com", name="x-key"),
        value=SHOWN.encode(),
        name="OTHER",
        mark=other,
    )
    headers = [*HEADERS, (b"x-key", other.encode())]
    # A value that looks like a placeholder is not taken for one where it is not bound.
    assert injected(key, use(BOUND), headers=headers).headers == [*PUT, (b"x-key", MARK)]


def test_a_head_without_placeholders_is_left_alone() -> None:
    headers = [(b"accept", b"*/*")]
    assert injected(use(BOUND), headers=headers) == OutgoingHead("/v1/items?x=1", headers, (), ())


def test_no_value_is_shown_by_what_holds_it() -> None:
    assert repr(injected(use(BOUND))) == "OutgoingHead(used=('TOKEN',), stayed=())"
