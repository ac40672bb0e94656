"""The composition root: state folder, sweeping, sessions, and walls that are missing (ISO-4)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from cellwall.core.errors import CellwallError, LayerMissing, WorkspaceError
from cellwall.core.home import state_place
from cellwall.core.ids import new_id
from cellwall.core.sandbox_ports import Slot
from cellwall.core.types import (
    Action,
    Principal,
    RunCommand,
    WorkspaceMode,
    WorkspaceMount,
    WorkspaceRequest,
)
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.linux.cgroups import Choice
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, walls_for
from cellwall.sandbox.linux.native import ColdPath
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.run_ledger import RunLedger
from cellwall.sandbox.workspace.leases import PlainLease

NO_GROUP = Choice("none", {}, "no controller here", "mount one")
GROUP = Choice("v1-root", {})
SETTINGS = {
    "uid_base": 1_900_000_000,
    "tmp_bytes": 1 << 20,
    "shm_bytes": 1 << 20,
    "max_result_bytes": 1 << 20,
}


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize(
    ("layers", "danger", "code"),
    [
        (HostLayers(None, 6, GROUP), {}, "CW-LAYER-BUBBLEWRAP"),
        (
            HostLayers(None, 6, GROUP),
            {"dangerously_without_cgroup": True, "dangerously_without_landlock": True},
            "CW-LAYER-BUBBLEWRAP",
        ),
        (HostLayers("/usr/bin/bwrap", 0, GROUP), {}, "CW-LAYER-LANDLOCK"),
        (
            HostLayers("/usr/bin/bwrap", 0, GROUP),
            {"dangerously_without_cgroup": True},
            "CW-LAYER-LANDLOCK",
        ),
        (HostLayers("/usr/bin/bwrap", 6, NO_GROUP), {}, "CW-LAYER-CGROUP"),
        (
            HostLayers("/usr/bin/bwrap", 6, NO_GROUP),
            {"dangerously_without_landlock": True},
            "CW-LAYER-CGROUP",
        ),
    ],
)
def test_a_missing_wall_is_a_refusal_with_its_hint(
    layers: HostLayers, danger: dict[str, bool], code: str, tmp_path: Path
) -> None:
    settings = NativeSettings(**SETTINGS, **danger)  # type: ignore[arg-type]  # plain keywords
    ledger = RunLedger(str(tmp_path))
    sandbox = ColdPath(settings, layers, ledger, Pool(settings, layers, ledger, idle_s=60))
    lease = PlainLease(WorkspaceMount(mode=WorkspaceMode.PRIVATE))
    wanted = Action(principal=Principal("me", "sdk"), operation=RunCommand(("true",)))

    async def run() -> None:
        await sandbox.run(CellRunRequest(action=wanted, slot=Slot(0, 1), workspace=lease))

    with pytest.raises(LayerMissing) as refused:
        anyio.run(run)
    assert (refused.value.code, bool(refused.value.hint)) == (code, True)
    assert os.listdir(tmp_path) == []


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize(
    ("danger", "landlock", "choice"),
    [("dangerously_without_cgroup", 6, NO_GROUP), ("dangerously_without_landlock", 0, GROUP)],
)
def test_only_a_setting_called_dangerous_gives_a_wall_up(
    danger: str, landlock: int, choice: Choice, tmp_path: Path
) -> None:
    settings = NativeSettings(**SETTINGS, **{danger: True})  # type: ignore[arg-type]  # plain keywords
    walls = walls_for(
        settings, HostLayers("/usr/bin/bwrap", landlock, choice), uid_offset=3, open_files=64
    )
    assert (walls.landlock_abi, walls.cgroup) == (landlock, choice.way != "none")
    assert walls.outer.drop_to == (1_900_000_003 if os.geteuid() == 0 else None)


def test_the_state_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "state" / "cellwall"
    assert wiring.state_home({"CELLWALL_HOME": str(home)}) == str(home)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_state_folder_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(CellwallError) as refused:
        wiring.state_home({"CELLWALL_HOME": str(tmp_path)})
    assert refused.value.code == "CW-STATE-UNSAFE"
    assert "state folder $CELLWALL_HOME is open" in refused.value.message


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CellwallError) as refused:
        wiring.state_home({"CELLWALL_HOME": str(tmp_path / "file" / "below")})
    assert refused.value.code == "CW-STATE"
    assert refused.value.message.endswith("cannot be created or read: Not a directory")


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"CELLWALL_HOME": "/x", "XDG_STATE_HOME": "/y"}, "$CELLWALL_HOME"),
        ({"CELLWALL_HOME": "", "XDG_STATE_HOME": "/y"}, "$XDG_STATE_HOME/cellwall"),
        ({}, "~/.local/state/cellwall"),
    ],
)
def test_messages_name_the_state_folder_by_its_variable(
    variables: dict[str, str], shown: str
) -> None:
    assert state_place(variables) == shown


def test_a_session_ends_with_its_holder_and_leaves_no_folder(state_home: str) -> None:
    house = wiring.open_app()
    with house.session(WorkspaceRequest(), local_principal("sdk")) as session_id:
        assert os.listdir(f"{state_home}/workspaces") == [session_id]
        assert os.listdir(f"{state_home}/runs") == [session_id]
    assert (os.listdir(f"{state_home}/workspaces"), os.listdir(f"{state_home}/runs")) == ([], [])


def test_a_session_on_a_refused_directory_leaves_nothing(state_home: str) -> None:
    house = wiring.open_app()
    with (
        pytest.raises(WorkspaceError),
        house.session(WorkspaceRequest(WorkspaceMode.READ_WRITE, "/"), local_principal("sdk")),
    ):
        pytest.fail("the root of the host became a workspace")
    assert (os.listdir(f"{state_home}/workspaces"), os.listdir(f"{state_home}/runs")) == ([], [])


@pytest.mark.requirement("ISO-8")
def test_opening_a_house_sweeps_what_the_dead_left_and_leaves_the_living_alone(
    state_home: str,
) -> None:
    house = wiring.open_app()
    dead = new_id("sbx")
    house.store.make(dead, WorkspaceRequest())
    Path(state_home, "runs", dead).write_text("{}")
    with house.session(WorkspaceRequest(), local_principal("sdk")) as living:
        wiring.open_app()
        assert os.listdir(f"{state_home}/workspaces") == [living]
        assert os.listdir(f"{state_home}/runs") == [living]


@pytest.mark.requirement("FS-2")
def test_a_sandbox_that_lives_longer_than_changes_are_kept_keeps_its_layers(
    state_home: str, tmp_path: Path
) -> None:
    house = wiring.open_app()
    with house.session(
        WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, str(tmp_path)), local_principal("sdk")
    ) as living:
        folder = Path(state_home, "workspaces", living)
        note = json.loads((folder / "session.json").read_text())
        (folder / "session.json").write_text(json.dumps({**note, "made_ns": 1}))
        (folder / "layers/upper/changed").touch()
        wiring.open_app()
        assert (folder / "layers/upper/changed").exists()
    wiring.open_app()
    assert not folder.exists()


def test_the_principal_is_the_kernel_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    local_principal.cache_clear()
    monkeypatch.setenv("USER", "mallory")
    monkeypatch.setenv("LOGNAME", "mallory")
    assert local_principal("cli").name != "mallory"
