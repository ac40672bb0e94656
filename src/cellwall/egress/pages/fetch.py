"""Fetch one page for an agent, by the egress rules (NET-4).

The steps of each hop; the target of a redirect goes through all of them again:
(1) canonical URL, (2) scan for secrets, (3) a matching rule, (4) resolution, with every address
checked, (5) the audit record, (6) a connection to exactly these addresses, TLS for exactly this
host, and one GET whose response is bounded in size, type and time.
"""

# ruff: noqa: PLC0415  # late imports: the Markdown libraries load slowly, and no run needs them

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.core.errors import AuditFailed, CellwallError, EgressRefused
from cellwall.core.network import Page
from cellwall.core.types import FetchUrl, Json
from cellwall.egress.destinations.addresses import Address, Own
from cellwall.egress.destinations.allowlist import Allowlist, AllowRule
from cellwall.egress.destinations.cell_dns import looks_like_data
from cellwall.egress.destinations.hostnames import Url, parse_url, resolve_redirect
from cellwall.egress.destinations.resolution import Resolver, resolve_checked
from cellwall.egress.inspection.leak_scan import KnownIndex, Patterns, scan_head
from cellwall.egress.limits import EgressSettings, timeout_error
from cellwall.egress.pages.http_get import PageRequest, PageResponse, headers_for
from cellwall.egress.proxy.audit_events import LeakRefused

if TYPE_CHECKING:
    from cellwall.egress.pages.render import PageForm, Rendered

WriteEvent = Callable[[dict[str, Json]], Awaitable[None]]

MAX_REDIRECTS = 5
_TLS_PORT = 443


