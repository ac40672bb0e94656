"""Sends one message to one receiver: webhook, Slack, e-mail, syslog, file.

A webhook is signed as Standard Webhooks define: HMAC-SHA256 over id, time and body, so a receiver
refuses forged and old messages. Only the administrator names receivers; redirects are not followed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import smtplib
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from cellwall import __version__
from cellwall.audit.alerts.notices import Notice, email_message, slack_body, syslog_message
from cellwall.audit.alerts.smtp_link import open_smtp
from cellwall.audit.export.http_post import NotHttp, post
from cellwall.audit.export.sinks import FileSink, NotDelivered, client_context, network_failure
from cellwall.audit.export.syslog import SyslogSink
from cellwall.audit.export.target import ExportAddress, ExportTarget, TlsSettings, Transport
from cellwall.config.alerts_section import AlertReceiverTable
from cellwall.config.server_section import is_loopback

ReadSecret: TypeAlias = Callable[[str, tuple[str, int] | None], bytes]
"""The value of a secret by its name, for a host and port; raises `VaultError`."""
_TIMEOUT_S = 10.0
_PORTS = {"https": 443, "http": 80, "smtps": 465, "smtp": 587}


def send(table: AlertReceiverTable, notice: Notice, read_secret: ReadSecret) -> None:
    """Raises `NotDelivered`, or the error of the vault or of a file that is named."""
    match table.kind:
        case "webhook":
            _send_webhook(table, notice, read_secret)
        case "slack":
            _send_slack(table, notice, read_secret)
        case "email":
            _send_email(table, notice, read_secret)
        case "syslog":
            _send_syslog(table, notice)
        case _:
            with closing(FileSink(ExportTarget.parse("jsonl", table.to, append=True))) as sink:
                sink.append(notice.json_bytes() + b"\n")


def signed_headers(notice_id: str, body: bytes, secret: bytes, *, now_s: int) -> dict[str, str]:
    """The headers of Standard Webhooks."""
    signed = f"{notice_id}.{now_s}.".encode("ascii") + body
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return {
        "webhook-id": notice_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode('ascii')}",
    }


def _send_webhook(table: AlertReceiverTable, notice: Notice, read_secret: ReadSecret) -> None:
    address = table.address
    secret = read_secret(table.secret or "", _place(address))
    body = notice.json_bytes()
    headers = signed_headers(notice.id, body, secret, now_s=int(time.time()))
    _post(address, body, headers, table.ca_file)


def _send_slack(table: AlertReceiverTable, notice: Notice, read_secret: ReadSecret) -> None:
    text = read_secret(table.secret or "", None).decode("utf-8", "replace").strip()
    address, is_safe = urlsplit(""), False
    try:
        address = urlsplit(text)
        is_safe = address.scheme == "https" or is_loopback(address.hostname or "")
        is_safe = is_safe and bool(address.hostname) and address.port != 0 and text.isascii()
    except ValueError:
        is_safe = False
    if not is_safe or not text.isprintable() or " " in text:
        raise NotDelivered(
            "the secret is not the URL of an incoming webhook",
            hint="Store the whole https:// URL that Slack or Mattermost gave.",
            code="CW-ALERT-RECEIVER",
        )
    read_secret(table.secret or "", _place(address))  # the grant is for this host
    _post(address, slack_body(notice), {}, table.ca_file)


def _place(address: SplitResult) -> tuple[str, int]:
    return address.hostname or "", address.port or _PORTS[address.scheme]


def _post(
    address: SplitResult, body: bytes, headers: Mapping[str, str], ca_file: str | None
) -> None:
    has_tls = address.scheme == "https"
    place = ExportAddress(
        Transport(address.scheme),
        *_place(address),
        (address.path or "/") + (f"?{address.query}" if address.query else ""),
    )
    context = client_context(TlsSettings(ca_file=ca_file)) if has_tls else None
    sent = {
        "User-Agent": f"cellwall/{__version__}",
        "Content-Type": "application/json",
        "Connection": "close",
        **headers,
    }
    try:
        status = post(place, body, sent, timeout_s=_TIMEOUT_S, context=context).status
    except OSError as error:
        raise network_failure(error) from None
    except NotHttp:
        raise _refused("the receiver does not speak HTTP", "Check its port.") from None
    if 300 <= status < 400:
        raise _refused("the receiver redirects; redirects are not followed", "Give its address.")
    if not 200 <= status < 300:
        raise _refused(f"the receiver refused the message with status {status}", "See its log.")


def _send_email(table: AlertReceiverTable, notice: Notice, read_secret: ReadSecret) -> None:
    address, context = table.address, client_context(TlsSettings(ca_file=table.ca_file))
    host, port = _place(address)
    password = b"" if table.secret is None else read_secret(table.secret, (host, port))
    message = email_message(notice, sender=table.sender, recipients=table.recipients)
    try:
        is_smtps = address.scheme == "smtps"
        with open_smtp(
            host, port, is_smtps=is_smtps, context=context, timeout_s=_TIMEOUT_S
        ) as link:
            if table.user:
                link.login(table.user, password.decode("utf-8"))
            link.send_message(message, from_addr=table.sender, to_addrs=list(table.recipients))
    except smtplib.SMTPAuthenticationError:
        raise _refused("the mail server refused user or password", "Check both.") from None
    except smtplib.SMTPNotSupportedError:
        raise _refused(
            "the mail server offers no TLS or no sign-in", "Use smtps://, or check the server."
        ) from None
    except smtplib.SMTPServerDisconnected:
        raise network_failure(ConnectionResetError()) from None
    except (smtplib.SMTPException, UnicodeError) as error:
        status = getattr(error, "smtp_code", "")
        raise _refused(f"the mail server refused the message {status}".rstrip(), "") from None
    except OSError as error:  # after its subclass SMTPException
        raise network_failure(error) from None


def _send_syslog(table: AlertReceiverTable, notice: Notice) -> None:
    has_tls = table.address.scheme == "tls"
    ca_file = table.ca_file if has_tls else None
    target = ExportTarget.parse("syslog", table.to, ca_file=ca_file, timeout_s=_TIMEOUT_S)
    message = syslog_message(notice, facility=target.facility, hostname=target.hostname)
    with closing(SyslogSink(target)) as sink:
        sink.send_message(message)


def _refused(message: str, hint: str) -> NotDelivered:
    return NotDelivered(message, hint=hint, code="CW-ALERT-REFUSED")
