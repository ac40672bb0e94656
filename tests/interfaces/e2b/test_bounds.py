"""Attacks by a client with a valid API key on the service itself: counts, descriptors, memory,
output after a revocation, and sequences for the terminal of a reader."""

from __future__ import annotations

import asyncio
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest
from e2b import AuthenticationException, PtySize
from e2b_code_interpreter import Sandbox

from cellwall.interfaces.e2b import process_rpc
from cellwall.interfaces.e2b.bodies import MAX_METADATA_LENGTH
from cellwall.interfaces.e2b.code_routes import MAX_CONTEXTS
from cellwall.interfaces.e2b.connect_rpc import MAX_MESSAGES
from cellwall.interfaces.e2b.paths import timestamp
from cellwall.interfaces.e2b.watchers import MAX_WATCHES
from interfaces.e2b.conftest import options
from interfaces.e2b.test_hostile_requests import STREAM, envelope, headers_of, last_message, start
from interfaces.http.running_service import ROOT, RunningService
from interfaces.test_cli_process import until

pytestmark = pytest.mark.requirement("INT-2")
WATCH = "/e2b/filesystem.Filesystem/CreateWatcher"


@pytest.fixture
def client(service: RunningService):
    with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as found:
        yield found


def watch_descriptors() -> int:
    """Of this process, in which the service runs."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "inotify" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def test_concurrent_requests_do_not_exceed_the_counts_of_a_sandbox(
    service: RunningService, client: httpx.Client
):
    with Sandbox.create(**options(service)) as sandbox, ThreadPoolExecutor(8) as threads:
        headers = headers_of(sandbox)

        def post(path: str, body: dict[str, Any]) -> int:
            return client.post(path, json=body, headers=headers).status_code

        watches = threads.map(lambda _: post(WATCH, {"path": "/workspace"}), range(40))
        assert sorted(watches) == [200] * MAX_WATCHES + [429] * (40 - MAX_WATCHES)
        contexts = threads.map(lambda _: post("/e2b/contexts", {}), range(40))
        assert sorted(contexts) == [200] * MAX_CONTEXTS + [400] * (40 - MAX_CONTEXTS)
        missing = client.post(WATCH, json={"path": "missing"}, headers=headers)
        assert missing.status_code != 200


def test_descriptors_of_watches_end_with_the_sandbox(service: RunningService, client: httpx.Client):
    before = watch_descriptors()
    sandbox = Sandbox.create(**options(service))
    made = client.post(WATCH, json={"path": "/workspace"}, headers=headers_of(sandbox))
    assert made.status_code == 200
    assert watch_descriptors() == before + 1
    sandbox.kill()
    assert watch_descriptors() == before


def test_reader_with_a_revoked_key_gets_no_output_that_another_client_reads(
    service: RunningService, sandbox: Sandbox
):
    directory = service.accounts.directory
    secret, token = service.call(
        directory.create_token(service.ids["user"], name="second", scopes=(), lives_s=3600, by=ROOT)
    )
    other = Sandbox.connect(sandbox.sandbox_id, **{**options(service), "api_key": secret})
    command = "while read line; do echo $line; done"
    handle = sandbox.commands.run(command, background=True, stdin=True)
    second = iter(other.commands.connect(handle.pid))
    first = iter(handle)
    sandbox.commands.send_stdin(handle.pid, "before\n")
    assert next(first) == next(second) == ("before\n", None, None)
    service.call(directory.revoke_token(token.id, by=ROOT))
    sandbox.commands.send_stdin(handle.pid, "after\n")
    assert next(first) == ("after\n", None, None)
    with pytest.raises(AuthenticationException):
        next(second)
    # The client that left has not taken the queue of the other one with it.
    sandbox.commands.send_stdin(handle.pid, "last\n")
    sandbox.commands.close_stdin(handle.pid)
    assert [text for text, _, _ in first] == ["last\n"]


def test_concurrent_clients_connect_to_one_resumed_sandbox(
    service: RunningService, client: httpx.Client
):
    sandbox = Sandbox.create(**options(service))
    sandbox.pause()
    path, sent = (
        f"/e2b/v2/sandboxes/{sandbox.sandbox_id}/connect",
        {"X-API-KEY": service.tokens["user"]},
    )
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: client.post(path, headers=sent), range(4)))
    assert sorted(each.status_code for each in found) == [200, 200, 200, 201]
    assert len({each.json()["envdAccessToken"] for each in found}) == 1
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    sandbox.kill()


def test_programs_whose_clients_left_are_forgotten_after_their_end(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_rpc, "MANY_PROCESSES", 2)

    def waiting_tasks() -> int:
        return service.call(count_tasks("kill_at"))

    with Sandbox.create(**options(service)) as sandbox:
        pids = [leave(service, sandbox, "cat") for _ in range(2)]
        for pid in pids:
            sandbox.commands.close_stdin(pid)
        until(lambda: not sandbox.commands.list())
        until(lambda: waiting_tasks() == 2)  # those of tests before this one end by themselves
        leave(service, sandbox, "sleep 600")
        until(lambda: waiting_tasks() == 1)
    until(lambda: waiting_tasks() == 0)


def leave(service: RunningService, sandbox: Sandbox, command: str) -> int:
    """Start a program, and return once the service has noticed that its client left."""
    handle = sandbox.commands.run(command, background=True, stdin=True, timeout=3600)
    handle.disconnect()
    counts = service.api.state.service.waiting._counts
    until(lambda: service.ids["user"] not in counts)
    return handle.pid


async def count_tasks(name: str) -> int:
    return sum(name in each.get_name() for each in asyncio.all_tasks())


def test_files_of_one_form_are_one_spool(
    service: RunningService, sandbox: Sandbox, client: httpx.Client, monkeypatch
):
    spools, made = service.api.state.service.spools, []
    make = spools.spool
    monkeypatch.setattr(spools, "spool", lambda: made.append(make()) or made[-1])
    contents = {f"form/{name}": name.encode() * 700_000 for name in "abc"} | {"form/d": b""}
    files = [("file", (name, data)) for name, data in contents.items()]
    sent = client.post("/e2b/files", files=files, headers=headers_of(sandbox))
    assert sent.status_code == 200
    assert [each.size_bytes for each in made] == [2_100_000]
    assert {name: sandbox.files.read(name, format="bytes") for name in contents} == contents
    sandbox.files.remove("form")


def test_terminal_output_draws_and_does_nothing_else(sandbox: Sandbox):
    shown: list[bytes] = []
    handle = sandbox.pty.create(PtySize(rows=30, cols=100), timeout=60)
    sandbox.pty.send_stdin(
        handle.pid, b"printf 'a\\033[31mb\\033]52;c;ZXZpbA==\\007\\033]0;t\\007c\\n'; exit\n"
    )
    handle.wait(on_pty=shown.append)
    assert b"a\x1b[31mbc\r\n" in b"".join(shown)
    assert b"\x1b]" not in b"".join(shown)


def test_streams_of_tiny_messages_are_bounded(client: httpx.Client, sandbox: Sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    begin = envelope({"start": {"process": {"pid": handle.pid}}})
    keepalive = envelope({"keepalive": {}})
    sent = {"Content-Type": STREAM, **headers_of(sandbox)}
    path = "/e2b/process.Process/StreamInput"
    few = client.post(path, content=begin + keepalive * 100, headers=sent)
    assert last_message(few) == {}
    many = client.post(path, content=begin + struct.pack(">BI", 0, 0) * MAX_MESSAGES, headers=sent)
    assert last_message(many)["error"]["code"] == "invalid_argument"
    handle.kill()
    refused = start(client, sandbox, struct.pack(">BI", 0, 0) * 200_000)
    assert refused["error"]["code"] == "invalid_argument"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"metadata": {"a": "x" * (MAX_METADATA_LENGTH - 1)}}, 201),
        ({"metadata": {f"k{n}": "x" * 1000 for n in range(17)}}, 400),
        ({"network": {"allowOut": ["10.0.0.0/8"]}}, 501),
        ({"network": {"allowOut": ["::/00"]}}, 501),
    ],
)
def test_metadata_is_bounded_and_ranges_of_addresses_are_refused(
    service: RunningService, client: httpx.Client, body: dict[str, Any], status: int
):
    sent = {"X-API-KEY": service.tokens["user"]}
    made = client.post("/e2b/v2/sandboxes", json=body, headers=sent)
    assert made.status_code == status
    if status == 201:
        client.delete(f"/e2b/sandboxes/{made.json()['sandboxID']}", headers=sent)


@pytest.mark.parametrize("limit", ["000000001" + "0" * 5000, "000000001000000000", "0", "101"])
def test_page_size_out_of_range_is_refused(service: RunningService, client, limit: str):
    sent = {"X-API-KEY": service.tokens["user"]}
    assert client.get(f"/e2b/v2/sandboxes?limit={limit}", headers=sent).status_code == 400
    assert client.get("/e2b/v2/sandboxes?limit=100", headers=sent).status_code == 200


def test_any_time_that_a_file_system_stores_has_a_text():
    assert timestamp(0) == "1970-01-01T00:00:00Z"
    assert timestamp(-(2.0**63)) == "1970-01-01T00:00:00Z"
    assert timestamp(2.0**63) == "9999-12-31T00:00:00Z"
