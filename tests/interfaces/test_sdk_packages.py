"""Packages: installed inside a live sandbox, or named when the sandbox is made.

No test needs a network: the wheel is made here, and a registry on loopback serves it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

import cellwall as sdk
from cellwall.admin.templates import Templates
from cellwall.core.errors import BadInput
from cellwall.core.types import Principal
from cellwall.sandbox.templates import definitions, environments
from interfaces.mcp_agent import connected
from interfaces.test_cli_process import cellwall, error_code
from registries import Registries, build_wheel
from tiny_index import MODULE, PROGRAM, tiny_index, use_config, write_config

ANN = Principal("ann", "sdk")

WHEEL = "tiny-1.0-py3-none-any.whl"
INSTALL = f"pip install --no-index ./{WHEEL}"
ANSWER = "import tiny; tiny.ANSWER"


@pytest.fixture(scope="module")
def wheel() -> bytes:
    return build_wheel("tiny", "1.0", {**MODULE, **PROGRAM})[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Registries, Path]]:
    folder = tmp_path_factory.mktemp("index")
    with tiny_index(folder) as registries:
        yield registries, folder


@pytest.fixture
def index(served, monkeypatch) -> Registries:
    """The registry from which packages come."""
    use_config(monkeypatch, served[1])
    return served[0]


@pytest.mark.requirement("LANG-2")
@pytest.mark.usefixtures("path")
def test_pip_install_in_a_live_sandbox_serves_the_next_code_and_command(wheel):
    with sdk.Sandbox.create(timeout=120) as sbx, sdk.Sandbox.create() as other:
        assert sbx.run_code("import tiny").error["type"] == "ModuleNotFoundError"
        sbx.files.write(WHEEL, wheel)
        done = sbx.commands.run(INSTALL)
        assert done.exit_code == 0, done.stderr
        assert sbx.run_code(ANSWER).value == 42  # in the interpreter that did not find it before
        assert sbx.commands.run(["python3", "-c", f"{ANSWER}; print(6)"]).stdout == "6\n"
        assert sbx.commands.run("tiny").stdout == "42\n"  # its program
        installed = sbx.run_code("tiny.__file__").value
        assert installed.startswith("/workspace/.local/")  # bound by the disk limit, and ends there
        assert other.run_code("import tiny").error["type"] == "ModuleNotFoundError"


@pytest.mark.usefixtures("path")
@pytest.mark.only_on("warm", reason="where modules are found is told by the test above")
def test_code_can_install_and_import_in_one_piece(wheel):
    code = f"""
