"""Messages over real sockets to real receivers, with what agents might have put into them."""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import hmac
import json
import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from cellwall.audit.alerts.notices import Notice
from cellwall.audit.alerts.senders import send
from cellwall.audit.alerts.series import Alert, AlertState
from cellwall.audit.export.sinks import NotDelivered
from cellwall.config.alerts_section import AlertReceiverTable
from unit.audit.alerts.alert_events import NOON_S
from unit.audit.export_receivers import (
    HOSTILE,
    Certificates,
    Collector,
    StreamReceiver,
    listening,
    make_certificates,
    read_frames,
    read_message,
)

pytestmark = pytest.mark.requirement("OBS-2")
SECRET = b"webhook-signing-key-of-the-vault"
TOKEN = "ghp_" + "a1B2c3D4e5" * 3 + "abcdef"
ATTACKS = {
    **HOSTILE,
    "header": "x\r\nBcc: victim@example.com\r\n\r\nforged body",
    "slack": "<!channel> <https://evil.example|click> *bold* @channel & co",
    "bidi": "a\u202egnp.exe\u2066b",
    "invisible": "a\u3164\ufe0fb",
    "credential": f"token={TOKEN}",
    "megabyte": "A" * 1_000_000,
}


def notice(group: str = "", reason: str = "51 in 10 minutes") -> Notice:
    alert = Alert(
        id="alr_1",
        rule="egress-refusals",
        group=group,
        severity="high",
        state=AlertState.FIRING,
        summary="code tries to reach hosts",
        reason=reason,
        records=("evt_1", "evt_2"),
        since_s=NOON_S,
    )
    link = "https://cellwall.example"
    return Notice.about(alert, "firing", number=7, host="host1", link=link)


def table(kind: str, **fields: Any) -> AlertReceiverTable:
    return AlertReceiverTable.model_validate({"kind": kind, **fields})


def read_secret(name: str, place: tuple[str, int] | None) -> bytes:
    return SECRET


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def web(certificates: Certificates) -> Iterator[Collector]:
    with Collector(context=certificates.server()).running() as running:
        yield running


@pytest.fixture
def webhook(web: Collector, certificates: Certificates) -> AlertReceiverTable:
    web.requests.clear()
    to = f"https://127.0.0.1:{web.port}/hook?team=a"
    return table("webhook", to=to, secret="KEY", ca_file=certificates.ca_file)


def test_a_webhook_is_signed_over_its_id_time_and_body(web, webhook):
    sent = notice()
    send(webhook, sent, read_secret)
    ((path, headers, body),) = web.requests
    assert path == "/hook?team=a"
    assert json.loads(body) == sent.to_json()
    assert json.loads(body)["link"] == "https://cellwall.example/ui/audit/evt_2"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["webhook-id"] == "alr_1-firing-7"
    forged = hmac.digest(SECRET, signed + b" ", hashlib.sha256)
    assert base64.b64encode(forged).decode() != digest


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 500, 503])
def test_redirects_are_not_followed_and_refusals_are_failures(web, webhook, status):
    location = {"Location": f"https://127.0.0.1:{web.port}/elsewhere"}
    web.replies[:] = [(status, location, b"secret path /etc/x"), (200, {}, b"")]
    with pytest.raises(NotDelivered) as refused:
        send(webhook, notice(), read_secret)
    assert "secret path" not in refused.value.message + refused.value.hint
    assert len(web.requests) == 1
    send(webhook, notice(), read_secret)  # the control
    assert [path for path, _, _ in web.requests] == ["/hook?team=a"] * 2


def test_a_certificate_that_does_not_verify_gets_no_message(web, webhook):
    with pytest.raises(NotDelivered) as refused:
        send(webhook.model_copy(update={"ca_file": None}), notice(), read_secret)
    assert refused.value.code == "CW-EXPORT-TLS"
    assert web.requests == []


