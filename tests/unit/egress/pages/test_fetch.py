"""A page from outside, by the rules of egress (NET-4): real servers, names of our own."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cellwall import __version__
from cellwall.core.errors import AuditFailed, EgressRefused
from cellwall.core.network import Page
from cellwall.core.types import FetchUrl, Json
from cellwall.egress.destinations.addresses import Address
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.destinations.header_rules import parse_header_rule
from cellwall.egress.inspection.leak_scan import KnownIndex
from cellwall.egress.limits import EgressSettings, timeout_error
from cellwall.egress.pages.fetch import PageFetch
from cellwall.egress.proxy.certificate_authority import Authority
from unit.egress.loopback import system_trust

HERE = "127.0.0.1"
METADATA = "169.254.169.254"
LONG_S = 60.0

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
Reply = bytes | Handler


def answer(
    body: bytes = b"hello", *, kind: str | None = "text/plain", status: int = 200, **headers: str
) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def leads_to(where: str, status: int = 302) -> bytes:
    return answer(b"", status=status, Location=where)


@dataclass
class Names:
    """A resolver; each name has its answers, of which the last one stays."""

    answers: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    async def addresses(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        found = self.answers[host]
        text = found.pop(0) if len(found) > 1 else found[0]
        return [ip_address(part) for part in text.split()]


@dataclass
class Web:
    """One server for all names, what it was asked, and what was recorded of it."""

    port: int
    replies: dict[str, Reply]
    heads: list[bytes] = field(default_factory=list)
    record: list[dict[str, Json]] = field(default_factory=list)
    record_fails: bool = False
    tls: ssl.SSLContext | None = None
    names: Names = field(default_factory=lambda: Names({}))

    async def write(self, body: dict[str, Json]) -> None:
        if self.record_fails:
            raise AuditFailed("no disk")
        self.record.append(body)

    async def fetch(
        self,
        url: str,
        *,
        allow: Sequence[str] = ("docs.example.com",),
        form: Any = "markdown",
        known: dict[str, bytes] | None = None,
        **changes: Any,
    ) -> Page:
        """`{}` in URL and rules is the port."""
        for name in ("docs.example.com", "www.example.com", "other.example.org"):
            self.names.answers.setdefault(name, [HERE])
        settings: dict[str, Any] = {
            "dangerously_allow_addresses": (ip_network("127.0.0.0/8"),),
            "fetch_timeout_s": LONG_S,
            "head_timeout_s": LONG_S,
            "connect_timeout_s": LONG_S,
            **changes,
        }
        rules = [rule if "/" in rule else f"{rule}:{self.port}" for rule in allow]
        fetch = PageFetch(
            allowlist=Allowlist.of(rule.format(self.port) for rule in rules),
            settings=EgressSettings(**settings),
            resolver=self.names,
            own=frozenset(),
            known=KnownIndex(known or {}),
            tls=self.tls or system_trust(),
            record=self.write,
        )
        return await fetch.run(FetchUrl(url.format(self.port), form))


@asynccontextmanager
async def web(replies: dict[str, Reply], *, tls: ssl.SSLContext | None = None) -> Any:
    found = Web(port=0, replies=replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found.heads.append(head)
            reply = found.replies[head.split()[1].decode()]
            if isinstance(reply, bytes):
                writer.write(reply.replace(b"{}", str(found.port).encode()))
                await writer.drain()
            else:
                await reply(head, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HERE, 0, ssl=tls)
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


def fetched(url: str, replies: dict[str, Reply], **given: Any) -> Page:
    async def run() -> Page:
        async with web(replies) as found:
            page = await found.fetch(url, **given)
            assert isinstance(page, Page)
            return page

    return asyncio.run(run())


def refused(url: str, replies: dict[str, Reply], **given: Any) -> tuple[EgressRefused, Web]:
    async def run() -> tuple[EgressRefused, Web]:
        async with web(replies) as found:
            with pytest.raises(EgressRefused) as raised:
                await found.fetch(url, **given)
            return raised.value, found

    return asyncio.run(run())


PAGE = "http://docs.example.com:{}/page"


@pytest.mark.requirement("NET-4", "AUD-1")
def test_page_is_fetched_as_markdown_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy of the environment would see every fetch; nothing listens at this one.
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    body = b"<title>T</title><h1>Docs</h1><p>See <a href='../x?a=1'>this</a>."

    async def run() -> None:
        async with web({"/page?q=1": answer(body, kind="text/html; charset=utf-8")}) as found:
            page = await found.fetch(PAGE + "?q=1#there")
            at = f"http://docs.example.com:{found.port}"
            assert page == Page(
                url=f"{at}/page?q=1",
                status=200,
                content_type="text/html",
                text=f"# Docs\n\nSee [this]({at}/x?a=1).",
                body=body,
            )
            assert found.heads == [
                f"GET /page?q=1 HTTP/1.1\r\nHost: docs.example.com:{found.port}\r\n"
                f"User-Agent: Cellwall/{__version__}\r\n"
                "Accept: text/markdown, text/html;q=0.9, text/*;q=0.8, application/json;q=0.8, "
                "*/*;q=0.1\r\nAccept-Encoding: gzip, identity\r\nConnection: close\r\n\r\n".encode()
            ]
            opened, closed = found.record
            rule = f"docs.example.com:{found.port}"
            about = {"connection": 1, "host": "docs.example.com", "port": found.port, "rule": rule}
            assert opened == {
                **about,
                "event": "opened",
                "addresses": [HERE],
                "via": "fetch",
                "url": f"{at}/page?q=1",
            }
            assert isinstance(closed.pop("duration_s"), float)
            assert closed == {
                **about,
                "event": "closed",
                "bytes_up": len(found.heads[0]),
                "bytes_down": len(found.replies["/page?q=1"]),
                "status": 200,
            }

    asyncio.run(run())


@pytest.mark.requirement("NET-2", "NET-4")
def test_rules_on_headers_hold_for_fetches() -> None:
    rules = {
        verb: (parse_header_rule(f"docs.example.com {verb}"),)
        for verb in ("require x-version", "only x-a", "set x-tenant: ours")
    }

    async def run() -> None:
        async with web({"/page": answer()}) as found:
            await found.fetch(PAGE, header_rules=rules["only x-a"])
            await found.fetch(PAGE, header_rules=rules["set x-tenant: ours"])
            assert [b"x-tenant: ours" in head for head in found.heads] == [False, True]

    asyncio.run(run())
    error, found = refused(PAGE, {"/page": answer()}, header_rules=rules["require x-version"])
    assert (error.code, found.heads, found.names.asked) == ("CW-HEADER-RULE", [], [])


@pytest.mark.requirement("NET-3", "NET-4")
def test_redirects_are_followed_and_told_and_each_one_is_recorded() -> None:
    async def run() -> None:
        replies: dict[str, Reply] = {
            "/a": leads_to("b?x=1", 301),
            "/b?x=1": leads_to("//other.example.org:{}/c", 303),
            "/c": leads_to("http://OTHER.example.org.:{}/d#x", 308),
            "/d": answer(b"end"),
        }
        async with web(replies) as found:
            allow = ("docs.example.com", "other.example.org")
            page = await found.fetch("http://docs.example.com:{}/a", allow=allow)
            one, two = (f"http://{name}:{found.port}" for name in ("docs.example.com", allow[1]))
            assert (page.url, page.text) == (f"{two}/d", "end")
            assert page.redirects == (f"{one}/a", f"{one}/b?x=1", f"{two}/c")
            assert [(told["event"], told["connection"], told["host"]) for told in found.record] == [
                (event, number, host)
                for number, host in enumerate((allow[0], allow[0], allow[1], allow[1]), 1)
                for event in ("opened", "closed")
            ]
            # Each hop is a new question: no address of an earlier one is used again.
            assert found.names.asked == [allow[0], allow[0], allow[1], allow[1]]

    asyncio.run(run())


@pytest.mark.requirement("NET-3", "NET-4")
@pytest.mark.parametrize(
    ("where", "code"),
    [
        (f"http://{METADATA}/latest/meta-data/", "CW-NOT-ALLOWED"),
        (f"http://{METADATA}:{{}}/latest/meta-data/", "CW-ADDRESS"),
        ("http://www.example.com:{}/", "CW-NOT-ALLOWED"),
        ("//other.example.org:{}/", "CW-ADDRESS"),
        ("http://2852039166/", "CW-BAD-HOST"),
        ("http://0x7f.1/", "CW-BAD-HOST"),
        ("http://[::ffff:127.0.0.1]:{}/", "CW-NOT-ALLOWED"),
        ("http://docs.example.com:{}@www.example.com/", "CW-BAD-URL"),
        ("http://docs.example.com:{}\\@www.example.com/", "CW-BAD-URL"),
        ("/\\www.example.com/", "CW-BAD-URL"),
        ("http://docs.example.com:22/", "CW-NOT-ALLOWED"),
        ("file:///etc/passwd", "CW-BAD-URL"),
        ("javascript:alert(1)", "CW-BAD-URL"),
        ("data:text/plain,x", "CW-BAD-URL"),
        ("ftp://docs.example.com/", "CW-BAD-URL"),
        ("/a b", "CW-BAD-URL"),
        ("/" + "a" * 9000, "CW-BAD-URL"),
    ],
)
def test_redirect_is_judged_as_any_other_url(where: str, code: str) -> None:
    async def run() -> None:
        replies: dict[str, Reply] = {"/page": leads_to(where), "/": answer(), "/ok": answer()}
        async with web(replies) as found:
            # This name may be reached by the rules, but not at the address it has.
            found.names.answers["other.example.org"] = [f"{HERE} {METADATA}"]
            allow = ("docs.example.com", "other.example.org", METADATA)
            with pytest.raises(EgressRefused) as raised:
                await found.fetch(PAGE, allow=allow)
            assert raised.value.code == code
            assert len(found.heads) == 1
            assert found.record[-1]["event"] == "refused"
            assert found.record[-1]["code"] == code
            # Control: the same redirect to where it may go is followed.
            found.replies["/page"] = leads_to("http://docs.example.com:{}/ok")
            assert (await found.fetch(PAGE, allow=allow)).text == "hello"

    asyncio.run(run())


@pytest.mark.requirement("NET-3")
def test_name_that_changes_its_answer_is_not_asked_twice_for_one_connection() -> None:
    async def run() -> None:
        async with web({"/page": answer()}) as found:
            found.names.answers["docs.example.com"] = [HERE, METADATA]
            assert (await found.fetch(PAGE)).text == "hello"
            assert found.names.asked == ["docs.example.com"]
            with pytest.raises(EgressRefused, match="resolves to a blocked address"):
                await found.fetch(PAGE)

    asyncio.run(run())


@pytest.mark.requirement("NET-4")
def test_five_redirects_are_followed_and_a_sixth_is_refused() -> None:
    chain: dict[str, Reply] = {"/6": answer(), **{f"/{n}": leads_to(f"/{n + 1}") for n in range(6)}}
    assert len(fetched("http://docs.example.com:{}/1", chain).redirects) == 5
    error, found = refused("http://docs.example.com:{}/0", chain)
    assert (error.code, len(found.heads)) == ("CW-REDIRECT", 6)


@pytest.mark.requirement("NET-4")
def test_circle_of_redirects_ends_at_once() -> None:
    error, found = refused(PAGE, {"/page": leads_to("/b"), "/b": leads_to("/page")})
    assert (error.code, len(found.heads)) == ("CW-REDIRECT", 2)


@pytest.mark.requirement("NET-4")
def test_redirect_without_a_location_is_a_page() -> None:
    page = fetched(PAGE, {"/page": answer(b"choose", status=302)})
    assert (page.status, page.text, page.redirects) == (302, "choose", ())


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_failure_of_the_server_is_shown(status: int) -> None:
    page = fetched(PAGE, {"/page": answer(b"sorry", status=status)})
    assert (page.status, page.text) == (status, "sorry")
    picture = fetched(PAGE, {"/page": answer(b"\x89PNG", kind="image/png", status=status)})
    assert (picture.status, picture.text, picture.body) == (status, "", b"")


@pytest.mark.requirement("NET-4")
def test_body_is_cut_at_the_limit_and_marked() -> None:
    async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    page = fetched(PAGE, {"/page": endless}, fetch_max_bytes=100_000)
    assert (page.body, page.is_truncated) == (b"x" * 100_000, True)
    whole = fetched(PAGE, {"/page": answer(b"x" * 100_000)}, fetch_max_bytes=100_000)
    assert (whole.body, whole.is_truncated) == (b"x" * 100_000, False)


@pytest.mark.requirement("NET-4")
@pytest.mark.slow
def test_gzip_is_opened_and_a_bomb_is_cut() -> None:
    packed = gzip.compress("größer".encode())
    page = fetched(PAGE, {"/page": answer(packed, Content_Encoding="gzip")})
    assert (page.text, page.is_truncated) == ("größer", False)
    bomb = gzip.compress(b"\x20" * 50_000_000)
    assert len(bomb) < 100_000
    page = fetched(PAGE, {"/page": answer(bomb, Content_Encoding="gzip")}, fetch_max_bytes=200_000)
    assert (len(page.body), page.is_truncated) == (200_000, True)
    # What unpacks to nothing costs the sender bytes, and these are counted as well.
    nothing = gzip.compress(b"") * 900
    page = fetched(PAGE, {"/page": answer(nothing, Content_Encoding="gzip")}, fetch_max_bytes=5000)
    assert (page.body, page.is_truncated) == (b"", True)


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(answer(gzip.compress(b"hello")[:-4], Content_Encoding="gzip"), id="cut gzip"),
        pytest.param(answer(b"no gzip", Content_Encoding="gzip"), id="no gzip"),
        pytest.param(answer(Content_Encoding="br"), id="coding nobody asked for"),
        pytest.param(answer(Content_Encoding="gzip, gzip"), id="packed twice"),
        pytest.param(answer().replace(b"Length: 5", b"Length: 50"), id="less than promised"),
        pytest.param(answer(Transfer_Encoding="chunked"), id="two lengths"),
        pytest.param(answer(Content_Length="6"), id="two different lengths"),
        pytest.param(answer(content_type="text/html"), id="two types"),
        pytest.param(answer(status=302, Location="/a", location="/b"), id="two locations"),
        pytest.param(answer(status=101, Upgrade="x", Connection="upgrade"), id="another protocol"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", id="half a head"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", id="long head"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, id="endless interim answers"),
    ],
)
def test_broken_answer_is_refused(reply: bytes) -> None:
    error, found = refused(PAGE, {"/page": reply})
    assert error.code == "CW-BAD-RESPONSE"
    assert [told["event"] for told in found.record] == ["opened", "closed", "refused"]
    assert {told["code"] for told in found.record[1:]} == {"CW-BAD-RESPONSE"}


@pytest.mark.requirement("NET-4")
def test_more_than_promised_is_not_read() -> None:
    assert fetched(PAGE, {"/page": answer(b"hello") + b" world"}).text == "hello"


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize("pause", ["before the head", "in the head", "in the body"])
def test_slow_server_ends_with_the_time_of_the_fetch(pause: str) -> None:
    async def slow(_: bytes, writer: asyncio.StreamWriter) -> None:
        head = {"before the head": b"", "in the head": b"HTTP/1.1 200"}.get(
            pause, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
        )
        writer.write(head)
        while True:  # a little now and then: no wait for a single piece ever ends it
            await asyncio.sleep(0.02)
            writer.write(b"" if pause == "before the head" else b"x")
            await writer.drain()

    error, found = refused(PAGE, {"/page": slow}, fetch_timeout_s=0.3)
    assert error.code == timeout_error("").code
    assert [told["event"] for told in found.record] == ["opened", "closed", "refused"]


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "text/plain",
            "text/css",
            "TEXT/HTML",
            "text/markdown; charset=utf-8",
            "application/json",
        ),
        *("application/ld+json", "application/atom+xml", "application/xml", "image/svg+xml"),
        *("application/javascript", "application/yaml", "application/xhtml+xml"),
    ],
)
def test_text_is_fetched(kind: str) -> None:
    page = fetched(PAGE, {"/page": answer(kind=kind)})
    assert (page.text, page.content_type) == ("hello", kind.lower().partition(";")[0])


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"%PDF-1.7", "application/pdf"),
        (b"hello", "application/octet-stream"),
        (b"hello", "application/zip"),
        (b"hello", "image/png"),
        (b"hello", "video/mp4"),
        (b"hello", "text"),
        (b"hello", "text/html, application/json"),
        (b"\xff\xfe\xfa", None),
        (b"a\0b", None),
        (b"MZ\0\0", "text/plain"),
    ],
)
def test_what_is_no_text_is_refused(body: bytes, kind: str | None) -> None:
    error, _ = refused(PAGE, {"/page": answer(body, kind=kind)})
    assert error.code == "CW-CONTENT-TYPE"
    assert "--allow-domain" in error.hint


@pytest.mark.requirement("NET-4")
def test_bytes_without_a_type_are_text_if_they_are_utf_8() -> None:
    page = fetched(PAGE, {"/page": answer("schön".encode(), kind=None)})
    assert (page.text, page.content_type) == ("schön", "")
    cut = fetched(PAGE, {"/page": answer("schön".encode(), kind=None)}, fetch_max_bytes=4)
    assert (cut.text, cut.is_truncated) == ("sch\ufffd", True)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ä".encode("latin-1"), "text/plain; charset=ISO-8859-1"),
        ("ä".encode("latin-1"), 'text/plain; charset="iso-8859-1"'),
        ("ä".encode("utf-16"), "text/plain; charset=utf-8"),
        (b"<meta charset='windows-1252'>\xe4", "text/html"),
        (b"<meta http-equiv=x content='text/html; charset=latin1'>\xe4", "text/html"),
        (b"<?xml version='1.0' encoding='iso-8859-1'?>\xe4", "application/xhtml+xml"),
        ("<meta charset=utf-16>ä".encode(), "text/html"),
        ("ä".encode(), "text/plain; charset=utf-7"),
        ("ä".encode(), "text/plain; charset=punycode"),
        ("ä".encode(), "text/plain; charset=zlib"),
    ],
)
def test_text_is_decoded_by_what_it_says_of_itself(body: bytes, kind: str) -> None:
    assert fetched(PAGE, {"/page": answer(body, kind=kind)}).text == "ä"


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize(
    "url",
    [
        "http://docs.example.com:{}/?key=S3cret-Value-1234",
        "http://docs.example.com:{}/S3cret-Value-1234/x",
        "http://S3cret-Value-1234.docs.example.com:{}/page",
        "http://docs.example.com:{}/?k=UzNjcmV0LVZhbHVlLTEyMzQ",
        "http://docs.example.com:{}/?k=%533cret%2DValue-1234",
        "http://docs.example.com:{}/?t=ghp_0123456789abcdefghijABCDEFGHIJ012345",
    ],
)
def test_url_with_a_secret_does_not_leave(url: str) -> None:
    known = {"API_KEY": b"S3cret-Value-1234"}
    error, found = refused(url, {}, known=known, allow=("docs.example.com", "*.docs.example.com"))
    assert (error.code, found.heads, found.names.asked) == ("CW-LEAK", [], [])
    assert [told["code"] for told in found.record] == ["CW-LEAK"]
    told = f"{error} {error.detail} {found.record}".lower()
    assert not any(part in told for part in ("s3cret", "uznj", "ghp_", "%533cret"))


@pytest.mark.requirement("NET-5")
def test_redirect_carries_tokens_of_the_server_but_nothing_of_the_vault() -> None:
    token = "/?X-Amz-Credential=AKIA0123456789ABCDEF"
    replies: dict[str, Reply] = {"/page": leads_to(token), token: answer()}
    assert fetched(PAGE, replies).text == "hello"
    error, found = refused(PAGE, replies, known={"AWS": b"AKIA0123456789ABCDEF"})
    assert (error.code, len(found.heads)) == ("CW-LEAK", 1)
    assert "AKIA" not in str(found.record)


@pytest.mark.requirement("NET-2", "NET-4")
@pytest.mark.parametrize(
    ("rule", "path", "is_allowed"),
    [
        ("docs.example.com:{}/v1", "/v1/x", True),
        ("docs.example.com:{}/v1", "/v1?a=/../x", True),
        ("docs.example.com:{}/v1", "/v1x", False),
        ("docs.example.com:{}/v1", "/v1/../x", False),
        ("docs.example.com:{}/v1", "/v1/%2e%2e/x", False),
        ("GET docs.example.com:{}/v1", "/v1", True),
        ("POST docs.example.com:{}/", "/v1", False),
        ("*.example.com:{}/", "/v1", True),
        ("*.docs.example.com:{}/", "/v1", False),
        ("docs.example.com:1/", "/v1", False),
        ("evil-docs.example.com:{}/", "/v1", False),
    ],
)
def test_only_what_a_rule_allows_is_fetched(rule: str, path: str, is_allowed: bool) -> None:
    replies: dict[str, Reply] = {path: answer()}
    url = "http://docs.example.com:{}" + path
    if is_allowed:
        assert fetched(url, replies, allow=(rule,)).text == "hello"
    else:
        error, found = refused(url, replies, allow=(rule,))
        assert (error.code, found.heads, found.names.asked) == ("CW-NOT-ALLOWED", [], [])


@pytest.mark.requirement("NET-5")
def test_name_below_a_wildcard_that_looks_like_data_is_not_even_resolved() -> None:
    data = "4a6f686e20536d697468.63726564697420636172.docs.example.com"
    error, found = refused("http://" + data + ":{}/", {}, allow=("*.docs.example.com",))
    assert (error.code, found.names.asked) == ("CW-NAME-DATA", [])


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("host", [HERE, f"[::ffff:{HERE}]"])
def test_address_is_judged_like_a_name(host: str) -> None:
    error, found = refused(
        "http://" + host + ":{}/page",
        {"/page": answer()},
        allow=(host,),
        dangerously_allow_addresses=(),
    )
    assert (error.code, found.heads) == ("CW-ADDRESS", [])


@pytest.mark.requirement("AUD-1")
def test_nothing_leaves_without_a_record() -> None:
    async def run() -> None:
        async with web({"/page": answer()}) as found:
            found.record_fails = True
            with pytest.raises(AuditFailed):
                await found.fetch(PAGE)
            assert found.heads == []
            found.record_fails = False
            assert (await found.fetch(PAGE)).text == "hello"

    asyncio.run(run())


def test_cancelled_fetch_ends_its_connection() -> None:
    async def run() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang(_: bytes, writer: asyncio.StreamWriter) -> None:
            begun.set()
            with suppress(OSError):
                await writer.wait_closed()
            ended.set()

        async with web({"/page": hang}) as found:
            task = asyncio.create_task(found.fetch(PAGE))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [told["event"] for told in found.record] == ["opened", "closed"]
            await ended.wait()

    asyncio.run(run())


@dataclass
class Secured:
    authority: Authority
    client: ssl.SSLContext
    names: list[str | None]

    def server(self, host: str) -> ssl.SSLContext:
        context = self.authority.context_for(host)
        context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        return context


@pytest.fixture
def start_tls() -> Secured:
    authority = Authority()
    client = ssl.create_default_context(cadata=authority.pem.decode())
    return Secured(authority, client, [])


HTTPS = "https://docs.example.com:{}/page"


@pytest.mark.requirement("NET-4", "NET-6")
def test_tls_is_verified_for_the_host_of_the_url(start_tls: Secured) -> None:
    async def run() -> None:
        async with web({"/page": answer()}, tls=start_tls.server("docs.example.com")) as found:
            found.tls = start_tls.client
            assert (await found.fetch(HTTPS)).text == "hello"
            assert start_tls.names == ["docs.example.com"]
            # The same server under another name, and for who does not know its authority.
            with pytest.raises(EgressRefused) as wrong_name:
                await found.fetch("https://www.example.com:{}/page", allow=("www.example.com",))
            found.tls = None
            with pytest.raises(EgressRefused) as unknown:
                await found.fetch(HTTPS)
            assert wrong_name.value.code == unknown.value.code == "CW-UPSTREAM-TLS"
            assert len(found.heads) == 1

    asyncio.run(run())


@pytest.mark.requirement("NET-4")
def test_redirect_from_https_to_http_is_refused(start_tls: Secured) -> None:
    async def run() -> None:
        async with web({"/page": answer(b"plain")}) as plain:
            to = f"http://docs.example.com:{plain.port}/page"
            replies: dict[str, Reply] = {"/page": leads_to(to), "/again": leads_to("/ok")}
            tls = start_tls.server("docs.example.com")
            async with web(replies | {"/ok": answer()}, tls=tls) as found:
                found.tls = start_tls.client
                allow = ("docs.example.com", f"docs.example.com:{plain.port}/")
                with pytest.raises(EgressRefused) as raised:
                    await found.fetch(HTTPS, allow=allow)
                assert (raised.value.code, plain.heads) == ("CW-REDIRECT", [])
                # Controls: redirects within https, the plain page by itself, and http to https.
                again = "https://docs.example.com:{}/again"
                assert (await found.fetch(again, allow=allow)).text == "hello"
                assert (await found.fetch(to, allow=allow)).text == "plain"
                plain.replies["/page"] = leads_to(f"https://docs.example.com:{found.port}/ok")
                assert (await found.fetch(to, allow=allow)).text == "hello"

    asyncio.run(run())


@pytest.mark.requirement("NET-4")
def test_plain_http_to_the_port_of_https_is_refused() -> None:
    error, _ = refused("http://docs.example.com:443/", {}, allow=("docs.example.com:443/",))
    assert error.code == "CW-NOT-TLS"


@pytest.mark.requirement("ERR-1")
def test_refusal_of_a_url_does_not_repeat_it() -> None:
    error, found = refused("http://user:hunter2@docs.example.com:{}/", {})
    assert error.code == "CW-BAD-URL"
    assert "hunter2" not in f"{error} {error.detail} {found.record}"
