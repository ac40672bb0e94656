"""What containers of a real engine refuse, and an engine that stops answering while code runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cellwall.admin.skills import SigningKeyChoice, SkillAdmin
from cellwall.core.outcomes import Status
from cellwall.core.types import Action, RunCommand
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.containers import container_request
from cellwall.sandbox.containers import engine as engine_module
from conftest import need
from unit.sandbox.containers.docker_daemon import docker_daemon
from unit.sandbox.containers.test_container_conformance import configuration, run

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]
WITHOUT_LANDLOCK = "dangerously_without_landlock = true"


@pytest.fixture(scope="module")
def remapped() -> Iterator[str]:
    """An engine that gives containers a user namespace, and whose `runsc` is runc."""
    with docker_daemon("--userns-remap=nobody:nogroup", runsc="runc") as socket:
        yield socket


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """An engine with the real gVisor."""
    need(shutil.which("runsc"), "gVisor: apt-get install runsc")
    with docker_daemon() as socket:
        yield socket


@pytest.mark.requirement("ISO-4", "ISO-11", "NET-1", "SKL-1")
def test_gvisor_refuses_egress_and_skills_instead_of_leaving_them_out(
    plain: str, tmp_path: Path
) -> None:
    config = configuration(tmp_path, plain, WITHOUT_LANDLOCK, backend="gvisor")
    skill = tmp_path / "greet"
    skill.mkdir()
    (skill / "SKILL.md").write_text("Say hello.\n")
    admin, who = SkillAdmin(), local_principal("cli")
    admin.sign(str(skill), name=None, choice=SigningKeyChoice(), principal=who)
    admin.add(str(skill), principal=who)
    for fields, code in (
        ({"allow_domains": ("api.example.com",)}, "CW-BACKEND-EGRESS"),
        ({"skills": ("greet",)}, "CW-LAYER-LANDLOCK"),
    ):
        outcome = run(config, ("true",), **fields)
        assert outcome.error is not None
        assert (outcome.error.code, bool(outcome.error.hint)) == (code, True)
    assert run(config, ("true",)).status is Status.OK  # the control


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_a_runtime_that_is_called_runsc_and_is_runc_is_refused(tmp_path: Path) -> None:
    with docker_daemon(runsc="runc") as socket:
        config = configuration(tmp_path, socket, WITHOUT_LANDLOCK, backend="gvisor")
        outcome = run(config, ("true",))
        assert outcome.error is not None
        assert outcome.error.code == "CW-LAYER-KERNEL"
        # The control: the same engine starts containers where no other kernel is promised.
        accepted = configuration(tmp_path, socket, "dangerously_without_user_namespace = true")
        assert run(accepted, ("true",)).status is Status.OK


# Everybody may write to these devices, and so set their times to now.
DEVICES = """
for name in null zero full random urandom; do
  touch /dev/$name 2>/dev/null && echo touched $name
  chmod 600 /dev/$name 2>/dev/null && echo changed $name
done
touch /dev/new 2>/dev/null && echo made
echo x > /dev/null && echo written
"""


@pytest.mark.requirement("ISO-6", "ISO-11")
def test_devices_in_a_container_cannot_be_changed(
    remapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, remapped)
    outcome = run(config, ("sh", "-c", DEVICES))
    assert (outcome.status, outcome.stdout) == (Status.OK, "written\n")
    monkeypatch.setattr(container_request, "_DEVICES", ())  # the control
    assert "touched null\n" in run(config, ("sh", "-c", DEVICES)).stdout


@pytest.mark.requirement("ISO-8", "ISO-11")
def test_an_engine_that_hangs_at_the_end_of_a_run_loses_no_outcome(
    remapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = int((Path(remapped).parent / "pid").read_text())
    app = wiring.open_app(config=configuration(tmp_path, remapped))
    action = Action(
        principal=local_principal("sdk"),
        operation=RunCommand(("sh", "-c", "echo started; exec cat")),
        limits=app.limits,
        stdin=b"done\n",
    )

    def stop(name: str, data: bytes) -> None:
        if b"started" in data:
            # From now on, only: the engine has answered all that came before.
            monkeypatch.setattr(engine_module, "_ANSWER_WITHIN_S", 0.5)
            os.kill(daemon, signal.SIGSTOP)

    try:
        outcome = anyio.run(lambda: app.runtime.perform(action, sink=stop))
        state = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[0]
    finally:
        os.kill(daemon, signal.SIGCONT)
        app.close()
    assert state == "T"  # the control: the engine was stopped to the end
    assert (outcome.status, outcome.stdout) == (Status.OK, "started\ndone\n")
