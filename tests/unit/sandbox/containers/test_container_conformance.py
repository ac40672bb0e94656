"""Cells in containers of a real engine pass the conformance suite, as native cells do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, RunCommand, WorkspaceMode, WorkspaceRequest
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.conformance import CheckResult, checks, run_conformance
from cellwall.sandbox.containers.container_cell import ContainerCell
from cellwall.sandbox.containers.container_request import LABEL
from cellwall.sandbox.containers.engine import Engine
from conftest import need
from unit.sandbox.containers.docker_daemon import docker_daemon

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def remapped() -> Iterator[str]:
    """An engine that gives containers a user namespace."""
    with docker_daemon("--userns-remap=nobody:nogroup") as socket:
        yield socket


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """An engine with its default settings: containers share the host's user namespace."""
    with docker_daemon() as socket:
        yield socket


def configuration(folder: Path, socket: str, *lines: str, backend: str = "container") -> str:
    config = folder / "config.toml"
    settings = [f'backend = "{backend}"', f'engine_socket = "{socket}"', *lines]
    config.write_text("[sandbox]\n" + "\n".join(settings) + "\n")
    config.chmod(0o600)
    return str(config)


def conformance(config: str, backend: str = "native") -> tuple[list[CheckResult], set[str]]:
    used: set[str] = set()

    async def work() -> list[CheckResult]:
        app = wiring.open_app(config=config)

        async def perform(action: Action) -> Outcome:
            outcome = await app.runtime.perform(action)
            used.add(outcome.sandbox_path)
            return outcome

        with app.session(WorkspaceRequest(), local_principal("sdk")) as session_id:
            return await run_conformance(
                perform,
                principal=local_principal("sdk"),
                session_id=session_id,
                limits=app.limits,
                backend=backend,
            )

    return anyio.run(work), used


def run(config: str, argv: tuple[str, ...], **fields: object) -> Outcome:
    app = wiring.open_app(config=config)
    action = Action(
        principal=local_principal("sdk"),
        operation=RunCommand(argv),
        limits=app.limits,
        **fields,  # type: ignore[arg-type]  # fields of an action
    )
    return anyio.run(app.runtime.perform, action)


