"""OTLP over HTTP to a real server, read with the real definitions."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from cellwall.audit.export import otlp_http
from cellwall.audit.export.delivery import Exported, ExportFailed, export_records, records_after
from cellwall.audit.export.encodings import escape_unprintable
from cellwall.audit.export.target import ExportTarget
from unit.audit.export_receivers import (
    Certificates,
    Collector,
    Reply,
    listening,
    make_certificates,
    serving,
    write_hostile,
)

TOKEN = "Bearer very-secret-token-0123456789"
GOOD: Reply = (200, {}, b"{}")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("audit") / "log")
    write_hostile(directory)
    return directory


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited, instead of the waiting."""
    waited: list[float] = []
    init = otlp_http.OtlpHttpSink.__init__
    monkeypatch.setattr(
        otlp_http.OtlpHttpSink,
        "__init__",
        lambda self, target: init(self, target, wait=waited.append),
    )
    return waited


def send(log: str, destination: str, **options: object) -> Exported:
    return export_records(records_after(log), ExportTarget.parse("otlp", destination, **options))


def at(collector: Collector) -> str:
    return f"http://127.0.0.1:{collector.port}/v1/logs"


def records_in(body: bytes) -> list[LogRecord]:
    request = json_format.Parse(body, ExportLogsServiceRequest())
    (resource,) = request.resource_logs
    (scope,) = resource.scope_logs
    assert scope.scope.name == "cellwall.audit"
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["service.name"] == "cellwall"
    return list(scope.log_records)


@pytest.mark.requirement("AUD-4")
def test_every_record_arrives_as_the_definitions_have_it(log: str) -> None:
    with Collector().running() as collector:
        exported = send(log, at(collector), headers={"Authorization": TOKEN}, hostname="box")
    ((path, headers, _),) = collector.requests
    assert path == "/v1/logs"
    assert headers["content-type"] == "application/json"
    assert headers["content-encoding"] == "gzip"
    assert headers["authorization"] == TOKEN
    found = list(records_after(log))
    got = records_in(collector.bodies()[0])
    for record, source in zip(got, found, strict=True):
        line = source.record
        attributes = {each.key: each.value for each in record.attributes}
        time_us = datetime.fromisoformat(line["time"]) - datetime(1970, 1, 1, tzinfo=UTC)
        assert record.body.string_value.encode() == source.line
        assert record.time_unix_nano == time_us // timedelta(microseconds=1) * 1000
        assert abs(record.observed_time_unix_nano / 1e9 - time.time()) < 60
        assert attributes["cellwall.seq"].int_value == line["seq"]
        assert attributes["cellwall.id"].string_value == line["id"]
        assert attributes["cellwall.principal"].string_value == escape_unprintable(
            line["principal"]
        )
        assert record.event_name == f"cellwall.audit.{line['kind']}"
    numbers = {(r.event_name.rpartition(".")[2], r.severity_text): r.severity_number for r in got}
    assert numbers["denial", "WARN"] == SeverityNumber.SEVERITY_NUMBER_WARN
    assert numbers["outcome", "ERROR"] == SeverityNumber.SEVERITY_NUMBER_ERROR
    assert numbers["outcome", "INFO"] == SeverityNumber.SEVERITY_NUMBER_INFO
    assert numbers["intent", "NOTICE"] == SeverityNumber.SEVERITY_NUMBER_INFO2
    assert exported == Exported(last_seq=len(found), first_seq=1, sent=len(found))


def test_records_go_in_batches_and_progress_is_told(log: str) -> None:
    heard: list[int] = []
    with Collector().running() as collector:
        target = ExportTarget.parse("otlp", at(collector), batch_records=4)
        exported = export_records(records_after(log), target, progress=heard.append)
    batches = [records_in(body) for body in collector.bodies()]
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
    assert sum(map(len, batches)) == exported.sent == heard[-1]


def test_a_request_is_bounded_in_bytes(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_http.OtlpHttpSink, "max_bytes", 4000)
    with Collector().running() as collector:
        send(log, at(collector))
    sizes = [
        [len(each.body.string_value) for each in records_in(body)] for body in collector.bodies()
    ]
    assert all(sum(batch) <= 4000 or len(batch) == 1 for batch in sizes)
    assert len(sizes) > 2


