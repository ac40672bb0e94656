"""OTLP logs over HTTP."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Sequence

from cellwall import __version__
from cellwall.audit.export.encodings import encode_request, escape_unprintable
from cellwall.audit.export.http_post import HttpAnswer, NotHttp, post
from cellwall.audit.export.sinks import NotDelivered, Receipt, client_context, network_failure
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.search import FoundRecord

_MAX_BYTES = 2 * 1024 * 1024
"""Bytes of log lines per request; well below the limits of collectors."""
_MAX_REPLY_CHARACTERS = 200
_ATTEMPTS = 5
_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0
_TRY_AGAIN = {429, 502, 503, 504}


class OtlpHttpSink:
    """The sink of one target. A retried batch may arrive twice: its record numbers show that."""

    max_bytes = _MAX_BYTES

    def __init__(self, target: ExportTarget, *, wait: Callable[[float], None] = time.sleep) -> None:
        self.max_records = target.batch_records
        self._target, self._wait = target, wait
        self._context = client_context(target.tls) if target.address.has_tls else None
        self._headers = {
            "User-Agent": f"cellwall/{__version__}",
            **dict(target.headers),
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
            "Connection": "close",
        }

    def close(self) -> None:
        """No connection stays open between batches."""

    def send(self, batch: Sequence[FoundRecord]) -> Receipt:
        data = encode_request(batch, hostname=self._target.hostname, observed_ns=time.time_ns())
        # No timestamp in the gzip header: the same records give the same bytes.
        body = gzip.compress(data, compresslevel=6, mtime=0)
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, _ATTEMPTS + 1):
            problem, asked_s = None, None
            try:
                answer = self._post(body)
                asked_s = answer.wait_s
                if answer.status not in _TRY_AGAIN:
                    return self._receipt(answer, len(batch))
                problem = _busy(answer.status)
            except OSError as error:
                problem = network_failure(error)
            if problem.code == "CW-EXPORT-TLS" or attempt == _ATTEMPTS:
                raise problem
            if asked_s is not None and asked_s > _MAX_WAIT_S:
                raise problem
            # Jitter, so that many machines do not retry at once.
            spread_s = wait_s * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            self._wait(max(spread_s, asked_s or 0.0))
            wait_s *= 2
        raise AssertionError  # unreachable: the last attempt returns or raises

    def _post(self, body: bytes) -> HttpAnswer:
        target = self._target
        try:
            return post(
                target.address,
                body,
                self._headers,
                timeout_s=target.timeout_s,
                context=self._context,
            )
        except NotHttp:
            raise self._not_otlp() from None

    def _receipt(self, answer: HttpAnswer, sent: int) -> Receipt:
        if 300 <= answer.status < 400:
            raise NotDelivered(
                "the receiver redirects to another address; redirects are not followed",
                hint="Give the final address as the destination.",
                code="CW-EXPORT-REDIRECT",
                detail=str(answer.status),
            )
        if not 200 <= answer.status < 300:
            reply = self._sanitise_reply(_fields(answer.body).get("message"))
            raise NotDelivered(
                f"the receiver refused the records with status {answer.status}"
                + (f": {reply}" if reply else ""),
                hint=_hint_of(answer.status),
                code="CW-EXPORT-REFUSED",
                detail=str(answer.status),
            )
        if not answer.body.strip():
            return Receipt()
        # An HTML page with status 200 is a wrong address or an intermediary, not a success.
        if not answer.body.lstrip().startswith(b"{") or not _is_json(answer.body):
            raise self._not_otlp()
        partial = _fields(answer.body).get("partialSuccess")
        if not isinstance(partial, dict):
            return Receipt()
        rejected = _count(partial.get("rejectedLogRecords"), sent)
        return Receipt(rejected=rejected, notice=self._sanitise_reply(partial.get("errorMessage")))

    def _sanitise_reply(self, text: object) -> str:
        """The receiver's text, bounded, escaped, and without a token that it may echo."""
        if not isinstance(text, str):
            return ""
        for _, value in self._target.headers:
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, "[redacted]") if len(secret) >= 4 else text
        return escape_unprintable(" ".join(text.split()))[:_MAX_REPLY_CHARACTERS]

    @staticmethod
    def _not_otlp() -> NotDelivered:
        return NotDelivered(
            "the destination is not an OTLP/HTTP receiver",
            hint="Check port and path; that of most collectors is http://HOST:4318/v1/logs.",
            code="CW-EXPORT-ANSWER",
        )


def _busy(status: int) -> NotDelivered:
    return NotDelivered(
        f"the receiver is busy (status {status})",
        hint="Try again later, or with smaller batches.",
        code="CW-EXPORT-BUSY",
        detail=str(status),
    )


def _hint_of(status: int) -> str:
    match status:
        case 401 | 403:
            return "Check the header with the token."
        case 404 | 405:
            return "Check the path of the destination; that of OTLP is /v1/logs."
        case 413:
            return "Make the batches smaller, or raise the receiver's request limit."
        case 415:
            return "Configure the receiver to accept JSON with gzip encoding."
        case _:
            return "Check the receiver's log."


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _fields(body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _count(value: object, most: int) -> int:
    """A 64-bit number, which JSON spells as a string or a number."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return min(value, most) if type(value) is int and value > 0 else 0
