"""The user of a program, and the second one of a sandbox, by each local interface (ISO-1, INT-1)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.core.errors import CellwallError
from cellwall.sandbox.linux import cgroups
from conftest import need
from interfaces import test_cli_process
from interfaces.mcp_agent import connected
from interfaces.test_cli_process import error_code

ALLOWED = '[sandbox]\nsecond_user = "allow"\n'
BOTH = ("sandbox", "root")
UIDS = {"sandbox": "1000", "root": "0"}


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "allows.toml"
    path.write_text(ALLOWED)
    return str(path)


@pytest.fixture
def closed(tmp_path: Path) -> str:
    path = tmp_path / "refuses.toml"
    path.write_text('[sandbox]\nsecond_user = "refuse"\n')
    return str(path)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(CellwallError) as refused:
        call()
    assert refused.value.hint
    return refused.value.code


# The SDK


@pytest.mark.requirement("INT-1", "ISO-1")
def test_commands_terminals_and_background_programs_have_a_user(config: str) -> None:
    with cellwall.Sandbox.create(config=config, second_user=True) as sandbox:
        for user in BOTH:
            shown = sandbox.commands.run("id -un; id -u; echo $USER", user=user).stdout
            assert shown.split() == [user, UIDS[user], user]
            process = sandbox.commands.run("id -u", user=user, background=True)
            assert process.wait().stdout.split() == [UIDS[user]]
            terminal = sandbox.commands.terminal("id -u; stat -c %u $(tty)", user=user)
            assert terminal.wait().stdout.split() == [UIDS[user]] * 2
            sandbox.commands.run("id -u", user=user, output_file=f"of-{user}")
            assert sandbox.files.read(f"of-{user}") == f"{UIDS[user]}\n"
        assert sandbox.commands.run("id -u").stdout == "1000\n"
        assert sandbox.run_code("import os; os.getuid()").value == 1000


@pytest.mark.requirement("INT-1", "ISO-1")
def test_one_shot_commands_have_a_user(config: str, closed: str) -> None:
    for user in BOTH:
        ran = cellwall.run_command("id -u", user=user, config=config)
        assert ran.stdout == f"{UIDS[user]}\n", ran.error
    refused = cellwall.run_command("id", user="root", config=closed).refusal
    assert refused is not None
    assert (refused.code, bool(refused.hint)) == ("CW-SECOND-USER-OFF", True)
    assert refusal(lambda: cellwall.run_command("id", user="nobody", config=config)) == "CW-NO-USER"
    assert refusal(lambda: cellwall.run_code("1", user="root", config=config)) == "CW-NO-USER"


@pytest.mark.requirement("INT-1", "POL-11")
def test_a_user_that_the_sandbox_lacks_is_refused(config: str, closed: str) -> None:
    created = refusal(lambda: cellwall.Sandbox.create(config=closed, second_user=True))
    assert created == "CW-SECOND-USER-OFF"
    with cellwall.Sandbox.create(config=config) as sandbox:
        calls = (
            lambda: sandbox.commands.run("id", user="root"),
            lambda: sandbox.commands.run("id", user="root", background=True),
            lambda: sandbox.commands.run("id", user="root", output_file="of"),
            lambda: sandbox.commands.terminal("id", user="root"),
            lambda: sandbox.commands.run("id", user="nobody"),
        )
        assert [refusal(call) for call in calls] == ["CW-NO-USER"] * len(calls)
        assert sandbox.commands.run("id -u").stdout == "1000\n"
        assert refusal(lambda: sandbox.files.write("/root/file", "x")) == "CW-PATH-OUTSIDE"


@pytest.mark.requirement("INT-1")
def test_the_asynchronous_sdk_is_the_same(config: str) -> None:
    async def run() -> list[str]:
        async with cellwall.AsyncSandbox.create(config=config, second_user=True) as sandbox:
            return [(await sandbox.commands.run("id -u", user=each)).stdout for each in BOTH]

    assert anyio.run(run) == ["1000\n", "0\n"]


@pytest.mark.requirement("INT-1", "FS-9")
def test_forks_have_the_users_of_the_sandbox(config: str) -> None:
    with cellwall.Sandbox.create(config=config, second_user=True) as sandbox:
        sandbox.commands.run("chmod 1777 .")
        sandbox.commands.run("umask 077; echo secret > own", user="root")
        for fork in sandbox.fork(2):
            with fork:
                assert fork.commands.run("cat own", user="root").stdout == "secret\n"
                assert fork.commands.run("cat own").stdout == ""


# The command line


def cli(*words: str, config: str) -> tuple[int, str, str]:
    done = test_cli_process.cellwall(*words, CELLWALL_CONFIG=config)
    code = error_code(done) if b"cellwall: " in done.stderr else ""
    return done.returncode, done.stdout.decode(), code


@pytest.mark.requirement("INT-1", "POL-11")
def test_run_has_a_user(config: str, closed: str) -> None:
    assert cli("run", "--user", "root", "--", "id", "-u", config=config) == (0, "0\n", "")
    assert cli("run", "--", "id", "-u", config=config) == (0, "1000\n", "")
    refused = cli("run", "--user", "root", "--", "id", config=closed)
    assert refused == (125, "", "CW-SECOND-USER-OFF")
    assert cli("run", "--user", "bob", "--", "id", config=config) == (125, "", "CW-NO-USER")


@pytest.mark.usefixtures("supervisor")
@pytest.mark.requirement("INT-1", "POL-11")
def test_a_live_sandbox_of_the_supervisor_has_both(config: str, closed: str) -> None:
    refused = cli("create", "--second-user", "--config", closed, config=closed)
    assert refused == (125, "", "CW-SECOND-USER-OFF")
    _, shown, _ = cli("create", "--second-user", "--config", config, config=config)
    both = shown.strip()
    for user in BOTH:
        ran = cli("exec", "--user", user, both, "--", "id", "-u", config=config)
        assert ran == (0, f"{UIDS[user]}\n", "")
    assert cli("exec", "--user", "x", both, "--", "id", config=config) == (125, "", "CW-NO-USER")
    connected_to = cellwall.Sandbox.connect(both)
    assert connected_to.commands.run("id -u", user="root").stdout == "0\n"
    assert cli("kill", both, config=config)[0] == 0
    one = cli("create", "--config", config, config=config)[1].strip()
    assert cli("exec", "--user", "root", one, "--", "id", config=config) == (125, "", "CW-NO-USER")
    lacking = cellwall.Sandbox.connect(one)
    assert refusal(lambda: lacking.commands.run("id", user="root")) == "CW-NO-USER"
    assert cli("kill", one, config=config)[0] == 0


# MCP on standard input and output


@pytest.mark.requirement("INT-1", "POL-11")
def test_run_command_of_mcp_has_a_user_where_the_server_has_two(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    policy = home / "policy.toml"
    policy.write_text('[permissions]\nallow = ["Bash"]\n')
    file = home / "c.toml"
    file.write_text(ALLOWED)
    words = ("--config", str(file), "--policy", str(policy))
    with connected(home, *words, "--second-user") as agent:
        for user in BOTH:
            told = agent.told("run_command", command=f"test $(id -u) = {UIDS[user]}", user=user)
            assert told["exit_code"] == 0, told
        assert agent.call("run_command", command="id", user="bob").is_error
    with connected(home, *words) as agent:
        refused = agent.told("run_command", command="id", user="root")
        assert refused["error"]["code"] == "CW-NO-USER", json.dumps(refused)
        assert agent.told("run_command", command="test $(id -u) = 1000")["exit_code"] == 0