def containers(socket: str) -> list[str]:
    command = ["docker", "--host", f"unix://{socket}", "ps", "--all", "--quiet"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()


@pytest.mark.requirement("ISO-11", "ISO-1", "ISO-2", "ISO-7", "LIM-2", "NET-1")
def test_containers_of_docker_pass_every_check(remapped: str, tmp_path: Path) -> None:
    results, used = conformance(configuration(tmp_path, remapped))
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(checks())
    assert used == {"container"}
    assert containers(remapped) == []


@pytest.mark.requirement("ISO-11", "ISO-1", "ISO-2", "ISO-7", "LIM-2", "NET-1")
def test_gvisor_passes_every_check_and_lacks_what_it_declares(plain: str, tmp_path: Path) -> None:
    need(shutil.which("runsc"), "gVisor: apt-get install runsc")
    accepted = "dangerously_without_landlock = true"
    config = configuration(tmp_path, plain, accepted, backend="gvisor")
    results, used = conformance(config, backend="gvisor")
    assert [result for result in results if not result.passed] == []
    assert [result.name for result in results if result.lack] == ["limit open_files"]
    assert len(results) == len(checks())
    assert used == {"container"}
    assert containers(plain) == []
    refused = run(configuration(tmp_path, plain, backend="gvisor"), ("true",))
    assert refused.error is not None
    assert refused.error.code == "CW-LAYER-LANDLOCK"


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_engine_without_user_namespace_is_refused_and_accepted_only_by_name(
    plain: str, tmp_path: Path
) -> None:
    refused = run(configuration(tmp_path, plain), ("true",))
    assert refused.error is not None
    assert (refused.status, refused.error.code) == (Status.ERROR, "CW-LAYER-USERNS")
    assert "userns-remap" in refused.error.hint
    accepted = configuration(tmp_path, plain, "dangerously_without_user_namespace = true")
    outcome = run(accepted, ("sh", "-c", "id -u; grep CapBnd /proc/self/status"))
    assert outcome.status is Status.OK
    uid, capabilities = outcome.stdout.splitlines()
    assert int(uid) >= 65_536
    assert int(capabilities.split()[1], 16) == 0
    assert [finding.rule for finding in outcome.findings] == ["without-user-namespace"]


CONTAINER_UID = 301_000  # of code in the user namespace, as the daemon's test configuration maps it
TOUCH = """
cat src/a.txt; cat .env; ls -A .ssh
echo new > new.txt && echo wrote
echo x > .git/hooks/pre-commit && echo planted
mv .git moved && echo moved
echo x >> .git/config && echo configured
exit 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of a user with protected names, which the code of a container may read."""
    given = tmp_path / "project"
    for name in (".git/hooks", ".ssh", "src"):
        (given / name).mkdir(parents=True)
    for name, text in (
        (".env", "TOKEN=x"),
        (".ssh/id", "key"),
        (".git/config", ""),
        ("src/a.txt", "ab"),
    ):
        (given / name).write_text(text)
    for path in (given, *given.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return given


def own(project: Path) -> None:
    for path in (project, *project.rglob("*")):
        os.chown(path, CONTAINER_UID, CONTAINER_UID)


@pytest.mark.requirement("FS-1", "FS-4", "ISO-11")
def test_directory_of_a_user_is_given_with_its_protected_names_covered(
    remapped: str, tmp_path: Path, project: Path
) -> None:
    config = configuration(tmp_path, remapped)

    def tried(mode: WorkspaceMode) -> Outcome:
        return run(config, ("sh", "-c", TOUCH), workspace=WorkspaceRequest(mode, str(project)))

    assert (tried(WorkspaceMode.READ_ONLY).stdout, (project / "new.txt").exists()) == ("ab", False)
    own(project)
    assert tried(WorkspaceMode.READ_WRITE).stdout == "abwrote\n"
    assert (project / "new.txt").read_text() == "new\n"
    assert list((project / ".git/hooks").iterdir()) == []
    assert (project / ".git/config").read_text() == ""


@pytest.mark.requirement("FS-1", "ISO-4")
def test_directory_that_a_container_cannot_have_is_refused_with_a_reason(
    remapped: str, plain: str, tmp_path: Path, project: Path
) -> None:
    gvisor = ("dangerously_without_landlock = true",)
    cases = [
        (configuration(tmp_path, remapped), WorkspaceMode.READ_WRITE, "does not own"),
        (configuration(tmp_path, remapped), WorkspaceMode.COPY_ON_WRITE, "copy-on-write"),
    ]
    for config, mode, why in cases:
        outcome = run(config, ("true",), workspace=WorkspaceRequest(mode, str(project)))
        assert outcome.error is not None
        assert (outcome.error.code, why in outcome.error.message) == ("CW-BACKEND-WORKSPACE", True)
    request = WorkspaceRequest(WorkspaceMode.READ_ONLY, str(project))
    config = configuration(tmp_path, plain, *gvisor, backend="gvisor")
    outcome = run(config, ("true",), workspace=request)
    assert outcome.error is not None
    assert outcome.error.code == "CW-BACKEND-WORKSPACE"
    project.chmod(0o700)
    outcome = run(configuration(tmp_path, remapped), ("true",), workspace=request)
    assert outcome.error is not None
    assert "cannot read" in outcome.error.message


@pytest.mark.requirement("FS-1")
def test_name_that_is_replaced_before_the_engine_mounts_it_ends_the_cell(
    remapped: str, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine follows a symlink with the rights of root; init looks before any code runs."""
    own(project)
    (tmp_path / "outside" / "hooks").mkdir(parents=True)
    (tmp_path / "outside" / "hooks" / "secret").write_text("of the host")
    original = ContainerCell.start

    def swapped(self: ContainerCell, *words: object) -> object:
        (project / ".git").rename(project / "was-git")
        (project / ".git").symlink_to(tmp_path / "outside")
        return original(self, *words)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(ContainerCell, "start", swapped)
    outcome = run(
        configuration(tmp_path, remapped),
        ("sh", "-c", "cat .git/hooks/secret"),
        workspace=WorkspaceRequest(WorkspaceMode.READ_WRITE, str(project)),
    )
    assert (outcome.status, outcome.stdout) == (Status.ERROR, "")


@pytest.mark.requirement("ISO-8")
def test_container_that_was_made_and_never_started_is_removed_by_the_next_start(
    remapped: str, tmp_path: Path
) -> None:
    config, engine = configuration(tmp_path, remapped), Engine(remapped)
    assert run(config, ("true",)).status is Status.OK
    tag = wiring.open_app(config=config).ledger.tag
    (image,) = engine._ask("GET", "/images/json")[0]["RepoTags"]
    for name, label in (("cellwall-act_left", tag), ("cellwall-act_foreign", "another")):
        engine.create(name, {"Image": image, "Cmd": ["x"], "Labels": {LABEL: label}})
    assert run(config, ("true",)).status is Status.OK
    (left,) = engine.not_running(LABEL)
    assert left[0] == "cellwall-act_foreign"
    engine.remove(left[1])


@pytest.mark.requirement("ISO-8")
def test_killed_supervisor_leaves_no_container(remapped: str, tmp_path: Path) -> None:
    config = configuration(tmp_path, remapped)
    code = (
        "import anyio, sys\nfrom cellwall.runtime import wiring\n"
        "from cellwall.runtime.home import local_principal\n"
        "from cellwall.core.types import Action, RunCommand\n"
        "app = wiring.open_app(config=sys.argv[1])\n"
        "def told(name, chunk): print('started', flush=True)\n"
        "action = Action(principal=local_principal('sdk'), limits=app.limits,\n"
        "    operation=RunCommand(('sh', '-c', 'echo; sleep 200')))\n"
        "anyio.run(lambda: app.runtime.perform(action, sink=told))\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, config], stdout=subprocess.PIPE)
    try:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"started\n"
        assert len(containers(remapped)) == 1
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        supervisor.stdout.close()
    deadline = time.monotonic() + 60
    while containers(remapped) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert containers(remapped) == []
    assert os.listdir(f"{os.environ['CELLWALL_HOME']}/runs.containers") == []