@pytest.mark.parametrize("name", ATTACKS)
def test_slack_gets_plain_text_that_calls_nobody(web, certificates, name):
    web.requests.clear()
    web.replies[:] = [(200, {}, b"ok")]
    slack = table("slack", secret="URL", ca_file=certificates.ca_file)
    url = f"https://127.0.0.1:{web.port}/services/T0/B0/x".encode()
    send(slack, notice(ATTACKS[name], ATTACKS[name]), lambda *_: url)
    ((path, _, body),) = web.requests
    sent = json.loads(body)
    assert path == "/services/T0/B0/x"
    assert sent.keys() == {"text", "mrkdwn"}
    assert sent["mrkdwn"] is False
    assert not set("<>@\r\x1b\u202e\u2066\u3164") & set(sent["text"])
    assert TOKEN not in sent["text"]
    assert len(body) < 10_000
    assert sent["text"].splitlines()[2].startswith("why: ")


def test_a_secret_that_is_no_url_is_not_shown(certificates):
    slack = table("slack", secret="URL", ca_file=certificates.ca_file)
    for value in (b"hunter2hunter2", b"http://example.com/x", b"https://h/\r\nx: y", b"\xff" * 9):
        with pytest.raises(NotDelivered) as refused:
            send(slack, notice(), lambda *_, value=value: value)
        assert refused.value.code == "CW-ALERT-RECEIVER"
        assert value.decode("latin-1") not in refused.value.message


# --- e-mail, to a real server


@dataclass
class Mailbox:
    """What a mail server has taken."""

    messages: list[Any] = field(default_factory=list)
    sign_ins: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.messages.append(envelope)
        return "250 OK"

    def authenticate(self, *words: Any) -> AuthResult:
        given = words[-1]
        self.sign_ins.append((given.login, given.password))
        return AuthResult(success=given.password == SECRET, handled=False)


