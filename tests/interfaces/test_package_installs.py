"""Packages by name: SDK, MCP, command line and hook, with real pip and npm in cells."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import anyio
import pytest

import cellwall as sdk
from cellwall.interfaces.hooks.answer import HookOptions, _own_app, reply_to
from conftest import audit_records, need
from interfaces.mcp_agent import connected
from interfaces.test_cli_process import DEADLINE_S, PROGRAM, cellwall
from registries import serve_registries, write_registry_config

pytestmark = [pytest.mark.slow, pytest.mark.requirement("PKG-1")]

YOUNG = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
TYPO = "reqeusts is not on pypi; did you mean requests (rank 6)?"
TOO_YOUNG = "zebra-atlas 2.0 is 3 hours old; 1.0 is allowed"


class Stalling(dict):
    """Files of a registry; the first download of the chosen one waits until it is released."""

    def __init__(self, files, path):
        super().__init__(files)
        self.path, self.asked, self.released = path, threading.Event(), threading.Event()

    def __getitem__(self, path):
        if path == self.path:
            self.asked.set()
            self.released.wait(DEADLINE_S)
        return super().__getitem__(path)


@pytest.fixture
def registries():
    with serve_registries() as served:
        served.add_wheel("zebra-atlas", "1.0", requires=["quagga-lines>=1"])
        served.add_wheel("zebra-atlas", "2.0", uploaded=YOUNG)
        served.add_wheel("quagga-lines", "1.5")
        served.add_wheel("okapi-maps", "1.0")
        served.add_npm("@zoo/zebra", "1.0.0", {"index.js": "module.exports = 'striped'\n"})
        yield served


@pytest.fixture
def config(tmp_path, registries):
    return write_registry_config(
        tmp_path / "config.toml", registries.base, 'without_feed = "allow"'
    )


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.mark.requirement("PKG-4", "PKG-5")
@pytest.mark.usefixtures("path")
def test_a_live_sandbox_without_network_gets_packages_by_name(config):
    with sdk.Sandbox.create(config=config, timeout=120) as sbx:
        assert sbx.run_code("import zebra_atlas").error["type"] == "ModuleNotFoundError"
        done = sbx.packages.install("zebra-atlas").raise_for_status()
        found = {(each.name, each.version, each.digest[:7]) for each in done.installed}
        assert found == {("zebra-atlas", "1.0", "sha256:"), ("quagga-lines", "1.5", "sha256:")}
        assert done.refused == (TOO_YOUNG,)
        assert sbx.run_code("import zebra_atlas; zebra_atlas.VERSION").value == "1.0"
        # A lock whose hash the index does not have: nothing of the package arrives.
        lock = sbx.files.read("pylock.toml")
        assert all(each.digest.removeprefix("sha256:") in lock for each in done.installed)
        wheel = "okapi_maps-1.0-py3-none-any.whl"
        changed = f'{{ name = "{wheel}", url = "x", hashes = {{ sha256 = "{"0" * 64}" }} }}'
        entry = f'[[packages]]\nname = "okapi-maps"\nversion = "1.0"\nwheels = [{changed}]\n'
        sbx.files.write("pylock.toml", f"{lock}\n{entry}")
        refused = sbx.packages.install("okapi-maps")
        assert refused.outcome.error.code == "CW-LOCK-CHANGED"
        shown = sbx.commands.run("ls -A; python3 -c 'import okapi_maps'")
        assert "ModuleNotFoundError" in shown.stderr
        assert ".cellwall-install" not in shown.stdout
        assert sbx.run_code("zebra_atlas.VERSION").value == "1.0"
        # The sandbox itself still has no registry.
        assert sbx.commands.run("pip download okapi-maps").exit_code != 0
    intents = [r["body"] for r in audit_records() if "requirements" in r["body"]]
    assert [body["requirements"] for body in intents] == [["zebra-atlas"], ["okapi-maps"]]


def test_npm_packages_go_into_node_modules(config):
    need(shutil.which("npm"), "npm")
    with sdk.Sandbox.create(config=config, timeout=120) as sbx:
        done = sbx.packages.install("@zoo/zebra@^1", ecosystem="npm").raise_for_status()
        assert [each.name for each in done.installed] == ["@zoo/zebra"]
        shown = sbx.commands.run("node -p 'require(\"@zoo/zebra\")'")
        assert shown.stdout == "striped\n", shown.stderr
        lock = json.loads(sbx.files.read("package-lock.json"))
        assert lock["packages"]["node_modules/@zoo/zebra"]["integrity"].startswith("sha512-")


@pytest.mark.requirement("PKG-2")
def test_an_agent_is_taught_by_the_answer_of_install_package(config, tmp_path, state_home):
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\nallow = ["Code", "Install"]\n')
    options = ("--config", config, "--policy", str(policy), "--timeout", "120")
    with connected(tmp_path, *options) as agent:
        done = agent.told("install_package", names=["zebra-atlas==2.0"])
        assert done["status"] == "failed"
        assert TOO_YOUNG in done["output"]
        done = agent.told("install_package", names="zebra-atlas", ecosystem="pypi")
        assert done["status"] == "ok", done
        assert (
            "1.0"
            in agent.told("run_code", code="import zebra_atlas; zebra_atlas.VERSION")["output"]
        )
        # The name is asked about; a decline says why, a yes asks the registry.
        done = agent.told("install_package", names=["reqeusts"])
        assert (done["status"], done["error"]["code"]) == ("denied", "CW-PACKAGE-REFUSED")
        assert "reqeusts is a misspelling of requests (rank 6)" in done["output"]
        assert "requests (rank 6)" in agent.person.asked[0].message
        agent.person.says("accept", answer="allow once")
        assert TYPO in agent.told("install_package", names=["reqeusts"])["output"]
        bad = agent.told("install_package", names=["git+https://a.example/b"])
        assert bad["error"]["code"] == "CW-BAD-PACKAGE"
        assert "address" in bad["error"]["message"]


def test_the_command_line_installs_for_a_directory_and_kill_leaves_it_whole(
    config, project, registries
):
    words = ["packages", "install", "--config", config, "--workspace", str(project)]
    files = registries.files = Stalling(
        registries.files, "/packages/quagga_lines-1.5-py3-none-any.whl"
    )
    with subprocess.Popen([PROGRAM, *words, "zebra-atlas"], stderr=subprocess.PIPE) as process:
        assert files.asked.wait(DEADLINE_S)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    files.released.set()
    # At most the copy is left, which no interpreter reads.
    assert not {"pylock.toml", ".cellwall-packages"} & {each.name for each in project.iterdir()}
    done = cellwall(*words, "zebra-atlas")
    assert done.returncode == 0, done.stderr
    assert b"Installed 2 packages" in done.stderr
    assert TOO_YOUNG.encode() in done.stderr
    assert {line.split()[0] for line in done.stdout.decode().splitlines()} == {
        "zebra-atlas",
        "quagga-lines",
    }
    assert {"pylock.toml", ".cellwall-packages"} <= {each.name for each in project.iterdir()}
    # The record ties a dependency to the request that caused it.
    why = cellwall("packages", "why", "quagga-lines", "--config", config, "--json")
    assert json.loads(why.stdout)["actions"][0]["command"] == "install pypi: zebra-atlas"
    found = sdk.run_code(
        "import zebra_atlas; zebra_atlas.VERSION", workspace=f"{project}:ro", config=config
    )
    assert found.value == "1.0", found.error


@pytest.mark.requirement("PKG-2")
def test_a_hooked_pip_install_runs_inside_and_the_next_command_finds_the_package(
    config, project, tmp_path
):
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\nallow = ["Bash"]\n')
    chosen = HookOptions(config=config, policy=str(policy), environ=dict(os.environ))

    def run(command):
        asked = {"session_id": "s", "transcript_path": "/t", "cwd": str(project)}
        asked |= {"permission_mode": "default", "hook_event_name": "PreToolUse"}
        asked |= {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "t"}
        reply = anyio.run(reply_to, json.dumps(asked).encode(), chosen, _own_app)
        told = json.loads(reply.stdout)["hookSpecificOutput"]
        assert told["permissionDecision"] == "allow", told
        line = told["updatedInput"]["command"]
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE_S * 2, check=False)  # fmt: skip

    done = run("env A=1 pip install zebra-atlas")
    assert done.returncode == 0, done.stderr
    assert TOO_YOUNG in done.stderr
    shown = run("python3 -c 'import zebra_atlas; print(zebra_atlas.VERSION)'")
    assert shown.stdout == "1.0\n", shown.stderr
