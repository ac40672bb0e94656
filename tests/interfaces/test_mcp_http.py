"""MCP over HTTP: who may connect, whose session it is, and when it ends."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from cellwall.core.accounts import Meter
from conftest import need
from interfaces.mcp_agent import DEADLINE_S, until
from interfaces.mcp_service import BOSS, McpService, RawClient, serving

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.only_on("warm", reason="the service makes its own cells")
POLICY = '[permissions]\nallow = ["Bash", "Code", "Read", "Write"]\nask = ["Bash(touch *)"]\n'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpService]:
    home = tmp_path_factory.mktemp("mcp-service")
    (home / "policy.toml").write_text(POLICY)
    settings = f'[policy]\nfiles = ["{home / "policy.toml"}"]\n[approvals]\ntimeout_s = 1\n'
    with serving(home, settings) as found:
        yield found


@pytest.fixture(autouse=True)
def disconnected(service: McpService) -> Iterator[None]:
    yield
    service.disconnect()


@pytest.fixture(params=["2026-07-28", "2025-11-25"])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.requirement("SRV-1")
def test_clients_are_led_to_the_metadata_of_the_resource(service: McpService) -> None:
    with service.http() as http:
        refused = http.post(service.url, json={})
        assert refused.status_code == 401
        origin = service.url.removesuffix("/mcp")
        place = f"{origin}/.well-known/oauth-protected-resource/mcp"
        scopes = "files:read files:write network:use packages:install sandbox:execute"
        assert refused.headers["www-authenticate"] == (
            f'Bearer realm="cellwall", scope="{scopes}", resource_metadata="{place}"'
        )
        found = http.get(place).json()
        assert found == http.get(place.removesuffix("/mcp")).json()
    assert (found["resource"], found["authorization_servers"]) == (service.url, [origin])
    assert found["bearer_methods_supported"] == ["header"]


@pytest.mark.requirement("SRV-2")
@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic YTpi", "Bearer cws_unknown", "Bearer a.b.c", "x" * 5000],
)
def test_without_a_valid_token_nothing_is_answered(service: McpService, header: str) -> None:
    with service.http(authorization=header) as http:
        for method in ("POST", "GET", "DELETE", "PUT"):
            refused = http.request(method, service.url, content=b"{" * 100)
            assert refused.status_code == 401, method
            assert "resource_metadata=" in refused.headers["www-authenticate"]
        # Nor in the address, where proxies and logs would keep it (RFC 6750, 2.3).
        token, _ = service.token("ann")
        assert http.post(f"{service.url}?access_token={token}", json={}).status_code == 401


@pytest.mark.requirement("SRV-2")
def test_a_token_for_another_audience_is_refused(service: McpService) -> None:
    other = service.access_token("ina", audience=service.url.removesuffix("/mcp") + "/v1")
    own = service.access_token("ina", audience=service.url)
    assert RawClient(service, own).call("run_code", code="6 * 7")["status"] == "ok"
    refused = RawClient(service, other).ask("tools/list")
    assert (refused.status_code, "invalid_token" in refused.headers["www-authenticate"]) == (
        401,
        True,
    )


@pytest.mark.requirement("RBAC-4")
def test_the_budget_of_the_user_binds_the_client(service: McpService) -> None:
    token, _ = service.token("thrifty")
    runs = Meter("user", service.user("thrifty"), "runs")
    set_budget = service.accounts.directory.set_budget
    service.run(lambda: set_budget(runs, limit=1.0, period_s=366 * 86_400.0, by=BOSS))
    client = RawClient(service, token)
    assert client.call("run_code", code="1")["status"] == "ok"
    refused = client.call("run_code", code="1")
    assert (refused["status"], refused["error"]["code"]) == ("denied", "CW-BUDGET")
    assert client.call("list_files")["status"] == "ok"  # which is no run
    other, _ = service.token("other-user")
    assert RawClient(service, other).call("run_code", code="1")["status"] == "ok"


@pytest.mark.requirement("RBAC-1")
def test_a_scope_and_a_lowered_role_bound_what_a_client_may_do(
    service: McpService, version: str
) -> None:
    reads, _ = service.token("reader", scopes=("files:read",))
    client = RawClient(service, reads, version)
    assert client.call("list_files")["status"] == "ok"
    assert client.call("run_code", code="1")["error"]["code"] == "CW-ROLE"
    none = RawClient(service, service.token("reader", scopes=("approvals:answer",))[0], version)
    refused = none.send()
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    token, _ = service.token(f"lowered-{version}")
    client = RawClient(service, token, version)
    assert client.call("run_code", code="x = 1")["status"] == "ok"
    service.set_role(f"lowered-{version}", "guest")
    assert client.call("run_code", code="x")["error"]["code"] == "CW-ROLE"
    service.set_role(f"lowered-{version}", "power-user")
    assert "1" in client.call("run_code", code="x")["output"]  # the same sandbox all along


@pytest.mark.requirement("RBAC-3")
def test_the_session_of_another_answers_like_an_unknown_one(service: McpService) -> None:
    ann, bob = (service.token(name)[0] for name in ("ann", "bob"))
    own = RawClient(service, ann, "2025-11-25")
    assert own.call("run_code", code="secret = 1")["status"] == "ok"
    foreign = own.session_id
    for token in (bob, service.token("ann")[0]):  # nor with another token of the same user
        thief = RawClient(service, token, "2025-11-25", session_id=foreign)
        stranger = RawClient(service, token, "2025-11-25", session_id="0" * 32)
        for method in ("POST", "GET", "DELETE"):
            answers = [each.send(method) for each in (thief, stranger)]
            found = [(each.status_code, each.content, _headers(each)) for each in answers]
            assert found[0] == found[1]
            assert found[0][0] == 404
    assert "1" in own.call("run_code", code="secret")["output"]


@pytest.mark.requirement("RBAC-3")
def test_a_sandbox_of_another_answers_like_an_unknown_one(
    service: McpService, version: str
) -> None:
    ann, bob = (RawClient(service, service.token(name)[0], version) for name in ("ann", "bob"))
    name = ann.call("run_code", code="1")["session"]
    foreign = bob.call("read_file", path="x", session=name)
    assert foreign == bob.call("read_file", path="x", session="sbx_" + "0" * 26)
    assert foreign["error"]["code"] == "CW-NO-SESSION"
    assert ann.call("run_code", code="1", session=name)["status"] == "ok"


@pytest.mark.requirement("RBAC-3")
def test_the_question_of_another_cannot_be_answered(service: McpService) -> None:
    ann, bob = (RawClient(service, service.token(name)[0]) for name in ("ann", "bob"))
    arguments = {"command": "touch asked"}
    asked = ann.result("tools/call", name="run_command", arguments=arguments)
    answer = {
        "name": "run_command",
        "arguments": arguments,
        "requestState": asked["requestState"],
        "inputResponses": {"approval": {"action": "accept", "content": {"answer": "allow once"}}},
    }
    stolen = bob.result("tools/call", **answer)["structuredContent"]
    assert stolen["error"]["code"] == "CW-NO-QUESTION"
    assert ann.result("tools/call", **answer)["structuredContent"]["status"] == "ok"


@pytest.mark.requirement("POL-8")
def test_a_question_without_an_answer_in_time_is_denied(service: McpService) -> None:
    silent = RawClient(service, service.token("ann")[0], "2025-11-25")
    arguments = {"command": "touch late"}
    with silent.stream("tools/call", name="run_command", arguments=arguments) as events:
        asked, *_, told = events
    assert asked["method"] == "elicitation/create"
    assert told["result"]["structuredContent"]["status"] == "denied"
    assert "late" not in silent.call("list_files")["output"]
    late = RawClient(service, service.token("ann")[0])
    asked = late.result("tools/call", name="run_command", arguments=arguments)
    queue = service.app.runtime.approvals.queue
    until(lambda: queue.list_waiting() == [])
    answered = late.result(
        "tools/call",
        name="run_command",
        arguments=arguments,
        requestState=asked["requestState"],
        inputResponses={"approval": {"action": "accept", "content": {"answer": "allow once"}}},
    )
    assert answered["structuredContent"]["status"] == "denied"
    assert "late" not in late.call("list_files")["output"]


@pytest.mark.requirement("RBAC-2")
def test_a_yes_of_a_role_that_may_not_answer_denies(service: McpService) -> None:
    with service.connected(service.token("plain", "user")[0], mode="legacy") as agent:
        agent.person.says("accept", answer="allow once")
        refused = agent.told("run_command", command="touch x")
    assert (refused["status"], "approvals:answer" in refused["decision"]["reason"]) == (
        "denied",
        True,
    )


@pytest.mark.requirement("SRV-2")
@pytest.mark.parametrize(
    ("what", "version"),
    [
        ("token", "2026-07-28"),
        ("token", "2025-11-25"),
        ("user", "2026-07-28"),
        ("everybody", "2025-11-25"),
    ],
)
def test_a_revocation_ends_what_runs_and_its_sandboxes(
    service: McpService, version: str, what: str
) -> None:
    name = f"leaver-{what}-{version}"
    token, token_id = service.token(name)
    client = RawClient(service, token, version)
    sandbox = client.call("run_code", code="1")["session"]
    kept = RawClient(service, service.token("kept" if what != "token" else name)[0], version)
    with client.stream("tools/call", name="run_code", arguments={"code": _WAITS}) as events:
        assert next(events)["method"] == "notifications/progress"  # the call has begun
        service.run(lambda: _revoke(service, what, name, token_id))
        assert client.send().status_code == 401
        assert [each for each in events if "result" in each] == []  # the stream ends
    until(lambda: sandbox not in os.listdir(service.home / "workspaces"))
    if what != "everybody":
        assert kept.call("run_code", code="1")["status"] == "ok"


_WAITS = "import time\ntime.sleep(600)"


async def _revoke(service: McpService, what: str, name: str, token_id: str) -> None:
    user_id = service.user_ids[name]
    if what == "token":
        await service.store.revoke_service_token(token_id, user_id=user_id)
    elif what == "user":
        await service.accounts.directory.revoke_user(user_id, by=BOSS)
    else:
        await service.accounts.directory.revoke_everybody(by=BOSS)


@pytest.mark.requirement("POL-1")
def test_without_rules_a_call_stays_inside(tmp_path: Path) -> None:
    """Whatever the role of the user permits: the model chooses the address, nobody else."""
    with serving(tmp_path) as service:
        client = RawClient(service, service.token("ann", "owner")[0])
        assert client.call("run_code", code="1")["status"] == "ok"
        assert client.call("fetch_url", url="https://example.com/")["status"] == "denied"


def test_a_stopping_service_ends_waiting_streams_and_lets_calls_end(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        client = RawClient(service, service.token("ann")[0], "2025-11-25")
        client.open()
        arguments = {"code": "import time; time.sleep(2); print(6 * 7)"}
        with (
            client.http.stream("GET", client.url, headers=client.headers()) as waiting,
            client.stream("tools/call", name="run_code", arguments=arguments) as events,
        ):
            assert waiting.status_code == 200
            next(events)
            service.portal.call(service.endpoint.drain)
            assert "data:" not in waiting.read().decode()
            refused = client.send()
            assert (refused.status_code, "CW-STOPPING" in refused.text) == (503, True)
            *_, told = events
            assert "42" in told["result"]["structuredContent"]["output"]


@pytest.mark.requirement("SRV-1")
def test_a_deleted_session_ends_with_its_sandboxes(service: McpService) -> None:
    client = RawClient(service, service.token("ann")[0], "2025-11-25")
    sandbox = client.call("run_code", code="1")["session"]
    with client.stream("tools/call", name="run_code", arguments={"code": _WAITS}) as events:
        next(events)
        assert client.send("DELETE").status_code == 200
        assert client.send().status_code == 404
        assert [each for each in events if "result" in each] == []
    until(lambda: sandbox not in os.listdir(service.home / "workspaces"))


def test_lost_events_are_sent_again_to_their_session_alone(service: McpService) -> None:
    """A client that loses its connection loses no result (2025-11-25)."""
    client = RawClient(service, service.token("ann")[0], "2025-11-25")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint(6 * 7)"
    with client.stream("tools/call", name="run_code", arguments={"code": code}) as events:
        next(events)
        last = client.last_event_id
    assert last
    assert client.call("write_file", path="go", content="")["status"] == "ok"
    thief = RawClient(service, service.token("bob")[0], "2025-11-25")
    thief.open()
    assert list(thief.replayed(last)) == []
    [found] = [each["result"] for each in client.replayed(last) if "result" in each]
    assert "42" in found["structuredContent"]["output"]


def test_a_client_that_leaves_cancels_its_call(service: McpService) -> None:
    """2026-07-28 has no other way to cancel."""
    client = RawClient(service, service.token("ann")[0])
    sandbox = client.call("run_code", code="1")["session"]
    with client.stream("tools/call", name="run_code", arguments={"code": _WAITS}) as events:
        next(events)
    # Calls of one interpreter wait for each other: this one would wait for ten minutes.
    assert client.call("run_code", code="2", session=sandbox)["status"] == "ok"


@pytest.mark.requirement("INT-1")
def test_the_official_inspector_connects_with_a_token(service: McpService) -> None:
    programs = ROOT / ".tools/inspector/node_modules/.bin"
    need((programs / "mcp-inspector").exists(), "the MCP inspector (./dev test installs it)")
    token, _ = service.token("ann")
    call = ("--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=20 + 1")
    header = ("--transport", "http", "--header", f"Authorization: Bearer {token}")
    done = subprocess.run(
        [programs / "mcp-inspector", "--cli", service.url, *header, *call],
        capture_output=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["structuredContent"]["status"] == "ok"


def _headers(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "date"}