@pytest.mark.requirement("AUD-4")
def test_https_verifies_the_receiver(log: str, certificates: Certificates) -> None:
    with Collector(context=certificates.server()).running() as collector:
        where = f"https://127.0.0.1:{collector.port}/v1/logs"
        exported = send(log, where, ca_file=certificates.ca_file, headers={"api-key": TOKEN})
        assert exported.sent == sum(len(records_in(body)) for body in collector.bodies())
        collector.requests.clear()
        with pytest.raises(ExportFailed) as caught:
            send(log, where, headers={"api-key": TOKEN})
        assert (caught.value.code, collector.requests) == ("CW-EXPORT-TLS", [])


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_without_preallocation_is_asked_again(
    log: str, waits: list[float], status: int
) -> None:
    with Collector([(status, {}, b""), (status, {}, b""), GOOD]).running() as collector:
        exported = send(log, at(collector))
    assert len(collector.requests) == 3
    assert len({body for _, _, body in collector.requests}) == 1
    assert exported.last_seq == exported.sent
    assert 0.5 <= waits[0] <= 1.0 <= waits[1] <= 2.0


def test_retry_after_is_honoured(log: str, waits: list[float]) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    replies = [
        (429, {"Retry-After": "7"}, b""),
        (503, {"Retry-After": soon}, b""),
        (503, {"Retry-After": "nonsense"}, b""),
        GOOD,
    ]
    with Collector(replies).running() as collector:
        send(log, at(collector))
    assert waits[0] == 7
    assert 25 < waits[1] <= 30
    assert waits[2] <= 4


def test_a_receiver_that_wants_hours_is_not_waited_for(log: str, waits: list[float]) -> None:
    with (
        Collector([(503, {"Retry-After": "36000"}, b"")]).running() as collector,
        pytest.raises(ExportFailed) as caught,
    ):
        send(log, at(collector))
    assert caught.value.code == "CW-EXPORT-BUSY"
    assert waits == []


def test_it_gives_up_after_five_attempts_and_says_where_to_go_on(
    log: str, waits: list[float]
) -> None:
    replies: list[Reply] = [GOOD, GOOD, (503, {}, b"")]
    with Collector(replies).running() as collector:
        with pytest.raises(ExportFailed) as caught:
            send(log, at(collector), batch_records=3)
        assert caught.value.exported == Exported(last_seq=6, first_seq=1, sent=6)
        assert "--after 6" in caught.value.hint
        assert len(collector.requests) == 2 + 5
        assert len(waits) == 4


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("number", ["3", 3])
def test_what_the_receiver_rejected_is_reported(
    log: str, waits: list[float], number: object
) -> None:
    partial = {"partialSuccess": {"rejectedLogRecords": number, "errorMessage": "too\x1b old"}}
    json_format.ParseDict(partial, ExportLogsServiceResponse())
    with Collector([(200, {}, json.dumps(partial).encode())]).running() as collector:
        exported = send(log, at(collector))
    everything = len(list(records_after(log)))
    assert (exported.sent, exported.rejected) == (everything - 3, 3)
    assert exported.last_seq == everything
    assert exported.notices == ("too\\u001b old",)
    assert len(collector.requests) == 1


@pytest.mark.parametrize("number", ["many", -5, None, True, [], "9" * 400, 10**30])
def test_a_nonsense_count_of_rejected_records_stays_a_count(log: str, number: object) -> None:
    answer = json.dumps({"partialSuccess": {"rejectedLogRecords": number}}).encode()
    with Collector([(200, {}, answer)]).running() as collector:
        exported = send(log, at(collector))
    everything = len(list(records_after(log)))
    assert exported.sent + exported.rejected == everything
    assert exported.rejected in (0, everything)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 500, 501])
def test_a_refusal_is_not_tried_again(log: str, waits: list[float], status: int) -> None:
    answer = json.dumps({"code": 3, "message": f"you sent {TOKEN}\nand more"}).encode()
    with (
        Collector([(status, {}, answer)]).running() as collector,
        pytest.raises(ExportFailed) as caught,
    ):
        send(log, at(collector), headers={"Authorization": TOKEN})
    error = caught.value
    assert error.code == "CW-EXPORT-REFUSED"
    assert str(status) in error.message
    assert len(collector.requests) == 1
    assert waits == []
    assert "very-secret" not in f"{error} {error.detail} {error.__context__}"
    assert "\n" not in str(error)


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(log: str, status: int) -> None:
    with Collector().running() as other:
        there = {"Location": f"http://127.0.0.1:{other.port}/v1/logs"}
        with (
            Collector([(status, there, b"")]).running() as collector,
            pytest.raises(ExportFailed) as caught,
        ):
            send(log, at(collector), headers={"Authorization": TOKEN})
        assert caught.value.code == "CW-EXPORT-REDIRECT"
        assert len(collector.requests) == 1
        assert other.requests == []


