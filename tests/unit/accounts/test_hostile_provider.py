"""An OpenID provider that was taken over, or that somebody speaks for: forged tokens, answers of
another provider, bombs, and answers that never end. A real server over TLS (SRV-2)."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
import trustme
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from cellwall.accounts.oidc import provider as provider_module
from cellwall.accounts.oidc.provider import ProviderSettings
from cellwall.accounts.oidc.sign_in import OidcSettings, OidcSignIn
from cellwall.core.errors import CellwallError
from unit.accounts.worlds import ADDRESS, AUDIENCE, World, in_world

pytestmark = pytest.mark.requirement("SRV-2")
REFUSED, FAILED = "CW-SIGN-IN-IDENTITY", "CW-SIGN-IN-PROVIDER"
SECRET = "the client's secret"


@dataclass
class HostileProvider:
    """What it answers can be changed by each test."""

    issuer: str
    ca_file: str
    key: RSAKey
    metadata: dict[str, Any] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    token: str = ""
    encoding: str = ""
    raw: bytes | None = None
    waiting: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)

    def reset(self) -> None:
        self.metadata = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        }
        self.keys = [{**self.key.as_dict(private=False), "kid": "one"}]
        self.encoding, self.raw, self.token = "", None, ""
        self.waiting.set()
        self.asked.clear()

    def answer(self, path: str) -> bytes:
        if self.raw is not None:
            return self.raw
        found: dict[str, Any] = self.metadata
        if path == "/keys":
            found = {"keys": self.keys}
        elif path == "/token":
            found = {"id_token": self.token, "access_token": "x", "token_type": "Bearer"}
        return json.dumps(found).encode()

    def claims(self, nonce: object, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        found = {"iss": self.issuer, "sub": "ann", "aud": "cellwall", "exp": now + 60, "iat": now,
                 "nonce": nonce, **changes}  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, self.key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileProvider]:
    folder: Path = tmp_path_factory.mktemp("hostile-provider")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    found: HostileProvider

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            found.waiting.wait(60)
            body = found.answer(self.path)
            self.send_response(200)
            if found.encoding:
                self.send_header("Content-Encoding", found.encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    issuer = f"https://localhost:{httpd.server_address[1]}"
    key = RSAKey.generate_key(2048)
    found = HostileProvider(issuer, str(folder / "ca.pem"), key)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield found
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def hostile(server: HostileProvider) -> HostileProvider:
    server.reset()
    return server


@asynccontextmanager
async def service(world: World, hostile: HostileProvider) -> AsyncIterator[OidcSignIn]:
    settings = replace(
        world.settings,
        provider=ProviderSettings(
            issuer=hostile.issuer, client_id="cellwall", client_secret=SECRET,
            ca_file=hostile.ca_file,
        ),
        oidc=OidcSettings(redirect_uri="https://cellwall.example/callback", creates_guests=True),
    )  # fmt: skip
    world.clock.now_s = time.time()
    found = world.another(settings=settings).oidc
    assert found is not None
    try:
        yield found
    finally:
        await found.close()


async def code_of(call: Awaitable[object]) -> str:
    try:
        await call
    except CellwallError as error:
        return error.code
    return "accepted"


def encoded(*parts: Any) -> str:
    texts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
    return ".".join(base64.urlsafe_b64encode(text).rstrip(b"=").decode() for text in texts)


def signed_with(secret: bytes, claims: dict[str, Any]) -> str:
    """By hand: the library refuses to make such a token."""
    signed = encoded({"alg": "HS256", "kid": "one"}, claims)
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


def hmac_with_the_public_key(hostile: HostileProvider, nonce: str) -> str:
    return signed_with(hostile.key.as_pem(private=False), hostile.claims(nonce))


def hmac_with_the_secret(hostile: HostileProvider, nonce: str) -> str:
    return signed_with(SECRET.encode(), hostile.claims(nonce))


def own_key_in_the_header(hostile: HostileProvider, nonce: str) -> str:
    key = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "kid": "one", "jwk": key.as_dict(private=False)}
    return jwt.encode(header, hostile.claims(nonce), key)


def key_by_address(hostile: HostileProvider, nonce: str) -> str:
    key = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "kid": "../../two", "jku": f"{hostile.issuer}/other"}
    return jwt.encode(header, hostile.claims(nonce), key)


def another_type_of_key(hostile: HostileProvider, nonce: str) -> str:
    return jwt.encode(
        {"alg": "ES256", "kid": "one"}, hostile.claims(nonce), ECKey.generate_key("P-256")
    )


def changed_claims(hostile: HostileProvider, nonce: str) -> str:
    header, _, signature = hostile.sign(hostile.claims(nonce)).split(".")
    return f"{header}.{encoded(hostile.claims(nonce, sub='root'))}.{signature}"


FORGED: dict[str, Any] = {
    "alg none": lambda each, nonce: f"{encoded({'alg': 'none', 'kid': 'one'}, each.claims(nonce))}.",
    "alg None": lambda each, nonce: f"{encoded({'alg': 'nOnE'}, each.claims(nonce))}.",
    "HMAC with the public key": hmac_with_the_public_key,
    "HMAC with the client's secret": hmac_with_the_secret,
    "a key in the header": own_key_in_the_header,
    "a key by address": key_by_address,
    "another type of key": another_type_of_key,
    "changed claims": changed_claims,
    "another audience": lambda each, nonce: each.sign(each.claims(nonce, aud="other")),
    "two audiences, no azp": lambda each, nonce: each.sign(each.claims(nonce, aud=["cellwall", "other"])),
    "another authorised party": lambda each, nonce: each.sign(each.claims(nonce, azp="other")),
    "another issuer": lambda each, nonce: each.sign(each.claims(nonce, iss="https://evil.test")),
    "an issuer with a slash": lambda each, nonce: each.sign(each.claims(nonce, iss=f"{each.issuer}/")),
    "another nonce": lambda each, nonce: each.sign(each.claims(nonce[:-1])),
    "no nonce": lambda each, _: each.sign(each.claims(None)),
    "a list as nonce": lambda each, nonce: each.sign(each.claims([nonce])),
    "expired": lambda each, nonce: each.sign(each.claims(nonce, exp=int(time.time()) - 120)),
    "no expiry": lambda each, nonce: each.sign(each.claims(nonce, exp=None)),
    "of yesterday": lambda each, nonce: each.sign(each.claims(nonce, iat=int(time.time()) - 86_400)),
    "no subject": lambda each, nonce: each.sign(each.claims(nonce, sub=None)),
    "a number as subject": lambda each, nonce: each.sign(each.claims(nonce, sub=7)),
    "a control character in the subject": lambda each, nonce: each.sign(each.claims(nonce, sub="ann\0")),
    "critical header": lambda each, nonce: each.sign(each.claims(nonce), crit=["kid"]),
    "a list as key id": lambda each, nonce: f"{encoded({'alg': 'RS256', 'kid': ['one']}, each.claims(nonce), b'x')}",
    "a deep header": lambda *_: f"{encoded(b'[' * 20_000, b'{}', b'x')}",
    "no token": lambda *_: "x",
    "a huge token": lambda *_: "a." + "b" * 100_000 + ".c",
}  # fmt: skip


async def finish(oidc: OidcSignIn, hostile: HostileProvider, make: Any, *, address: str) -> str:
    begun = await oidc.begin(audience=AUDIENCE, address=address)
    query = parse_qs(urlsplit(begun.url).query)
    hostile.token = make(hostile, query["nonce"][0])
    answer = {"state": query["state"][0], "code": "any"}
    pair = await oidc.finish(answer, browser_secret=begun.browser_secret, address=address)
    return pair.user_id


@pytest.mark.slow
def test_a_forged_token_signs_nobody_in(sqlite_settings, hostile):
    async def go(world: World) -> None:
        async with service(world, hostile) as oidc:
            accepted = []
            for number, (name, make) in enumerate(FORGED.items()):
                address = f"198.51.100.{number}"  # the limit of guesses is another test
                code = await code_of(finish(oidc, hostile, make, address=address))
                if code != REFUSED:
                    accepted.append((name, code))
            assert accepted == []
            right = lambda each, nonce: each.sign(each.claims(nonce))  # noqa: E731  # as above
            assert await finish(oidc, hostile, right, address=ADDRESS)  # the control

    in_world(sqlite_settings, go)


@pytest.mark.slow
def test_a_key_set_with_tricks_signs_nobody_in(sqlite_settings, hostile):
    other = RSAKey.generate_key(2048)
    own = {**hostile.key.as_dict(private=False), "kid": "one"}

    def sets() -> Iterator[tuple[list[dict[str, Any]], Any]]:
        right = lambda each, nonce: each.sign(each.claims(nonce))  # noqa: E731  # as above
        yield [own, {**other.as_dict(private=False), "kid": "one"}], right  # one id, two keys
        yield [{**own, "use": "enc"}], right
        yield [{**own, "alg": "PS256"}], right
        yield [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}], hmac_with_the_secret
        yield [{**own, "n": "AQAB"}], right
        yield [{**own, "n": 7}], right
        yield [], right

    async def go(world: World) -> None:
        for number, (keys, make) in enumerate(sets()):
            hostile.keys = keys
            async with service(world, hostile) as oidc:
                address = f"198.51.100.{number}"
                assert await code_of(finish(oidc, hostile, make, address=address)) == REFUSED, (
                    number
                )

    in_world(sqlite_settings, go)


BOMBS: dict[str, tuple[str, bytes]] = {
    "huge": ("", b" " * 300_000 + b"{}"),
    "deep": ("", b"[" * 100_000),
    "no JSON": ("", b"\xff\xfe"),
    "a list": ("", b"[]"),
    "a bomb": ("gzip", gzip.compress(b" " * 50_000_000)),
    "compressed": ("gzip", gzip.compress(b"{}")),
}


@pytest.mark.parametrize(("encoding", "raw"), BOMBS.values(), ids=BOMBS.keys())
def test_an_answer_that_is_none_is_a_failure(sqlite_settings, hostile, encoding, raw):
    async def go(world: World) -> None:
        async with service(world, hostile) as oidc:
            hostile.encoding, hostile.raw = encoding, raw
            assert await code_of(oidc.begin(audience=AUDIENCE, address=ADDRESS)) == FAILED
            hostile.encoding, hostile.raw = "", None
            assert await oidc.begin(audience=AUDIENCE, address=ADDRESS)  # the control

    in_world(sqlite_settings, go)


def test_endpoints_without_tls_and_of_another_issuer_are_refused(sqlite_settings, hostile):
    changes = (
        {"issuer": "https://evil.test"}, {"token_endpoint": "http://localhost/token"},
        {"token_endpoint": "https://a:b@localhost/"}, {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"}, {"jwks_uri": None},
        {"id_token_signing_alg_values_supported": ["none", "HS256"]},
    )  # fmt: skip

    async def go(world: World) -> None:
        for change in changes:
            hostile.reset()
            hostile.metadata.update(change)
            async with service(world, hostile) as oidc:
                begin = oidc.begin(audience=AUDIENCE, address=ADDRESS)
                assert await code_of(begin) == FAILED, change

    in_world(sqlite_settings, go)


def test_many_who_wait_for_a_silent_provider_wait_once(sqlite_settings, hostile, monkeypatch):
    """Each would else wait for all who came before: minutes, for a link that anybody can open."""
    monkeypatch.setattr(provider_module, "_DEADLINE_S", 0.5)

    async def go(world: World) -> None:
        async with service(world, hostile) as oidc:
            hostile.waiting.clear()
            codes = []

            async def begin(address: str) -> None:
                codes.append(await code_of(oidc.begin(audience=AUDIENCE, address=address)))

            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(begin, f"192.0.2.{number}")
            assert codes == [FAILED] * 8
            # Seven of eight gave up while they waited; one after the other, each would have asked.
            assert len(hostile.asked) <= 2
            hostile.waiting.set()
            assert await oidc.begin(audience=AUDIENCE, address=ADDRESS)  # the control

    in_world(sqlite_settings, go)