import subprocess, sys
subprocess.run({INSTALL.split()!r}, check=True, capture_output=True)
import tiny
tiny.ANSWER
"""
    with sdk.Sandbox.create(timeout=120) as sbx:
        sbx.files.write(WHEEL, wheel)
        done = sbx.run_code(code)
        assert done.value == 42, done.stderr


@pytest.mark.parametrize(
    "mode",
    ["rw", *(pytest.param(each, marks=pytest.mark.long) for each in ("ro", "cow"))],
)
def test_a_given_directory_gets_no_packages(tmp_path, wheel, mode):
    given = tmp_path / "given"
    given.mkdir()
    (given / WHEEL).write_bytes(wheel)
    with sdk.Sandbox.create(workspace=f"{given}:{mode}", timeout=120) as sbx:
        done = sbx.commands.run(INSTALL)
        assert done.exit_code == 0, done.stderr
        assert sbx.run_code(f"{ANSWER}, tiny.__file__[:12]").value == [42, "/tmp/.local/"]
    assert os.listdir(given) == [WHEEL]


def test_a_pth_file_that_fails_or_ends_the_interpreter_costs_one_run(wheel):
    with sdk.Sandbox.create(timeout=120) as sbx:
        sbx.files.write(WHEEL, wheel)
        assert sbx.commands.run(INSTALL).exit_code == 0
        ending = "import sys; sys.exit(3)"
        sbx.commands.run(f"echo '{ending}' > $(python3 -m site --user-site)/evil.pth")
        assert sbx.run_code("1").exit_code == 3
        assert sbx.run_code("20 + 1").value == 21


def test_without_network_one_line_tells_how_to_get_packages():
    done = sdk.run_command("pip install tiny", timeout=120)
    assert done.exit_code == 1
    (hint,) = [each.message for each in done.outcome.findings if each.category == "network"]
    assert "--packages pypi" in hint
    assert "--package NAME" in hint


# Packages that are named when the sandbox is made


@pytest.fixture(scope="module")
def built_template(tmp_path_factory, served) -> Path:
    """The template of `tiny`, built once; a build takes seconds."""
    home = tmp_path_factory.mktemp("built")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLWALL_HOME", str(home))
        use_config(patch, served[1])
        templates = Templates()
        templates.build_request(["tiny"], principal=ANN, on_progress=lambda _: None)
    return home / "templates"


@pytest.fixture
def ready(built_template, index) -> Registries:
    """This state folder has the template already."""
    shutil.copytree(built_template, Path(os.environ["CELLWALL_HOME"], "templates"), symlinks=True)
    return index


@pytest.mark.requirement("LANG-2")
def test_packages_are_built_once_read_only_and_found_again(index, capfd):
    with sdk.Sandbox.create(packages=["Tiny"]) as sbx:
        told = capfd.readouterr().err.splitlines()
        assert told == [
            f"cellwall: {each}" for each in ("resolving", "installing 1 package", "compiling")
        ]
        assert sbx.run_code(ANSWER).value == 42
        assert sbx.commands.run(["python3", "-c", f"{ANSWER}; print(6)"]).stdout == "6\n"
        child = "subprocess.run([sys.executable, '-c', 'import tiny']).returncode"
        assert sbx.run_code(f"import subprocess, sys; {child}").value == 0
        touched = sbx.run_code("open('/opt/packages/x', 'w')").error
        assert touched["type"] in {"OSError", "PermissionError"}
    index.seen.clear()
    assert sdk.run_code(ANSWER, packages=["tiny"]).value == 42
    assert (capfd.readouterr().err, index.seen) == ("", [])
    assert sdk.run_code(ANSWER).error["type"] == "ModuleNotFoundError"


@pytest.mark.usefixtures("ready")
def test_what_is_installed_inside_wins_over_the_template(capfd):
    newer = build_wheel("tiny", "1.0", {"tiny/__init__.py": "ANSWER = 43\n"})[1]
    with sdk.Sandbox.create(packages=["tiny"], timeout=120) as sbx:
        assert capfd.readouterr().err == "", "nothing is built"
        sbx.files.write(WHEEL, newer)
        assert sbx.commands.run(f"{INSTALL} --ignore-installed").exit_code == 0
        assert sbx.run_code(ANSWER).value == 43
        assert sbx.commands.run(["python3", "-c", "import tiny; print(tiny.ANSWER)"]).stdout == (
            "43\n"
        )


@pytest.mark.parametrize("create", [sdk.Sandbox.create, lambda **kw: sdk.run_code("1", **kw)])
def test_bad_requests_are_refused_before_anything_is_asked(create, state_home):
    for packages in ("tiny", ["-r /etc/passwd"], ["x @ file:///etc/passwd"], ["a\n--pre"], [7]):
        with pytest.raises(BadInput) as told:
            create(packages=packages)
        assert told.value.code == "CW-BAD-PACKAGE"
    with pytest.raises(BadInput) as told:
        create(packages=["tiny"], template="python-data")
    assert told.value.code == "CW-USAGE"
    assert not Path(state_home, "templates").exists()


@pytest.mark.usefixtures("path", "ready")
def test_a_template_that_was_removed_and_built_again_is_the_new_one():
    def answer() -> object:
        return sdk.run_code(ANSWER, packages=["tiny"]).value

    assert answer() == answer() == 42  # the second from a warm template, where there are any
    name = definitions.name_of(("tiny",))
    environments.remove(os.environ["CELLWALL_HOME"], name, on_progress=lambda _: None)
    assert answer() == 42


@pytest.mark.parametrize("cancel", ["scope", "task"])
def test_a_cancelled_creation_ends_its_build_and_leaves_nothing(
    state_home, tmp_path, monkeypatch, cancel
):
    with ExitStack() as stack:
        index = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # never answers
        write_config(tmp_path / "config.toml", f"http://127.0.0.1:{index.getsockname()[1]}")
        use_config(monkeypatch, tmp_path)

        async def create() -> None:
            await sdk.AsyncSandbox.create(packages=["tiny"])

        async def cancelled() -> None:
            if cancel == "scope":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(create)
                    stack.enter_context((await anyio.to_thread.run_sync(index.accept))[0])
                    tasks.cancel_scope.cancel()
                return
            task = asyncio.create_task(create())
            stack.enter_context((await anyio.to_thread.run_sync(index.accept))[0])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        anyio.run(cancelled)
    assert os.listdir(Path(state_home, "templates")) == []
    assert os.listdir(Path(state_home, "workspaces")) == []


def test_an_unknown_template_is_told_when_the_sandbox_is_made():
    with pytest.raises(BadInput) as told:
        sdk.Sandbox.create(template="python-dta")
    assert told.value.code == "CW-NO-TEMPLATE"
    assert "Did you mean python-data" in told.value.hint
    assert "cellwall template build NAME --with PACKAGE" in told.value.hint
    with pytest.raises(BadInput, match="by name"):
        sdk.Sandbox.create(template=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [["run", "--", "true"], ["code", "-c", "1"], ["mcp"]])
@pytest.mark.sample(1)
def test_every_command_tells_an_unknown_template(words):
    done = cellwall(words[0], "--template", "python-dta", *words[1:])
    assert (done.returncode, error_code(done)) == (125, "CW-NO-TEMPLATE")
    assert b"Did you mean python-data" in done.stderr
    assert b"cellwall template build NAME --with PACKAGE" in done.stderr


@pytest.mark.requirement("PKG-5")
def test_the_command_line_builds_lists_uses_and_removes(ready, tmp_path):
    listed, lock = tmp_path / "requirements.txt", str(tmp_path / "pylock.toml")
    listed.write_text("# what we need\nTiny==1.0\n")
    made = cellwall("packages", "lock", "-r", str(listed), "-o", lock, "--json")
    assert json.loads(made.stdout) == {
        "ecosystem": "pypi",
        "packages": {"tiny": "1.0"},
        "file": lock,
    }
    done = cellwall("template", "build", "web", "--lock", lock, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["is_new"], told["packages"]) == (0, True, {"tiny": "1.0"})
    used = cellwall("code", "-c", ANSWER, "--template", "web", "--json")
    assert json.loads(used.stdout)["value"] == 42
    used = cellwall("code", "-c", ANSWER, "--package", "tiny", "--json")
    assert (used.stderr, json.loads(used.stdout)["value"]) == (b"", 42)
    named = definitions.name_of(("tiny",))
    listing = json.loads(cellwall("template", "list", "--json").stdout)["templates"]
    assert [each["name"] for each in listing] == ["python-data", named, "web"]
    assert cellwall("template", "remove", "web").returncode == 0
    gone = cellwall("template", "remove", "web")
    assert (gone.returncode, error_code(gone)) == (125, "CW-NO-TEMPLATE")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["template", "build", "web", "--with", "-r /etc/passwd"], "CW-BAD-PACKAGE"),
        (["template", "build", "web", "--requirements", "/etc/shadow/x"], "CW-BAD-PACKAGE"),
        (["template", "build", "web", "--requirements", "/dev/null"], "CW-BAD-PACKAGE"),
        (["template", "build", "python-data", "--with", "tiny"], "CW-TEMPLATE-NAME"),
        (["template", "build", "../x", "--with", "tiny"], "CW-TEMPLATE-NAME"),
        (["template", "build", "web", "--lock", "/dev/null"], "CW-BAD-LOCK"),
        (["template", "build", "uv", "--with", "tiny"], "CW-TEMPLATE-NAME"),
        (["template", "build", "nope"], "CW-NO-TEMPLATE"),
        (["packages", "lock"], "CW-BAD-PACKAGE"),
        (["packages", "lock", "--ecosystem", "npm", "x@file:/etc"], "CW-BAD-PACKAGE"),
        (["packages", "sync", "/no/lock", "--workspace", "/tmp"], "CW-BAD-LOCK"),
        (["code", "--package", "a;b", "-c", "1"], "CW-BAD-PACKAGE"),
        (["run", "--package", "a", "--template", "python-data", "--", "true"], "CW-USAGE"),
        (["mcp", "--package", "--pre"], "CW-BAD-PACKAGE"),
    ],
)
@pytest.mark.sample(6)
def test_wrong_words_on_the_command_line(words, code, state_home):
    done = cellwall(*words)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", code)
    assert not Path(state_home, "templates").exists()


def test_an_agent_of_the_mcp_server_finds_the_packages(ready, tmp_path, state_home):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.copytree(Path(state_home, "templates"), home / "templates", symlinks=True)
    with connected(home, "--package", "tiny") as agent:
        told = agent.told("run_code", code=ANSWER)
        assert (told["status"], "42" in told["output"]) == ("ok", True)


def test_who_may_not_install_packages_gets_none(index, tmp_path, state_home):
    config = tmp_path / "cellwall.toml"
    write_config(config, index.base, '[roles.interfaces]\nsdk = "user"\n')
    with pytest.raises(sdk.CellwallError) as told:
        sdk.Sandbox.create(packages=["tiny"], config=str(config))
    assert told.value.code == "CW-ROLE"
    assert not Path(state_home, "templates").exists()