class AnyPort(Controller):
    """aiosmtpd greets its own server on the port that it was given, which is 0 here."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture(scope="module")
def mail(certificates: Certificates) -> Iterator[tuple[Mailbox, int]]:
    mailbox = Mailbox()
    controller = AnyPort(
        mailbox,
        hostname="127.0.0.1",
        port=0,
        tls_context=certificates.server(),
        require_starttls=True,
        authenticator=mailbox.authenticate,
        auth_required=True,
    )
    controller.start()
    try:
        yield mailbox, controller.port
    finally:
        controller.stop()


def mail_table(port: int, certificates: Certificates, **changes: Any) -> AlertReceiverTable:
    fields = {
        "to": f"smtp://127.0.0.1:{port}",
        "sender": "cellwall@example.com",
        "recipients": ["ops@example.com", "ann@example.com"],
        "user": "cellwall",
        "secret": "PASSWORD",
        "ca_file": certificates.ca_file,
    }
    return table("email", **{**fields, **changes})


@pytest.mark.parametrize("name", ATTACKS)
def test_an_email_has_only_its_own_headers(mail, certificates, name):
    mailbox, port = mail
    mailbox.messages.clear()
    send(mail_table(port, certificates), notice(ATTACKS[name], ATTACKS[name]), read_secret)
    (envelope,) = mailbox.messages
    assert envelope.rcpt_tos == ["ops@example.com", "ann@example.com"]
    message = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert sorted(message.keys()) == sorted(
        [
            *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"),
            *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
        ]
    )
    assert (
        message["Subject"].strip().startswith("Cellwall [firing] high: code tries to reach hosts")
    )
    text = message.get_content()
    assert "records: evt_1 evt_2" in text
    assert TOKEN not in text + message["Subject"]
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\u2066\u3164]", text)
    assert len(envelope.content) < 20_000
    assert max(map(len, envelope.content.splitlines())) <= 998  # RFC 5322, 2.1.1


def test_the_password_goes_over_tls_only(mail, certificates):
    mailbox, port = mail
    with pytest.raises(NotDelivered) as refused:
        send(mail_table(port, certificates, ca_file=None), notice(), read_secret)
    assert refused.value.code == "CW-EXPORT-TLS"
    before = len(mailbox.sign_ins)
    with smtplib.SMTP("127.0.0.1", port) as control, pytest.raises(smtplib.SMTPException):
        control.sendmail("a@example.com", "b@example.com", "x")
    send(mail_table(port, certificates), notice(), read_secret)
    assert mailbox.sign_ins[before:] == [(b"cellwall", SECRET)]


def test_a_wrong_password_is_a_failure_that_does_not_show_it(mail, certificates):
    _, port = mail
    with pytest.raises(NotDelivered) as refused:
        send(mail_table(port, certificates), notice(), lambda *_: b"wrong-password")
    assert refused.value.code == "CW-ALERT-REFUSED"
    assert "wrong-password" not in f"{refused.value.message}{refused.value.detail}"


def test_a_mail_server_without_tls_gets_nothing(certificates):
    mailbox = Mailbox()
    controller = AnyPort(mailbox, hostname="127.0.0.1", port=0)
    controller.start()
    try:
        port = controller.port
        with pytest.raises(NotDelivered):
            send(mail_table(port, certificates), notice(), read_secret)
    finally:
        controller.stop()
    assert mailbox.messages == []


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_mail_server_without_an_end_to_its_replies_fills_no_memory(certificates, scheme):
    """Before TLS, anybody on the network can answer in the place of the server."""
    sent: list[int] = []

    def flood(link: socket.socket) -> None:
        with suppress(OSError):
            sent.extend(link.send(b"220-x" + b"x" * 1000 + b"\r\n") for _ in range(1000))
            link.sendall(b"220 at last\r\n")
            link.recv(1)

    context = certificates.server() if scheme == "smtps" else None
    with _answering(flood, context) as port, pytest.raises(NotDelivered):
        send(
            mail_table(port, certificates, to=f"{scheme}://127.0.0.1:{port}"), notice(), read_secret
        )
    assert sent
    if context is None:  # the control: `smtplib` takes all of it
        with _answering(flood, context) as port:
            smtplib.SMTP("127.0.0.1", port, timeout=30).close()
        assert sum(sent) > 1_000_000


@contextmanager
def _answering(
    work: Callable[[socket.socket], None], context: ssl.SSLContext | None
) -> Iterator[int]:
    """A server for one connection."""

    def serve() -> None:
        link = listener.accept()[0]
        with suppress(OSError), link if context is None else context.wrap_socket(link, True) as own:
            work(own)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)
    assert not thread.is_alive()


# --- syslog and files


@pytest.mark.parametrize("name", ATTACKS)
def test_syslog_gets_one_message_of_the_grammar(certificates, name):
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        to = f"tls://127.0.0.1:{receiver.port}"
        syslog = table("syslog", to=to, ca_file=certificates.ca_file)
        send(syslog, notice(ATTACKS[name], ATTACKS[name]), read_secret)
    (frame,) = read_frames(b"".join(receiver.got))
    message = read_message(frame)
    assert (message.severity, message.msg_id) == (3, "alert")
    assert message.data["cellwall@32473"]["rule"] == "egress-refusals"
    assert json.loads(message.text)["alert"]["records"] == ["evt_1", "evt_2"]
    assert b"\n" not in frame
    assert TOKEN.encode() not in frame


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_gets_one_line_for_each_message(tmp_path: Path, name):
    file = tmp_path / "alerts.jsonl"
    for _ in range(2):
        send(table("file", to=str(file)), notice(ATTACKS[name], ATTACKS[name]), read_secret)
    lines = file.read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["alr_1-firing-7"] * 2
    assert file.read_bytes().isascii()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(NotDelivered):
        send(table("file", to=str(tmp_path / "link")), notice(), read_secret)
    assert (tmp_path / "target").read_text() == ""


def test_a_receiver_that_is_away_is_a_failure():
    with listening() as closed:
        port = closed.getsockname()[1]
    hook = table("webhook", to=f"http://127.0.0.1:{port}/", secret="KEY")
    with pytest.raises(NotDelivered) as refused:
        send(hook, notice(), read_secret)
    assert refused.value.code == "CW-EXPORT-AWAY"
    assert str(port) not in refused.value.message
