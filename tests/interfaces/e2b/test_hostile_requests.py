"""Requests that no SDK sends: malformed, huge, cut off, with wrong tokens and foreign ids."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from typing import Any

import httpx2 as httpx
import pytest
from e2b_code_interpreter import Sandbox

from interfaces.e2b.conftest import options
from interfaces.http.running_service import RunningService

pytestmark = pytest.mark.requirement("INT-2")
START = "/e2b/process.Process/Start"
STAT = "/e2b/filesystem.Filesystem/Stat"
STREAM = "application/connect+json"
CONFIG = {"process": {"cmd": "/bin/echo", "args": ["hi"]}, "stdin": False}


def headers_of(sandbox: Sandbox, **changes: str) -> dict[str, str]:
    found = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "X-Access-Token": str(sandbox._envd_access_token),
    }
    return {**found, **changes}


def envelope(message: Any, flag: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flag, len(data)) + data


def last_message(response: httpx.Response) -> dict[str, Any]:
    """The message that ends a stream."""
    data, found = response.content, None
    while data:
        flag, size = struct.unpack_from(">BI", data)
        found, data = (flag, json.loads(data[5 : 5 + size])), data[5 + size :]
    assert found is not None
    assert found[0] == 2
    return dict(found[1])


@pytest.fixture
def client(service: RunningService):
    with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as found:
        yield found


def start(client: httpx.Client, sandbox: Sandbox, body: bytes, **headers: str) -> dict[str, Any]:
    sent = {"Content-Type": STREAM, **headers_of(sandbox), **headers}
    response = client.post(START, content=body, headers=sent)
    assert response.status_code == 200
    return last_message(response)


def test_well_formed_start_passes(client: httpx.Client, sandbox: Sandbox):
    assert start(client, sandbox, envelope(CONFIG)) == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (b"\x00\x00", "invalid_argument"),
        (envelope(b"{"), "invalid_argument"),
        (envelope(b"\xff\xfe"), "invalid_argument"),
        (envelope(b"[" * 100_000), "invalid_argument"),
        (envelope({"process": {"cmd": 7}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/true", "args": ["a\0b"]}}), "invalid_argument"),
        (envelope(CONFIG) * 2, "invalid_argument"),
        (envelope(CONFIG)[:-3], "invalid_argument"),
        (envelope(CONFIG, flag=1), "unimplemented"),
        (struct.pack(">BI", 0, 0xFFFFFFFF), "invalid_argument"),
        (envelope({"process": {"cmd": "/no/such/program"}}), "invalid_argument"),
    ],
)
def test_malformed_start_is_an_error_of_the_stream(
    client: httpx.Client, sandbox: Sandbox, body: bytes, code: str
):
    assert start(client, sandbox, body)["error"]["code"] == code


def test_protocol_buffers_and_bad_deadlines_are_refused(client: httpx.Client, sandbox: Sandbox):
    binary = {**headers_of(sandbox), "Content-Type": "application/proto"}
    refused = client.post(STAT, content=b"\x0a\x01a", headers=binary)
    assert (refused.status_code, refused.json()["code"]) == (501, "unimplemented")
    late = start(client, sandbox, envelope(CONFIG), **{"Connect-Timeout-Ms": "-1"})
    assert late["error"]["code"] == "invalid_argument"


def test_input_stream_that_breaks_off_changes_nothing(client: httpx.Client, sandbox: Sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    begin = envelope({"start": {"process": {"pid": handle.pid}}})
    data = envelope({"data": {"input": {"stdin": "aGkK"}}})
    sent = {"Content-Type": STREAM, **headers_of(sandbox)}
    path = "/e2b/process.Process/StreamInput"
    for body in (begin + data[:-4], data, begin + envelope({"data": {"input": {"stdin": "%"}}})):
        refused = last_message(client.post(path, content=body, headers=sent))
        assert refused["error"]["code"] == "invalid_argument"
    assert last_message(client.post(path, content=begin + data, headers=sent)) == {}
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "hi\n"


def test_connection_that_is_cut_in_a_request_leaves_the_service_running(
    service: RunningService, sandbox: Sandbox
):
    lines = [f"POST {START} HTTP/1.1", f"Host: 127.0.0.1:{service.port}", "Content-Length: 5000"]
    lines += [f"{name}: {value}" for name, value in headers_of(sandbox).items()]
    lines += [f"Content-Type: {STREAM}", "", ""]
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", service.port)) as line:
            line.sendall("\r\n".join(lines).encode() + envelope(CONFIG)[:20])
            line.shutdown(socket.SHUT_WR)
    assert sandbox.commands.run("echo hi").stdout == "hi\n"


def test_token_opens_its_own_sandbox_alone(service: RunningService, sandbox: Sandbox, client):
    with Sandbox.create(**options(service)) as other:
        body = {"path": "/workspace"}
        mine = client.post(STAT, json=body, headers=headers_of(sandbox))
        assert mine.status_code == 200
        named = headers_of(sandbox, **{"E2b-Sandbox-Id": other.sandbox_id})
        assert client.post(STAT, json=body, headers=named).json()["code"] == "unavailable"
    for token in ("", "x", str(sandbox.traffic_access_token), service.tokens["user"]):
        wrong = headers_of(sandbox, **{"X-Access-Token": token})
        refused = client.post(STAT, json=body, headers=wrong)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert client.get("/e2b/files?path=a", headers=wrong).status_code == 401
        assert client.post("/e2b/execute", json={"code": "1"}, headers=wrong).status_code == 401


def test_traffic_token_lists_contexts_and_nothing_else(sandbox: Sandbox, client: httpx.Client):
    only = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2B-Traffic-Access-Token": str(sandbox.traffic_access_token),
    }
    assert client.get("/e2b/contexts", headers=only).status_code == 200
    assert client.post("/e2b/execute", json={"code": "1"}, headers=only).status_code == 401
    assert client.post(STAT, json={"path": "."}, headers=only).status_code == 401


def test_wrong_token_gets_the_same_answer_for_every_sandbox(sandbox: Sandbox, client):
    answers = set()
    for name in (sandbox.sandbox_id, "sbx_00000000000000000000000000", ""):
        wrong = {"E2b-Sandbox-Id": name, "X-Access-Token": "cws_wrong"}
        refused = client.get("/e2b/health", headers=wrong)
        answers.add((refused.status_code, refused.text))
    assert len(answers) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"timeout": -1}', b'{"timeout": 1e9}', b'{"metadata": {"a": 1}}',
     b'{"envVars": {"A=B": "c"}}', b'{"templateID": "../x"}', b"\0", b"[" * 90_000],
)  # fmt: skip
def test_malformed_new_sandbox_is_refused(service: RunningService, client, body: bytes):
    sent = {"X-API-KEY": service.tokens["user"]}
    before = len(client.get("/e2b/v2/sandboxes", headers=sent).json())
    refused = client.post("/e2b/v2/sandboxes", content=body, headers=sent)
    if body:
        assert refused.status_code == 400
        assert refused.json()["message"]
        assert len(client.get("/e2b/v2/sandboxes", headers=sent).json()) == before
    else:  # every field has a default
        assert client.delete(f"/e2b/sandboxes/{refused.json()['sandboxID']}", headers=sent)


def test_other_addresses_need_a_key_and_are_not_offered(service: RunningService, client):
    sent = {"X-API-KEY": service.tokens["user"]}
    assert client.get("/e2b/templates").status_code == 401
    refused = client.get("/e2b/templates", headers=sent)
    assert (refused.status_code, refused.json()["code"]) == (501, 501)
    assert client.get("/e2b/v2/sandboxes?limit=0", headers=sent).status_code == 400


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; filename="a"\r\n\r\nhi', 400),
        ("multipart/form-data; boundary=b", b"no form", 400),
        ("multipart/form-data", b"--b--", 400),
        ("multipart/form-data; boundary=b", b"--b--\r\n", 400),
        ("text/plain", b"hello", 400),
    ],
)  # fmt: skip
def test_malformed_upload_writes_nothing(sandbox: Sandbox, client, kind, body, status):
    sent = {**headers_of(sandbox), "Content-Type": kind}
    refused = client.post("/e2b/files?path=cut.txt", content=body, headers=sent)
    assert refused.status_code == status
    assert not sandbox.files.exists("cut.txt")


def test_upload_that_unpacks_to_any_size_is_refused(sandbox: Sandbox, client):
    sent = {**headers_of(sandbox), "Content-Type": "application/octet-stream",
            "Content-Encoding": "gzip"}  # fmt: skip
    bomb = gzip.compress(bytes(65 * 1024 * 1024))
    refused = client.post("/e2b/files?path=bomb", content=bomb, headers=sent)
    assert refused.status_code == 413
    cut = client.post("/e2b/files?path=bomb", content=gzip.compress(b"a" * 999)[:-9], headers=sent)
    assert cut.status_code == 400
    assert not sandbox.files.exists("bomb")


def test_signed_urls_and_metadata_of_files_are_not_offered(sandbox: Sandbox, client):
    assert client.get("/e2b/files?path=a&signature=v1_x").status_code == 501
    sent = {**headers_of(sandbox), "X-Metadata-Who": "me"}
    assert client.post("/e2b/files?path=a", content=b"x", headers=sent).status_code == 501


def test_browser_page_of_another_origin_is_refused(sandbox: Sandbox, client):
    evil = headers_of(sandbox, Origin="https://evil.example")
    assert client.get("/e2b/health", headers=evil).status_code == 403
    assert client.get("/e2b/health", headers=headers_of(sandbox)).status_code == 204
