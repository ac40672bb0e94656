"""Files over HTTP: conditions, pages, and every encoding of a way out."""

from __future__ import annotations

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from interfaces.http.running_service import DEADLINE_S, RunningService, new_session

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
