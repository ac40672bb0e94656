"""Domains and secrets as users name them: in Python, at the command line, for a live sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellwall
from cellwall import Status
from cellwall.core.outcomes import EventKind
from conftest import audit_records, need
from interfaces.test_cli_process import PROGRAM
from interfaces.test_supervisor import until
from outside import Outside, Seen, internet

PASSPHRASE = "correct horse battery"
VALUE = "the-value-that-never-enters"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
SHOWN = """
import json, os, urllib.request
def get(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.read().decode()
    except OSError as error:
        return f"{getattr(error, 'code', '')} {getattr(error, 'headers', None) and error.headers.get('X-Cellwall-Refused')}"
"""


def reflect(seen: Seen) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps([seen.method, seen.path, seen.headers]).encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with internet(tmp_path_factory.mktemp("outside")) as world:
        yield world


@pytest.fixture
def config(world: Outside, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", world.ca_file)  # for the proxy's own connections
    return world.config(QUICK)


@pytest.fixture
def vault(config: str) -> Iterator[cellwall.Vault]:
    with cellwall.Vault.open(PASSPHRASE, create=True, config=config) as vault:
        vault.set("TOKEN", VALUE)
        yield vault


@pytest.mark.requirement("NET-2", "AUD-1")
@pytest.mark.usefixtures("path")
def test_what_is_named_is_reached_and_nothing_else_and_both_are_on_record(world, config):
    named, other = world.web("named.example"), world.web("other.example")
    code = f"{SHOWN}[get('{named.url}/a'), get('{other.url}/b')]"
    done = cellwall.run_code(code, config=config, allow_domains=[named.rule])
    assert done.value == ["hello from outside\n", "403 CW-NOT-ALLOWED"]
    assert [(each.category, each.severity) for each in done.outcome.findings] == [
        ("network", "low")
    ]
    assert f"--allow-domain {other.rule}" in done.outcome.findings[0].message
    assert ([seen.path for seen in named.seen], other.seen) == (["/a"], [])
    told = [
        {key: each["body"].get(key) for key in ("event", "host", "code")}
        for each in audit_records(kind=EventKind.CONNECTION)
        if each["action_id"] == done.outcome.action_id
    ]
    assert {"event": "opened", "host": "named.example", "code": None} in told
    assert {"event": "refused", "host": "other.example", "code": "CW-NOT-ALLOWED"} in told
    closed = [
        e["body"]
        for e in audit_records(kind=EventKind.CONNECTION)
        if e["body"]["event"] == "closed"
    ]
    assert 0 < closed[-1]["bytes_up"] <= done.outcome.usage.sent_bytes
    assert closed[-1]["bytes_down"] > len("hello from outside\n")


@pytest.mark.requirement("NET-2")
@pytest.mark.usefixtures("path")
def test_a_live_sandbox_counts_the_bytes_of_each_run_once(world, config):
    named = world.web("named.example")
    code = f"{SHOWN}get('{named.url}/a')"
    with cellwall.Sandbox.create(config=config, allow_domains=[named.rule]) as sandbox:
        runs = [sandbox.run_code(each) for each in (code, "1 + 1", code)]
    sent = [done.outcome.usage.sent_bytes for done in runs]
    assert sent[0] > 0
    assert (sent[1], sent[2] < 2 * sent[0]) == (0, True)


@pytest.mark.requirement("NET-2")
@pytest.mark.usefixtures("path")
def test_the_domains_of_a_live_sandbox_can_be_changed_while_something_runs(world, config):
    first, second = world.web("first.example"), world.web("second.example")
    ask = f"{SHOWN}[get('{first.url}/'), get('{second.url}/')]"
    reached, refused = "hello from outside\n", "403 CW-NOT-ALLOWED"
    with cellwall.Sandbox.create(config=config, allow_domains=[first.rule]) as sandbox:
        assert sandbox.run_code(ask).value == [reached, refused]
        sandbox.allow_domains([second.rule])
        assert sandbox.run_code(ask).value == [refused, reached]
        sandbox.allow_domains([])
        assert sandbox.run_code(ask).value == [refused, refused]
        with pytest.raises(cellwall.CellwallError) as failed:
            sandbox.allow_domains(["*.com"])
        assert failed.value.code == "CW-BAD-DOMAIN"
        assert sandbox.run_code("1 + 1").value == 2
    with cellwall.Sandbox.create(config=config) as closed:
        closed.run_code("1")
        with pytest.raises(cellwall.CellwallError) as failed:
            closed.allow_domains([first.rule])
        assert failed.value.hint
        assert closed.run_code(f"{SHOWN}get('{first.url}/')").value.strip() == "None"


@pytest.mark.usefixtures("path")
def test_a_sandbox_whose_cell_ended_has_its_egress_again(world, config):
    site = world.web("again.example")
    with cellwall.Sandbox.create(config=config, allow_domains=[site.rule]) as sandbox:
        ask = f"{SHOWN}get('{site.url}/')"
        assert sandbox.run_code(ask).value == "hello from outside\n"
        grow = "x = []\nwhile True: x.append(bytearray(10_000_000))"
        assert sandbox.run_code(grow).status is Status.LIMIT
        assert sandbox.run_code(ask).value == "hello from outside\n"


@pytest.mark.requirement("NET-2", "RBAC-2")
def test_who_may_not_use_the_network_gets_none(world):
    site = world.web("role.example")
    config = world.config('[roles]\ndefault = "user"\n')
    done = cellwall.run_code("1", config=config, allow_domains=[site.rule])
    assert (done.status, done.outcome.error.code) == (Status.DENIED, "CW-ROLE")
    assert cellwall.run_code("1", config=config).value == 1


@pytest.mark.requirement("NET-2", "POL-1")
def test_a_policy_judges_domains_as_it_judges_fetches(world, config, tmp_path):
    site = world.web("ruled.example")
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[permissions]\nallow = ["Code", "Code(*)", "WebFetch(domain:ruled.example)"]\n'
    )
    options: dict[str, Any] = {"config": config, "policy": str(policy)}
    code = f"{SHOWN}get('{site.url}/')"
    done = cellwall.run_code(code, allow_domains=[site.rule], **options)
    assert done.value == "hello from outside\n", done.outcome.error
    for wider in ("other.example", "*.ruled.example"):
        refused = cellwall.run_code(code, allow_domains=[wider], **options)
        assert refused.status is Status.DENIED
    wide = '"Code(*)", "WebFetch(domain:*.wide.example)"'
    policy.write_text(f"[permissions]\nallow = [{wide}]\n")
    assert cellwall.run_code("1", allow_domains=["*.wide.example"], **options).value == 1
    # What a rule denies below a wildcard is denied with all of it: the strictest wins.
    policy.write_text(
        f'[permissions]\nallow = [{wide}]\ndeny = ["WebFetch(domain:bad.wide.example)"]\n'
    )
    refused = cellwall.run_code("1", allow_domains=["*.wide.example"], **options)
    assert (refused.status, refused.outcome.decision.rule) == (
        Status.DENIED,
        "WebFetch(domain:bad.wide.example)",
    )


@pytest.mark.requirement("NET-2")
def test_the_configuration_names_domains_for_every_sandbox(world, tmp_path):
    site = world.web("always.example")
    path = world.config()
    Path(path).write_text(Path(path).read_text() + f'allow_domains = ["{site.rule}"]\n')
    assert (
        cellwall.run_code(f"{SHOWN}get('{site.url}/')", config=path).value == "hello from outside\n"
    )
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(Path(path).read_text().replace(site.rule, "*.com"))
    with pytest.raises(cellwall.CellwallError) as failed:
        cellwall.run_code("1", config=str(wrong))
    assert failed.value.code == "CW-BAD-DOMAIN"


@pytest.mark.requirement("SEC-3", "SEC-5", "NET-5", "NET-6")
@pytest.mark.usefixtures("path")
def test_a_secret_is_used_without_entering(world, config, vault):
    api = world.web("api.example", tls=True, reply=reflect)
    other = world.web("elsewhere.example", reply=reflect)
    vault.grant("TOKEN", host="api.example", ports=(api.port,))
    code = f"""{SHOWN}
token = os.environ["TOKEN"]
[token, get("{api.url}/me", Authorization="Bearer " + token), get("{other.url}/x", Authorization=token),
 get("{other.url}/y?v=" + "{VALUE}")]"""
    done = cellwall.run_code(
        code, config=config, allow_domains=[api.rule, other.rule], secrets=["TOKEN"]
    )
    placeholder, answer, elsewhere, leaked = done.value
    assert placeholder.startswith("hfsecret_token_")
    # The server got the value; what it sent back of it is the placeholder again.
    assert api.seen[-1].headers["authorization"] == f"Bearer {VALUE}"
    assert json.loads(answer)[2]["authorization"] == f"Bearer {placeholder}"
    assert json.loads(elsewhere)[2]["authorization"] == placeholder
    assert leaked == "403 CW-LEAK"
    assert [seen.path for seen in other.seen] == ["/x"]
    record = json.dumps(audit_records())
    assert VALUE not in record
    events = [each["body"].get("event") for each in audit_records(kind=EventKind.CONNECTION)]
    assert {"secret-used", "placeholder-stayed", "echo-removed", "leak-refused"} <= set(events)


@pytest.mark.requirement("SEC-3", "SEC-7")
def test_a_live_sandbox_keeps_its_placeholder_and_loses_the_secret_when_it_is_revoked(
    world, config, vault
):
    api = world.web("live.example", tls=True, reply=reflect)
    vault.grant("TOKEN", host="live.example", ports=(api.port,))
    ask = f"{SHOWN}get('{api.url}/', Authorization=os.environ['TOKEN'])"
    with cellwall.Sandbox.create(
        config=config, allow_domains=[api.rule], secrets=["TOKEN"]
    ) as sandbox:
        held = sandbox.run_code("import os; os.environ['TOKEN']").value
        sandbox.run_code(ask)
        assert sandbox.commands.run("echo $TOKEN").stdout.strip() == held
        assert api.seen[-1].headers["authorization"] == VALUE
        vault.revoke("TOKEN")
        sandbox.run_code(ask)
        assert len([seen for seen in api.seen if seen.headers["authorization"] == VALUE]) == 1


@pytest.mark.requirement("SEC-3")
def test_a_secret_without_a_grant_or_of_another_name_is_refused(config, vault):
    for names, code in ((["TOKEN"], "CW-VAULT-NOT-GRANTED"), (["NOPE"], "CW-VAULT-UNKNOWN")):
        done = cellwall.run_command("true", config=config, secrets=names)
        assert (done.status, done.outcome.error.code) == (Status.ERROR, code)
        assert done.outcome.error.hint


def typed(
    *words: str, stdin: str = "", passphrase: str = PASSPHRASE
) -> subprocess.CompletedProcess:
    """The command line, with the passphrase on a descriptor."""
    reading, writing = os.pipe()
    os.write(writing, f"{passphrase}\n".encode())
    os.close(writing)
    at = words.index("--passphrase-fd") + 1
    line = [PROGRAM, *words[:at], str(reading), *words[at:]]
    try:
        return subprocess.run(
            line, input=stdin, capture_output=True, text=True, pass_fds=(reading,), check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(reading)


@pytest.mark.requirement("SEC-2", "SEC-5")
def test_the_commands_of_the_guide_work_together(world, config):
    need(os.path.exists("/usr/bin/curl"), "curl")
    api = world.web("cli.example", tls=True, reply=reflect)
    key, place = ("--passphrase-fd",), ("--config", config)
    assert typed("vault", "init", *key, *place).returncode == 0
    assert typed("vault", "set", *key, *place, "TOKEN", stdin=VALUE).returncode == 0
    grant = ("vault", "grant", "TOKEN", "--host", "cli.example", "--port", str(api.port))
    assert typed(*grant, *key, *place).returncode == 0
    run = ("run", *place, *key, "--allow-domain", api.rule, "--secret", "TOKEN", "--")
    script = f'curl -sS -H "Authorization: Bearer $TOKEN" {api.url}/me'
    done = typed(*run, "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert api.seen[-1].headers["authorization"] == f"Bearer {VALUE}"
    assert VALUE not in done.stdout
    wrong = typed(*run, "true", passphrase="another one")
    assert wrong.returncode == 125
    assert "CW-VAULT-WRONG-KEY" in wrong.stderr


@pytest.mark.requirement("NET-2")
def test_sandboxes_in_the_supervisor_have_egress_as_well(world, own_supervisor):
    site = world.web("resident.example")
    config = world.config()
    ask = f"{SHOWN}get('{site.url}/')"
    sandbox = cellwall.Sandbox.create(keep_alive=60, config=config, allow_domains=[site.rule])
    try:
        assert sandbox.run_code(ask).value == "hello from outside\n"
        cellwall.Sandbox.connect(sandbox.id).allow_domains([])
        assert sandbox.run_code(ask).value == "403 CW-NOT-ALLOWED"
    finally:
        sandbox.kill()


@pytest.mark.requirement("ISO-8")
def test_nothing_of_an_egress_session_is_left_after_it(world, config):
    site = world.web("left.example")
    code = f"{SHOWN}get('{site.url}/')"

    def run() -> None:
        done = cellwall.run_code(code, config=config, allow_domains=[site.rule])
        assert done.value == "hello from outside\n"

    run()
    before = held()
    for _ in range(5):
        run()
    until(lambda: held() <= before)


def held() -> tuple[int, int]:
    """Descriptors of this process, the server's among them, and threads of ours."""
    threads = [each for each in threading.enumerate() if each.name.startswith("cellwall")]
    return len(os.listdir("/proc/self/fd")), len(threads)
