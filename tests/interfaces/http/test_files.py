"""Files over HTTP: conditions, pages, and every encoding of a way out."""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.interfaces.http.spools import Spools
from interfaces.http.running_service import DEADLINE_S, RunningService, new_session, running_service
from interfaces.test_cli_process import until

pytestmark = pytest.mark.slow
_STEPS = (
    "..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..;", "%c0%ae%c0%ae", "%u002e%u002e",
    "..%00", "%00..", "..%5c", "..%2f..", "....//", "%ef%bc%8e%ef%bc%8e", "..%0d%0a", "..%09",
)  # fmt: skip


def request_raw(service: RunningService, method: str, path: str, token: str) -> tuple[int, bytes]:
    """Without a client that would tidy up the address."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: 127.0.0.1:{service.port}",
        f"Authorization: Bearer {token}",
        "Content-Length: 0",
        "Connection: close",
    ]
    with socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S) as line:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        seen = b""
        while part := line.recv(65_536):
            seen += part
    status, _, body = seen.partition(b"\r\n\r\n")
    return int(status.split(b" ")[1]), body


@pytest.mark.requirement("FS-1", "FS-7")
def test_no_encoding_of_a_path_leaves_the_workspace(
    service: RunningService, user: httpx.Client
) -> None:
    session, token = new_session(user), service.tokens["user"]
    base = f"/v1/sessions/{session}/files"
    user.put(f"{base}/inside.txt", content=b"inside").raise_for_status()
    targets = ["etc/passwd", "cellwall.toml"]
    paths = [f"{base}/{'/'.join([step] * depth)}/{target}" for step in _STEPS
             for depth in (1, 6) for target in targets]  # fmt: skip
    paths += [
        f"{base}//etc/passwd",
        f"{base}/%2fetc%2fpasswd",
        f"{base}/{service.home}/cellwall.toml",
    ]
    paths += [f"{base}/%2f%2f{str(service.home).lstrip('/').replace('/', '%2f')}%2fcellwall.toml"]
    paths += [f"{base}/proc/self/environ", f"{base}/%5c%5cserver%5cshare", f"{base}/~root/.ssh/x"]
    for path in paths:
        status, body = request_raw(service, "GET", path, token)
        assert status in {400, 403, 404}, (path, status, body[:300])
        assert b"root:" not in body
        assert b"argon2" not in body
        if service.home.name not in path:  # the client's own words may be repeated
            assert str(service.home).encode() not in body
        if "cellwall.toml" in path:
            for method in ("PUT", "DELETE"):
                request_raw(service, method, path, token)
    assert (service.home / "cellwall.toml").read_text().startswith("[accounts]")
    # Positive control: an encoded path inside is read, decoded once.
    assert request_raw(service, "GET", f"{base}/inside%2etxt", token) == (200, b"inside")


@pytest.mark.requirement("FS-7")
def test_files_of_tmp_are_reached_by_an_encoded_or_a_second_slash(
    service: RunningService, user: httpx.Client
) -> None:
    session, token = new_session(user), service.tokens["user"]
    base = f"/v1/sessions/{session}/files"
    user.put(f"{base}/%2Ftmp/a.txt", content=b"in memory").raise_for_status()
    assert request_raw(service, "GET", f"{base}//tmp/a.txt", token) == (200, b"in memory")
    listed = user.get(f"{base}/%2Ftmp/").json()["entries"]
    assert [each["path"] for each in listed] == ["/tmp/a.txt"]
    ran = user.post(f"/v1/sessions/{session}/commands", json={"command": "cat /tmp/a.txt"})
    assert ran.json()["stdout"] == "in memory"
    user.delete(f"{base}/%2Ftmp/a.txt").raise_for_status()
    assert user.get(f"{base}/%2Ftmp/a.txt").status_code == 404


def test_output_of_a_command_goes_to_a_file(user: httpx.Client) -> None:
    session = new_session(user)
    asked = {"command": "seq 1000000", "output_file": "all.txt"}
    ran = user.post(f"/v1/sessions/{session}/commands", json=asked).json()
    assert (ran["status"], ran["truncated"]) == ("ok", True), ran
    assert ran["stdout"].startswith("1\n2\n")
    assert ran["stdout"].endswith("\n1000000\n")
    found = user.get(f"/v1/sessions/{session}/files/all.txt")
    assert found.text == "".join(f"{number}\n" for number in range(1, 1_000_001))


@pytest.mark.requirement("FS-1")
def test_a_link_out_of_the_workspace_is_not_followed(
    service: RunningService, user: httpx.Client
) -> None:
    session = new_session(user)
    script = f"ln -s /etc/passwd out; ln -s {service.home} home; echo in > in; ln -s in link"
    made = user.post(
        f"/v1/sessions/{session}/code", json={"code": f"import os\nos.system({script!r})"}
    )
    assert made.json()["status"] == "ok"
    base = f"/v1/sessions/{session}/files"
    for path in ("out", "home/cellwall.toml", "home/"):
        answer = user.get(f"{base}/{path}")
        assert answer.status_code in {400, 403, 404}, answer.text
        assert str(service.home) not in answer.text
    put = user.put(f"{base}/home/cellwall.toml", content=b"x")
    assert put.status_code in {400, 403, 404}
    assert (service.home / "cellwall.toml").read_text().startswith("[accounts]")
    assert user.get(f"{base}/in").content == b"in\n"


def test_conditional_requests(user: httpx.Client) -> None:
    address = f"/v1/sessions/{new_session(user)}/files/a.bin"
    content = bytes(range(256)) * 100
    first = user.put(address, content=content, headers={"If-None-Match": "*"})
    assert first.status_code == 204
    tag = first.headers["ETag"]
    again = user.put(address, content=b"x", headers={"If-None-Match": "*"})
    assert (again.status_code, again.json()["error"]["code"]) == (412, "CW-PRECONDITION")
    got = user.get(address)
    assert (got.content, got.headers["ETag"]) == (content, tag)
    assert got.headers["content-disposition"] == "attachment"
    same = user.get(address, headers={"If-None-Match": f'"x", W/{tag}'})
    assert (same.status_code, same.content) == (304, b"")
    assert user.put(address, content=b"y", headers={"If-Match": tag}).status_code == 204
    assert user.put(address, content=b"z", headers={"If-Match": tag}).status_code == 412
    assert user.delete(address, headers={"If-Match": tag}).status_code == 412
    assert user.delete(address, headers={"If-Match": "*"}).status_code == 204
    assert user.get(address).status_code == 404
    assert user.put(address, content=b"z", headers={"If-Match": "*"}).status_code == 412


def test_of_two_conditional_writes_at_once_one_counts(user: httpx.Client) -> None:
    address = f"/v1/sessions/{new_session(user)}/files/a"
    tag = user.put(address, content=b"0").headers["ETag"]
    with ThreadPoolExecutor(8) as threads:
        done = list(
            threads.map(
                lambda n: user.put(address, content=b"%d" % n, headers={"If-Match": tag}),
                range(1, 9),
            )
        )
    codes = sorted(each.status_code for each in done)
    assert codes == [204] + [412] * 7
    winner = next(n for n, each in enumerate(done, 1) if each.status_code == 204)
    assert user.get(address).content == b"%d" % winner
    assert (
        user.get(address).headers["ETag"] == f'"{hashlib.sha256(b"%d" % winner).hexdigest()[:32]}"'
    )


def test_pages_of_a_directory_and_odd_names(user: httpx.Client) -> None:
    session = new_session(user)
    code = "import os\nos.mkdir('d')\nfor n in range(25): open(f'd/{n:02}', 'w').close()\nopen(b'd/\\xff', 'w').close()"
    user.post(f"/v1/sessions/{session}/code", json={"code": code}).raise_for_status()
    seen, after = [], ""
    while after is not None:
        page = user.get(
            f"/v1/sessions/{session}/files/d/", params={"limit": 10, "after": after}
        ).json()
        seen += [each["name"] for each in page["entries"]]
        after = page["next"]
    assert seen[:25] == [f"{n:02}" for n in range(25)]
    assert len(seen) == 26
    assert user.get(f"/v1/sessions/{session}/files/").json()["entries"][0]["kind"] == "dir"


def test_no_answer_names_a_path_of_the_host(service: RunningService, user: httpx.Client) -> None:
    session = new_session(user)
    answers = [
        user.post(f"/v1/sessions/{session}/code", json={"code": "1/0"}),
        user.post(f"/v1/sessions/{session}/commands", json={"command": "nonexistent-program"}),
        user.post(f"/v1/sessions/{session}/commands", json={"command": "sh"}),
        user.post(f"/v1/sessions/{session}/commands", json={"command": "true", "cwd": "/nowhere"}),
        user.post("/v1/sessions", json={"template": "nothing"}),
        user.post("/v1/sessions", json={"skills": ["nothing"]}),
        user.get("/v1/audit", params={"limit": 1000}),
    ]
    for answer in answers:
        assert answer.status_code < 500, answer.text
        for secret in (str(service.home), "/src/cellwall", "default_policies/"):
            assert secret not in answer.text


_MIB = 1024 * 1024


@pytest.mark.requirement("SRV-1", "FS-7")
def test_large_files_go_through_in_pieces(service: RunningService, user: httpx.Client) -> None:
    """The service runs in this process, so its memory is measured with the client's."""
    address = f"/v1/sessions/{new_session(user)}/files/deep/er/large"
    piece, count = bytes(range(256)) * 1024, 128  # 32 MiB
    expected = hashlib.sha256(piece * count).hexdigest()
    tracemalloc.start()
    try:
        put = user.put(address, content=(piece for _ in range(count)))
        assert put.status_code == 204, put.text
        seen, size = hashlib.sha256(), 0
        with user.stream("GET", address) as got:
            for part in got.iter_raw(65_536):
                seen.update(part)
                size += len(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (got.status_code, size, seen.hexdigest()) == (200, len(piece) * count, expected)
    assert got.headers["Content-Length"] == str(size)
    assert got.headers["ETag"] == put.headers["ETag"] == f'"{expected[:32]}"'
    assert peak < 16 * _MIB
    again = user.put(address, content=b"x", headers={"If-Match": put.headers["ETag"]})
    assert again.status_code == 204
    assert [each["name"] for each in _listing(user, address)] == ["large"]
    _wait_for_room(service)


def _listing(user: httpx.Client, address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = user.get(address.rpartition("/")[0] + "/").json()["entries"]
    return found


def _wait_for_room(service: RunningService) -> None:
    """No file is under way any more."""
    spools = service.api.state.service.spools
    until(lambda: spools.left_bytes == Spools("", max_file_bytes=1).left_bytes)


@pytest.mark.requirement("SRV-1", "FS-7")
def test_an_upload_that_breaks_off_leaves_the_old_file(
    service: RunningService, user: httpx.Client
) -> None:
    address = f"/v1/sessions/{new_session(user)}/files/kept"
    user.put(address, content=b"old").raise_for_status()
    spools = service.api.state.service.spools
    heads = {
        "a length": (b"Content-Length: 4194304", b"x" * 3 * _MIB),
        "chunks": (b"Transfer-Encoding: chunked", b"300000\r\n" + b"x" * 3 * _MIB + b"\r\n"),
    }
    for head, sent in heads.values():
        with _put_by_socket(service, address, head) as line:
            line.sendall(sent)
            until(lambda: spools.left_bytes < Spools("", max_file_bytes=1).left_bytes)
        _wait_for_room(service)
        assert user.get(address).content == b"old"
        assert [each["name"] for each in _listing(user, address)] == ["kept"]
    # Positive control: the same, to its end.
    with _put_by_socket(service, address, b"Content-Length: 3145728") as line:
        line.sendall(b"y" * 3 * _MIB)
        assert line.recv(100).startswith(b"HTTP/1.1 204")
    assert user.get(address).content == b"y" * 3 * _MIB


def _put_by_socket(service: RunningService, address: str, head: bytes) -> socket.socket:
    lines = [
        f"PUT {address} HTTP/1.1".encode(),
        f"Host: 127.0.0.1:{service.port}".encode(),
        f"Authorization: Bearer {service.tokens['user']}".encode(),
        head,
    ]
    line = socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S)
    line.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    return line


@pytest.mark.requirement("SRV-1")
def test_a_reader_that_stops_or_stalls_holds_nothing(
    service: RunningService, user: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"/v1/sessions/{new_session(user)}/files/large"
    content = bytes(16 * _MIB)
    user.put(address, content=content).raise_for_status()
    request = (
        f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n"
        f"Authorization: Bearer {service.tokens['user']}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S) as line:
        line.sendall(request)
        assert line.recv(1000).startswith(b"HTTP/1.1 200")
    _wait_for_room(service)
    monkeypatch.setattr("cellwall.interfaces.http.spools.STALLED_S", 0.2)
    with socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S) as line:
        line.sendall(request)
        _wait_for_room(service)  # while the connection is open and nothing is read
    monkeypatch.undo()
    assert user.get(address).content == content


@pytest.mark.requirement("SRV-1")
def test_ranges(user: httpx.Client) -> None:
    address = f"/v1/sessions/{new_session(user)}/files/a"
    content = bytes(range(100))
    tag = user.put(address, content=content).headers["ETag"]
    parts = {
        "bytes=0-0": (0, 1),
        "bytes=10-19": (10, 20),
        "bytes=90-": (90, 100),
        "bytes=-5": (95, 100),
        "bytes=-500": (0, 100),
        "bytes=50-999999": (50, 100),
    }
    for wanted, (start, end) in parts.items():
        got = user.get(address, headers={"Range": wanted, "If-Range": tag})
        assert (got.status_code, got.content) == (206, content[start:end]), wanted
        assert got.headers["Content-Range"] == f"bytes {start}-{end - 1}/100"
        assert got.headers["ETag"] == tag
    for wanted in ("bytes=100-", "bytes=100-200", "bytes=-0"):
        got = user.get(address, headers={"Range": wanted})
        assert (got.status_code, got.headers["Content-Range"]) == (416, "bytes */100"), wanted
    for wanted in ("bytes=5-4", "bytes=-", "bytes=0-1,3-4", "lines=0-1", "bytes=0x1-2", "bytes=1"):
        got = user.get(address, headers={"Range": wanted})
        assert (got.status_code, got.content) == (200, content), wanted
    other = user.get(address, headers={"Range": "bytes=0-0", "If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, content)
    user.put(address, content=b"").raise_for_status()
    assert (user.get(address).status_code, user.get(address).content) == (200, b"")
    assert user.get(address, headers={"Range": "bytes=0-"}).status_code == 416


@pytest.mark.requirement("SRV-1", "FS-3")
def test_limits_hold_while_a_file_comes(tmp_path: Path) -> None:
    with (
        running_service(tmp_path, max_file_bytes=2 * _MIB) as service,
        service.client("user") as user,
    ):
        session = new_session(user, limits={"file_size_bytes": _MIB, "disk_bytes": 2 * _MIB})
        address = f"/v1/sessions/{session}/files/a"
        user.put(address, content=b"old").raise_for_status()
        endless = itertools.chain.from_iterable(itertools.repeat([bytes(65_536)], 1024))
        with suppress(httpx.TransportError):  # the service need not read what it has refused
            assert user.put(address, content=endless).status_code == 413
        assert user.put(address, content=bytes(_MIB + 1)).status_code == 413
        assert user.get(address).content == b"old"
        for name in "bcd":
            last = user.put(address[:-1] + name, content=os.urandom(_MIB))
        assert last.json()["error"]["code"] == "CW-WORKSPACE-FULL"
        assert len(_listing(user, address)) == 2
