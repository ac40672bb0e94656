"""Syslog as RFC 5424, 5425, 5426 and 6587 have it, over real sockets."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellwall.audit.export import syslog
from cellwall.audit.export.delivery import Exported, ExportFailed, export_records, records_after
from cellwall.audit.export.encodings import escape_unprintable
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.log import AuditLog
from cellwall.audit.search import FoundRecord
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Event, EventKind
from unit.audit.export_receivers import (
    PRINCIPALS,
    Certificates,
    Message,
    StreamReceiver,
    listening,
    make_certificates,
    read_frames,
    read_message,
    write_hostile,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("audit") / "log")
    write_hostile(directory)
    return directory


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def send(log: str, destination: str, **options: object) -> Exported:
    return export_records(records_after(log), ExportTarget.parse("syslog", destination, **options))


def check_all(log: str, frames: list[bytes], *, facility: int = 13) -> list[Message]:
    """Each record is there once, whole, and its structured data says what it says."""
    messages = [read_message(frame) for frame in frames]
    records = list(records_after(log))
    for message, found in zip(messages, records, strict=True):
        record = found.record
        data = message.data["cellwall@32473"]
        assert message.text == found.line
        assert list(message.data) == ["cellwall@32473"]
        assert (message.facility, message.app_name, message.proc_id) == (facility, "cellwall", "-")
        assert message.msg_id == record["kind"]
        assert message.time.isoformat(timespec="microseconds") == record["time"].replace(
            "Z", "+00:00"
        )
        assert data["seq"] == str(record["seq"])
        assert data["id"] == record["id"]
        assert data["principal"] == escape_unprintable(record["principal"])
        assert all(value and value.isprintable() for value in data.values())
    return messages


def cut_message(message: Message, found: FoundRecord) -> None:
    """It says that it was cut, and the start of the line is right."""
    data = message.data["cellwall@32473"]
    assert data["cut"] == str(len(found.line))
    assert data["sha256"] == hashlib.sha256(found.line).hexdigest()
    assert data["seq"] == str(found.record["seq"])
    assert found.line.startswith(message.text)
    assert 0 < len(message.text) < len(found.line)


@contextmanager
def datagrams(
    family: socket.AddressFamily, address: object
) -> Iterator[tuple[socket.socket, list[bytes]]]:
    """Whatever comes, until it is over."""
    got: list[bytes] = []
    over = threading.Event()
    with socket.socket(family, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024 * 1024)
        receiver.bind(address)
        receiver.settimeout(0.2)

        def work() -> None:
            while True:
                try:
                    got.append(receiver.recv(1 << 20))
                except TimeoutError:
                    if over.is_set():
                        return

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield receiver, got
        finally:
            over.set()
            thread.join(10)


# --- streams


@pytest.mark.requirement("AUD-4")
def test_tcp_counts_octets_and_carries_every_record(log: str) -> None:
    with StreamReceiver(listening()).running() as receiver:
        exported = send(log, f"tcp://127.0.0.1:{receiver.port}", hostname="box")
    messages = check_all(log, read_frames(b"".join(receiver.got)))
    assert exported == Exported(last_seq=len(messages), first_seq=1, sent=len(messages))
    assert {message.hostname for message in messages} == {"box"}
    assert max(len(message.text) for message in messages) > 100_000
    severities = {
        (message.msg_id, message.data["cellwall@32473"].get("status")): message.severity
        for message in messages
    }
    assert severities["denial", "denied"] == 4
    assert severities["outcome", "error"] == 3
    assert severities["outcome", "ok"] == 6
    assert severities["begin", None] == 5
    asked = [m.severity for m in messages if m.data["cellwall@32473"].get("verdict") == "ask"]
    assert asked == [5]
    wanted = {escape_unprintable(principal) for principal in PRINCIPALS}
    assert wanted <= {message.data["cellwall@32473"]["principal"] for message in messages}


def test_newlines_end_messages_where_that_is_asked_for(log: str) -> None:
    with StreamReceiver(listening()).running() as receiver:
        send(log, f"tcp://127.0.0.1:{receiver.port}", framing="newline", facility="local3")
    frames = b"".join(receiver.got).split(b"\n")
    assert frames.pop() == b""
    check_all(log, frames, facility=19)


def test_large_exports_take_several_connections(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog.SyslogSink, "max_records", 5)
    with StreamReceiver(listening()).running() as receiver:
        exported = send(log, f"tcp://127.0.0.1:{receiver.port}")
    assert len(receiver.got) == -(-exported.sent // 5)
    check_all(log, read_frames(b"".join(receiver.got)))


@pytest.mark.requirement("AUD-4")
def test_tls_carries_every_record_to_a_verified_receiver(
    log: str, certificates: Certificates
) -> None:
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        exported = send(log, f"tls://127.0.0.1:{receiver.port}", ca_file=certificates.ca_file)
    check_all(log, read_frames(b"".join(receiver.got)))
    assert exported.notices == ()


@pytest.mark.requirement("AUD-4")
def test_tls_refuses_a_receiver_it_cannot_verify(
    log: str, certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path, host="127.0.0.9")
    for server, options in (
        (certificates, {}),  # nobody the system knows has signed it
        (other, {"ca_file": other.ca_file}),  # signed, but for another address
        (other, {"ca_file": certificates.ca_file}),
    ):
        with (
            StreamReceiver(listening(), server.server()).running() as receiver,
            pytest.raises(ExportFailed) as caught,
        ):
            send(log, f"tls://127.0.0.1:{receiver.port}", **options)
        assert caught.value.code == "CW-EXPORT-TLS"
        assert caught.value.exported == Exported(last_seq=0)
        assert receiver.got == []


def test_tls_without_verification_has_to_be_asked_for_by_its_name(
    log: str, certificates: Certificates
) -> None:
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        send(log, f"tls://127.0.0.1:{receiver.port}", dangerously_accept_any_certificate=True)
    check_all(log, read_frames(b"".join(receiver.got)))


def test_a_receiver_may_ask_who_we_are(log: str, certificates: Certificates) -> None:
    context = certificates.server(asks_for_client=True)
    with StreamReceiver(listening(), context).running() as receiver:
        send(
            log,
            f"tls://127.0.0.1:{receiver.port}",
            ca_file=certificates.ca_file,
            client_cert_file=certificates.cert_file,
            client_key_file=certificates.key_file,
        )
        with pytest.raises(ExportFailed):
            send(log, f"tls://127.0.0.1:{receiver.port}", ca_file=certificates.ca_file)
    check_all(log, read_frames(b"".join(receiver.got)))


def test_a_plain_receiver_is_no_tls_receiver(log: str, certificates: Certificates) -> None:
    with (
        StreamReceiver(listening(), closes_after_bytes=10).running() as receiver,
        pytest.raises(ExportFailed) as caught,
    ):
        send(log, f"tls://127.0.0.1:{receiver.port}", ca_file=certificates.ca_file)
    assert caught.value.code in ("CW-EXPORT-TLS", "CW-EXPORT-AWAY")


def test_unusable_certificate_files_are_told_without_their_paths(
    certificates: Certificates, tmp_path: Path, log: str
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for options in (
        {"ca_file": str(bad)},
        {"ca_file": str(tmp_path / "none")},
        {"client_cert_file": str(bad)},
        {"client_cert_file": certificates.cert_file, "client_key_file": str(bad)},
    ):
        with pytest.raises(BadInput) as caught:
            send(log, "tls://127.0.0.1:1", **options)
        assert str(tmp_path) not in str(caught.value)


def test_unix_stream(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    with StreamReceiver(listener).running() as receiver:
        send(log, f"unix://{path}")
    check_all(log, read_frames(b"".join(receiver.got)))


# --- datagrams


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_udp_carries_one_message_a_datagram_and_marks_what_it_cut(log: str, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with datagrams(family, (host.strip("[]"), 0)) as (receiver, got):
        exported = send(log, f"udp://{host}:{receiver.getsockname()[1]}")
    messages = [read_message(each) for each in got]
    records = list(records_after(log))
    assert exported.cut == 1
    for message, found in zip(messages, records, strict=True):
        if "cut" in message.data["cellwall@32473"]:
            cut_message(message, found)
            assert len(found.line) > 65_507
        else:
            assert message.text == found.line
    assert max(map(len, got)) == 65_507


def test_unix_datagrams(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with datagrams(socket.AF_UNIX, path) as (_, got):
        exported = send(log, f"unix://{path}")
    assert exported.cut == 0
    check_all(log, got)


def test_a_datagram_the_system_has_no_preallocation_for_is_cut_and_marked(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = syslog._connect_unix

    def narrow(path: str, timeout_s: float) -> socket.socket:
        link = connect(path, timeout_s)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        return link

    monkeypatch.setattr(syslog, "_connect_unix", narrow)
    path = str(tmp_path / "s")
    with datagrams(socket.AF_UNIX, path) as (_, got):
        exported = send(log, f"unix://{path}")
    assert exported.cut == 1
    records = list(records_after(log))
    assert len(got) == len(records)
    large = max(range(len(records)), key=lambda at: len(records[at].line))
    cut_message(read_message(got[large]), records[large])


@pytest.mark.parametrize("most", [1024, 4096])
def test_messages_are_kept_below_what_a_receiver_takes(tmp_path: Path, most: int) -> None:
    directory = str(tmp_path / "log")
    with AuditLog.open(directory) as log:
        # The longest names there can be, each character an escape.
        log.write(
            Event(EventKind.INTENT, "a" * 256, '"' * 256, "]" * 256, {"x": "y" * 3000}, "\\" * 256)
        )
        log.write(Event(EventKind.INTENT, "act_1", "ann", "cli", {"x": "é" * 1500}))
    with StreamReceiver(listening()).running() as receiver:
        exported = send(directory, f"tcp://127.0.0.1:{receiver.port}", max_message_bytes=most)
    frames = read_frames(b"".join(receiver.got))
    assert exported.cut >= 1
    assert max(map(len, frames)) == most
    for frame, found in zip(frames, records_after(directory), strict=True):
        message = read_message(frame)
        if "cut" in message.data["cellwall@32473"]:
            cut_message(message, found)
        else:
            assert json.loads(message.text) == found.record


# --- receivers that are not there, or not for long


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("scheme", ["tcp", "tls", "udp", "unix"])
def test_a_receiver_that_is_away_is_told_with_its_hint(
    log: str, tmp_path: Path, scheme: str
) -> None:
    with listening() as listener:
        port = listener.getsockname()[1]
    where = f"unix://{tmp_path}/none" if scheme == "unix" else f"{scheme}://127.0.0.1:{port}"
    with pytest.raises(ExportFailed) as caught:
        send(log, where)
    assert caught.value.code == "CW-EXPORT-AWAY"
    assert caught.value.exported.last_seq == 0
    assert "--after 0" in caught.value.hint
    assert str(tmp_path) not in str(caught.value)


def test_a_name_that_nobody_knows(log: str) -> None:
    with pytest.raises(ExportFailed, match="name"):
        send(log, "tcp://no-such-host.invalid:601")


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_receiver_that_closes_midway_counts_as_not_delivered(
    log: str, certificates: Certificates, has_tls: bool
) -> None:
    context = certificates.server() if has_tls else None
    receiver = StreamReceiver(listening(), context, closes_after_bytes=2000)
    options = {"ca_file": certificates.ca_file} if has_tls else {}
    with receiver.running(), pytest.raises(ExportFailed) as caught:
        send(log, f"{'tls' if has_tls else 'tcp'}://127.0.0.1:{receiver.port}", **options)
    assert caught.value.code == "CW-EXPORT-AWAY"
    assert caught.value.exported == Exported(last_seq=0)


def test_what_earlier_connections_carried_is_not_sent_again(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog.SyslogSink, "max_records", 5)
    sends = 0
    whole = syslog.SyslogSink.send

    def breaks(self: syslog.SyslogSink, batch: list[FoundRecord]) -> object:
        nonlocal sends
        sends += 1
        receiver.closes_after_bytes = 1 if sends == 3 else None
        return whole(self, batch)

    monkeypatch.setattr(syslog.SyslogSink, "send", breaks)
    with StreamReceiver(listening()).running() as receiver:
        where = f"tcp://127.0.0.1:{receiver.port}"
        with pytest.raises(ExportFailed) as caught:
            send(log, where)
        last = caught.value.exported.last_seq
        assert last == 10
        receiver.got[2:] = []
        export_records(
            records_after(log, after_seq=last), ExportTarget.parse("syslog", where), after_seq=last
        )
    check_all(log, read_frames(b"".join(receiver.got)))


def test_a_receiver_that_hangs_is_not_waited_for_forever(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    with AuditLog.open(directory) as log:
        for _ in range(60):  # more than the buffers of both kernels hold
            log.write(
                Event(EventKind.INTENT, "a", "ann", "cli", {f"p{n}": "x" * 4000 for n in range(30)})
            )
    with listening() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ExportFailed) as caught:
            send(directory, f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)
    assert caught.value.code == "CW-EXPORT-AWAY"
    assert "in time" in caught.value.message


def test_a_receiver_that_never_says_goodbye_is_noted(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    with AuditLog.open(directory) as log:
        log.write(Event(EventKind.INTENT, "act_1", "ann", "cli", {}))
    with listening() as listener:
        exported = send(directory, f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)
    assert exported.sent >= 1
    assert exported.notices == (syslog.UNCONFIRMED,)


def test_tls_handshake_that_hangs_ends(log: str, certificates: Certificates) -> None:
    with listening() as listener, pytest.raises(ExportFailed) as caught:
        send(
            log,
            f"tls://127.0.0.1:{listener.getsockname()[1]}",
            ca_file=certificates.ca_file,
            timeout_s=0.3,
        )
    assert caught.value.code == "CW-EXPORT-AWAY"


def test_a_full_datagram_socket_is_not_waited_for_forever(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(path)
        with pytest.raises(ExportFailed, match="in time"):
            send(log, f"unix://{path}", timeout_s=0.3)