@dataclass(slots=True, kw_only=True)
class PageFetch:
    """One URL and its redirects."""

    allowlist: Allowlist
    settings: EgressSettings
    resolver: Resolver
    own: Own
    known: KnownIndex
    tls: ssl.SSLContext
    record: WriteEvent
    method: str = "GET"
    via: str = "fetch"
    _hops: list[Url] = field(default_factory=list)

    async def run(self, operation: FetchUrl) -> Page:
        """The page behind a URL; every connection and every refusal is recorded."""
        try:
            async with asyncio.timeout(self.settings.fetch_timeout_s):
                return await self._page(operation)
        except AuditFailed:
            raise
        except TimeoutError:
            error = timeout_error("the page")
            await self.record(self._refusal_event(error))
            raise error from None
        except CellwallError as error:
            await self.record(self._refusal_event(error))
            raise

    async def _page(self, operation: FetchUrl) -> Page:
        url = parse_url(operation.url)  # (1)
        # (2) In redirects only known values: a token in a redirect is the server's own.
        self._scan(operation.url, url, Patterns.shipped())
        answer = await self._hop(url)
        while answer.location is not None:
            url = resolve_redirect(url, answer.location)
            self._scan(answer.location.decode("utf-8", "replace"), url, Patterns())
            self._check_redirect(url)
            answer = await self._hop(url)
        text, is_cut = answer.content.text_of(answer.body, is_cut=answer.is_cut), answer.is_cut
        if answer.content.is_html:
            # A hostile page can take seconds, and so can the import: not on the shared loop.
            rendered = await asyncio.to_thread(
                _render, text, operation.form, str(url), is_xml=answer.content.is_xml
            )
            text, is_cut = rendered.text, is_cut or rendered.is_cut
        return Page(
            url=str(url),
            status=answer.status,
            content_type=answer.content.kind,
            text=text,
            body=answer.body,
            is_truncated=is_cut,
            redirects=tuple(map(str, self._hops[:-1])),
        )

    def _refusal_event(self, error: CellwallError) -> dict[str, Json]:
        """The audit event of a failure, with the last URL."""
        at = self._hops[-1] if self._hops else None
        return {
            "event": "refused",
            "code": error.code,
            "reason": error.message,
            "detail": error.detail,
            "host": at.host if at else "",
            "port": at.port if at else 0,
            "via": self.via,
        }

    def _scan(self, text_as_given: str, url: Url, patterns: Patterns) -> None:
        # As written and as sent: the canonical host name is lower case.
        for text in (text_as_given.partition("#")[0], str(url)):
            target = text.encode("utf-8", "replace")
            hit = scan_head(target, [], known=self.known, patterns=patterns)
            if hit is not None:
                raise LeakRefused(hit)

    def _check_redirect(self, url: Url) -> None:
        if self._hops[-1].scheme == "https" and url.scheme == "http":
            raise _redirect("from https to http, which is not protected")
        if url in self._hops:
            raise _redirect("in a loop")
        if len(self._hops) > MAX_REDIRECTS:
            raise _redirect(f"more than {MAX_REDIRECTS} times")

    async def _hop(self, url: Url) -> PageResponse:
        self._hops.append(url)
        rule = self._rule(url)  # (3)
        allowed = self.settings.dangerously_allow_addresses
        # (4)
        addresses = await resolve_checked(url.host, self.resolver, own=self.own, allowed=allowed)
        # (5) Before the first packet; without a record there is no connection (AUD-1).
        await self.record(self._opened_event(url, addresses, rule))
        # (6)
        get = self._request(url)
        began_s = time.monotonic()
        ended: dict[str, Json] = {}
        try:
            answer = await get.answer(addresses)
            ended["status"] = answer.status
            return answer
        except CellwallError as error:
            ended |= {"code": error.code, "reason": error.message}
            raise
        finally:
            duration_s = round(time.monotonic() - began_s, 6)
            await self.record(self._closed_event(get, rule, duration_s) | ended)

    def _request(self, url: Url) -> PageRequest:
        return PageRequest(url, self.settings, self.tls)

    def _rule(self, url: Url) -> AllowRule:
        if url.scheme == "http" and url.port == _TLS_PORT:
            raise EgressRefused(
                "port 443 accepts TLS only", hint="Use an https URL.", code="CW-NOT-TLS"
            )
        reach = self.allowlist.reach(url.host, url.port)
        rule = self.allowlist.allows(url.host, url.port, self.method, url.target)
        if rule is None:
            what = f"{self.method} of this path of {url.host}" if reach else url.domain
            raise EgressRefused(
                f"{what} is not on the allowlist for {self.via}",
                hint=f"To allow it, use `--allow-domain {url.domain}`.",
                code="CW-NOT-ALLOWED",
            )
        if all(reachable.is_wildcard for reachable in reach) and looks_like_data(url.host):
            raise EgressRefused(
                "the host name looks like encoded data",
                hint="If it is a real host, allow its full name instead of a wildcard.",
                code="CW-NAME-DATA",
            )
        headers_for(url, self.settings)
        return rule

    def _opened_event(
        self, url: Url, addresses: tuple[Address, ...], rule: AllowRule
    ) -> dict[str, Json]:
        return {
            "event": "opened",
            "connection": len(self._hops),
            "host": url.host,
            "port": url.port,
            "addresses": [str(address) for address in addresses],
            "rule": rule.text,
            "via": self.via,
            "url": str(url),
        }

    def _closed_event(
        self, get: PageRequest, rule: AllowRule, duration_s: float
    ) -> dict[str, Json]:
        return {
            "event": "closed",
            "connection": len(self._hops),
            "host": get.url.host,
            "port": get.url.port,
            "rule": rule.text,
            "bytes_up": get.sent_bytes,
            "bytes_down": get.received_bytes,
            "duration_s": duration_s,
        }


def _render(text: str, form: PageForm, url: str, *, is_xml: bool) -> Rendered:
    from cellwall.egress.pages.render import render

    return render(text, form=form, url=url, is_xml=is_xml)


def _redirect(where: str) -> EgressRefused:
    return EgressRefused(
        f"the server redirects {where}",
        hint="Fetch the final URL directly, if it is known.",
        code="CW-REDIRECT",
    )
