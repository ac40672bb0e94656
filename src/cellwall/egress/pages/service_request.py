"""One request of the runtime to a connected account, by the egress rules (NET-4, SEC-5).

(1) canonical URL over TLS, (2) scan for secrets, (3) to (5) as for a page, (6) the values of leased
secrets into the fields that they are bound to, (7) one request, (8) the response without them.
No redirect is followed: it would take the password elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellwall.core.errors import AuditFailed, CellwallError, EgressRefused
from cellwall.core.network import SecretUse, ServiceRequest, ServiceResponse
from cellwall.egress.destinations.hostnames import Url, parse_url
from cellwall.egress.inspection.body_filters import EchoIndex
from cellwall.egress.inspection.injection import inject_secrets
from cellwall.egress.inspection.leak_scan import LeakScan, Patterns, scan_head
from cellwall.egress.limits import timeout_error
from cellwall.egress.pages.fetch import PageFetch
from cellwall.egress.pages.http_get import PageRequest, headers_for
from cellwall.egress.protocols.http1_framing import Fields
from cellwall.egress.proxy.audit_events import LeakRefused


@dataclass(slots=True, kw_only=True)
class ServiceExchange(PageFetch):
    """One request and its response."""

    sent: ServiceRequest
    secrets: Sequence[SecretUse]
    _echoes: EchoIndex = field(default_factory=EchoIndex)

    async def exchange(self) -> ServiceResponse:
        """Every connection and every refusal is recorded."""
        try:
            async with asyncio.timeout(self.settings.fetch_timeout_s):
                return await self._exchange()
        except AuditFailed:
            raise
        except TimeoutError:
            error = timeout_error("the response")
            await self.record(self._refusal_event(error))
            raise error from None
        except CellwallError as error:
            await self.record(self._refusal_event(error))
            raise

    async def _exchange(self) -> ServiceResponse:
        url = parse_url(self.sent.url)  # (1)
        if url.scheme != "https":
            raise EgressRefused(
                "a connected account is reached over TLS only",
                hint="Use an https URL.",
                code="CW-NOT-TLS",
            )
        self._scan_request(url)  # (2)
        answer = await self._hop(url)  # (3) to (7)
        if answer.location is not None:
            raise EgressRefused(
                "the server of the account redirects elsewhere",
                hint="Connect the account with the final URL.",
                code="CW-REDIRECT",
            )
        if answer.is_cut:
            raise EgressRefused(
                "the response of the account is too large",
                hint="Ask for a shorter period.",
                code="CW-BODY-TOO-LARGE",
            )
        # (8)
        return ServiceResponse(status=answer.status, body=self._echoes.clean(answer.body))

    def _scan_request(self, url: Url) -> None:
        patterns, headers = Patterns.shipped(), self._own_headers()
        target = str(url).encode("utf-8", "replace")
        hit = scan_head(target, headers, known=self.known, patterns=patterns)
        hit = hit or LeakScan(self.known, patterns).feed(self.sent.body)
        if hit is not None:
            raise LeakRefused(hit)

    def _own_headers(self) -> Fields:
        return [
            (name.lower().encode("ascii"), value.encode("utf-8"))
            for name, value in self.sent.headers
        ]

    def _request(self, url: Url) -> PageRequest:
        length = (b"content-length", str(len(self.sent.body)).encode("ascii"))
        more = [*self._own_headers(), length]
        # (6)
        head = inject_secrets(
            headers_for(url, self.settings, self.method, more),
            self.secrets,
            host=url.host,
            port=url.port,
            method=self.method,
            path=url.target,
            is_tls=True,
        )
        if head.stayed:
            raise EgressRefused(
                "the secret of the account is not granted for this request",
                hint="Grant it for the host of the account: cellwall vault grant NAME --host HOST "
                "--basic password --tool account",
                code="CW-SECRET-UNFIT",
            )
        self._echoes.add(head.sent_values)
        return PageRequest(
            url,
            self.settings,
            self.tls,
            method=self.method,
            headers=head.headers,
            body=self.sent.body,
        )