@pytest.mark.parametrize(
    "answer", [b"<html>hello</html>", b"[1]", b"{", b'"{"', b"{}" * 50_000, b"\xff\xfe"]
)
def test_an_answer_that_is_no_otlp_is_no_success(
    log: str, waits: list[float], answer: bytes
) -> None:
    with (
        Collector([(200, {}, answer)]).running() as collector,
        pytest.raises(ExportFailed) as caught,
    ):
        send(log, at(collector))
    assert caught.value.code == "CW-EXPORT-ANSWER"
    assert waits == []


@pytest.mark.parametrize("reply", [(200, {}, b""), (204, {}, b""), (202, {}, b" {} \n")])
def test_terse_receivers_are_fine(log: str, reply: Reply) -> None:
    with Collector([reply]).running() as collector:
        assert send(log, at(collector)).rejected == 0


def raw_server(log: str, answers: list[bytes], **options: object) -> Exported:
    """Answers with these bytes, whatever it is asked, one connection each."""
    with listening() as listener:
        listener.settimeout(10)

        def work() -> None:
            for answer in answers:
                link, _ = listener.accept()
                with link:
                    link.settimeout(10)
                    got = b""
                    while b"\r\n\r\n" not in got:
                        got += link.recv(65_536)
                    head, _, body = got.partition(b"\r\n\r\n")
                    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    while len(body) < size:
                        body += link.recv(65_536)
                    link.sendall(answer)

        with serving(work):
            return send(log, f"http://127.0.0.1:{listener.getsockname()[1]}", **options)


def test_garbage_instead_of_http_is_told(log: str, waits: list[float]) -> None:
    with pytest.raises(ExportFailed) as caught:
        raw_server(log, [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"])
    assert caught.value.code == "CW-EXPORT-ANSWER"
    with pytest.raises(ExportFailed) as caught:
        raw_server(log, [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500 + b"\r\n"])
    assert caught.value.code == "CW-EXPORT-ANSWER"
    with pytest.raises(ExportFailed) as caught:
        raw_server(log, [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"])
    assert caught.value.code == "CW-EXPORT-ANSWER"


def test_a_connection_closed_without_an_answer_is_tried_again(log: str, waits: list[float]) -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    exported = raw_server(log, [b"", b"", good])
    assert exported.sent == exported.last_seq
    assert len(waits) == 2


def test_an_answer_that_is_cut_off_is_no_success(log: str, waits: list[float]) -> None:
    with pytest.raises(ExportFailed):
        raw_server(log, [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}"] * 5)
    assert len(waits) == 4


@pytest.mark.requirement("AUD-4")
def test_a_receiver_that_is_away_is_told_with_its_hint(log: str, waits: list[float]) -> None:
    with listening() as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ExportFailed) as caught:
        send(log, f"http://127.0.0.1:{port}", headers={"Authorization": TOKEN})
    assert caught.value.code == "CW-EXPORT-AWAY"
    assert caught.value.hint.endswith("(--after 0).")
    assert len(waits) == 4
    assert "secret" not in str(caught.value)


def test_a_receiver_that_hangs_is_not_waited_for_forever(log: str, waits: list[float]) -> None:
    with listening() as listener, pytest.raises(ExportFailed, match="in time"):
        send(log, f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
    assert len(waits) == 4


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.slow
def test_a_receiver_that_trickles_is_not_waited_for_forever(
    log: str, waits: list[float], certificates: Certificates, has_tls: bool
) -> None:
    over = threading.Event()
    with listening() as listener:
        listener.settimeout(10)

        def trickle() -> None:
            for _ in range(5):
                link, _ = listener.accept()
                with link:
                    if has_tls:
                        link = certificates.server().wrap_socket(link, server_side=True)
                    with link:
                        try:
                            link.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                            while not over.wait(0.02):
                                link.sendall(b"y")
                        except OSError:
                            continue

        with serving(trickle):
            where = f"{'https' if has_tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
            options = {"ca_file": certificates.ca_file} if has_tls else {}
            with pytest.raises(ExportFailed, match="in time"):
                send(log, where, timeout_s=0.5, **options)
            over.set()


def test_no_thread_stays_behind(log: str) -> None:
    with Collector().running() as collector:
        before = threading.active_count()
        send(log, at(collector), batch_records=5)
        names = [each.name for each in threading.enumerate()]
    assert len(collector.requests) > 2
    assert not [name for name in names if name.startswith("Timer")], before


def test_proxies_of_the_environment_are_not_used(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Collector().running() as collector:
        assert send(log, at(collector)).sent
