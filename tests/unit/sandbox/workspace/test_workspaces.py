"""Workspaces: what is leased, what is covered, and what the file API lets in (FS-1..4, FS-6)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.limits import MIB, Limits
from cellwall.core.protected_names import NameTreatment, load
from cellwall.core.types import (
    Action,
    Principal,
    RunCommand,
    WorkspaceMode,
    WorkspaceMount,
    WorkspaceRequest,
)
from cellwall.runtime import wiring
from cellwall.sandbox.files.merged_view import MergedViews
from cellwall.sandbox.protection.found_names import ProtectedPath
from cellwall.sandbox.protection.host_directory import ExtraCovers, covers_for
from cellwall.sandbox.workspace.leases import WorkspaceSettings
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.sandbox.workspace.workspaces import Workspaces

RW, RO, COW = WorkspaceMode.READ_WRITE, WorkspaceMode.READ_ONLY, WorkspaceMode.COPY_ON_WRITE


def found(
    path: str, treatment: NameTreatment = NameTreatment.READ_ONLY, *, link: bool = False
) -> ProtectedPath:
    return ProtectedPath(path, treatment, is_dir=False, is_symlink=link, directory_id=(1, 1))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / ".env").write_text("secret")
    (tmp_path / "project" / "sub" / "id_rsa").write_text("secret")
    (tmp_path / "project" / ".bashrc").write_text("mine")
    (tmp_path / "project" / "docs").mkdir()
    (tmp_path / "project" / "docs" / "rules.txt").write_text("obeyed by another name")
    (tmp_path / "project" / "GEMINI.md").symlink_to("docs/rules.txt")
    return tmp_path / "project"


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    protection = load().with_extra(("my-secret",))
    settings = WorkspaceSettings(
        blocked_extensions=(".lnk",), max_walk_entries=1000, protection=protection
    )
    return Workspaces(WorkspaceStore(str(tmp_path / "state")), settings, MergedViews(no_view))


def no_view(_action: Action, _mount: WorkspaceMount) -> int:
    raise AssertionError("nobody asked for a view")


def action(**changes: object) -> Action:
    values = {"principal": Principal("me", "sdk"), "operation": RunCommand(("true",)), **changes}
    return Action(**values)  # type: ignore[arg-type]  # plain keywords


def leased(workspaces: Workspaces, wanted: Action):
    async def take():
        async with workspaces.lease(wanted) as lease:
            await lease.settle()
            return lease.mount, lease.id, lease.bounded_by_kernel

    return anyio.run(take)


# --- covers


@pytest.mark.requirement("FS-4")
def test_hidden_names_are_covered_in_every_mode_and_read_only_ones_where_writes_reach_the_host() -> (
    None
):
    names = (found(".env", NameTreatment.HIDE), found(".bashrc"))
    assert covers_for(names, RO) == (("hide", ".env"),)
    assert covers_for(names, COW) == (("hide", ".env"),)
    assert covers_for(names, RW) == (("ro", ".bashrc"), ("hide", ".env"))


@pytest.mark.requirement("FS-4")
def test_every_directory_above_a_read_only_name_is_pinned_from_the_top_down() -> None:
    standing = ExtraCovers(read_only=(".git",), pinned=(".github/workflows",))
    covers = covers_for((found("a/b/.git/hooks"),), RW, extra=standing)
    assert covers == (
        ("ro", ".git"),
        ("pin", ".github"),
        ("pin", ".github/workflows"),
        ("pin", "a"),
        ("pin", "a/b"),
        ("pin", "a/b/.git"),
        ("ro", "a/b/.git/hooks"),
    )


@pytest.mark.requirement("FS-8", "SKL-1")
def test_every_directory_above_a_link_to_instructions_is_pinned() -> None:
    link = replace(found("a/b/CLAUDE.md", link=True), target="../../x")
    assert covers_for([link], RW) == (("pin", "a"), ("pin", "a/b"))
    assert covers_for([link], COW) == ()


@pytest.mark.requirement("FS-4")
def test_every_directory_above_a_hidden_name_is_pinned_where_writes_reach_the_host() -> None:
    # Else a second run renames the directory while this one is being built, and nothing is covered.
    covers = covers_for((found("a/b/.env", NameTreatment.HIDE),), RW)
    assert covers == (("pin", "a"), ("pin", "a/b"), ("hide", "a/b/.env"))


@pytest.mark.requirement("FS-4")
def test_a_read_only_symlink_is_refused_where_it_could_be_replaced() -> None:
    with pytest.raises(WorkspaceError) as refused:
        covers_for((found(".bashrc", link=True),), RW)
    assert refused.value.code == "CW-WORKSPACE-SYMLINK"
    assert covers_for((found(".bashrc", link=True),), COW) == ()


# --- leases


def test_a_private_workspace_is_in_memory_unless_more_disk_than_memory_is_asked_for(
    workspaces: Workspaces,
) -> None:
    small = Limits(disk_bytes=MIB, memory_bytes=64 * MIB)
    mount, workspace_id, bounded = leased(workspaces, action(limits=small))
    assert (mount.dir_fd, workspace_id, bounded) == (None, None, True)
    large = Limits(disk_bytes=64 * MIB, memory_bytes=16 * MIB)
    wanted = action(limits=large)
    mount, workspace_id, bounded = leased(workspaces, wanted)
    assert (mount.dir_fd is not None, workspace_id, bounded) == (True, wanted.id, False)
    assert not os.path.exists(mount.path or "")  # removed at the end


@pytest.mark.requirement("FS-2", "FS-4")
@pytest.mark.parametrize("mode", [RO, RW, COW])
def test_a_given_directory_is_leased_with_its_secrets_covered_and_given_back_as_it_was(
    mode: WorkspaceMode, workspaces: Workspaces, project: Path
) -> None:
    mount, _, _ = leased(workspaces, action(workspace=WorkspaceRequest(mode, str(project))))
    assert {path for treatment, path in mount.covers if treatment == "hide"} == {
        ".env",
        "sub/id_rsa",
    }
    assert (mount.mode, mount.path, mount.home) == (mode, str(project), False)
    assert (("ro", ".bashrc") in mount.covers) == (mode is RW)
    assert sorted(os.listdir(project)) == [".bashrc", ".env", "GEMINI.md", "docs", "sub"]


@pytest.mark.requirement("FS-4")
def test_names_of_the_user_s_own_are_hidden_too(workspaces: Workspaces, project: Path) -> None:
    (project / "sub" / "MY-secret").touch()
    mount, _, _ = leased(workspaces, action(workspace=WorkspaceRequest(RO, str(project))))
    assert ("hide", "sub/MY-secret") in mount.covers


def test_a_directory_with_more_names_than_can_be_checked_is_refused(
    workspaces: Workspaces, project: Path
) -> None:
    for number in range(1001):
        (project / "sub" / str(number)).touch()
    with pytest.raises(WorkspaceError) as refused:
        leased(workspaces, action(workspace=WorkspaceRequest(RW, str(project))))
    assert refused.value.code == "CW-WORKSPACE-TOO-LARGE"
    assert sorted(os.listdir(project)) == [".bashrc", ".env", "GEMINI.md", "docs", "sub"]


# --- the file API


def test_file_operations_need_a_session(workspaces: Workspaces) -> None:
    with pytest.raises(BadInput):
        workspaces.operate(action(operation=FileOperation("read", "a")))


@pytest.mark.requirement("FS-2", "FS-4")
@pytest.mark.parametrize(
    ("mode", "work", "code"),
    [
        ("ro", lambda files: files.write("a", "x"), "CW-WORKSPACE-READ-ONLY"),
        ("ro", lambda files: files.remove(".bashrc"), "CW-WORKSPACE-READ-ONLY"),
        ("ro", lambda files: files.read(".env"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.read("sub/id_rsa"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.write(".bashrc", "x"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.write(".BASHRC", "x"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.move(".env", "env"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.move("sub", ".claude"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.write("sub/.git/hooks/x", "x"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.write("docs/rules.txt", "x"), "CW-PATH-PROTECTED"),
        ("rw", lambda files: files.move("docs", "doc"), "CW-PATH-PROTECTED"),
        ("cow", lambda files: files.read(".env"), "CW-PATH-PROTECTED"),
        ("cow", lambda files: files.write(".BASHRC", "x"), "CW-PATH-PROTECTED"),
        ("cow", lambda files: files.move("docs", "doc"), "CW-PATH-PROTECTED"),
        ("cow", lambda files: files.write("sub/.git/hooks/x", "x"), "CW-PATH-PROTECTED"),
    ],
)
def test_the_file_api_keeps_the_same_names_from_its_callers(
    mode: str, work, code: str, project: Path
) -> None:
    with cellwall.Sandbox.create(workspace=f"{project}:{mode}") as sandbox:
        with pytest.raises(cellwall.CellwallError) as refused:
            work(sandbox.files)
        assert refused.value.code == code
    assert (project / ".bashrc").read_text() == "mine"


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("name", ["remove", "move"])
def test_the_file_api_does_not_take_a_protected_name_along_with_the_directory_above_it(
    name: str, project: Path
) -> None:
    (project / "repo" / ".git" / "hooks").mkdir(parents=True)
    (project / "repo" / ".git" / "hooks" / "pre-commit").write_text("mine")
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        with pytest.raises(cellwall.CellwallError) as refused:
            sandbox.files.remove("repo") if name == "remove" else sandbox.files.move("repo", "away")
        assert refused.value.code == "CW-PATH-PROTECTED"
    assert (project / "repo" / ".git" / "hooks" / "pre-commit").read_text() == "mine"


# --- ids (FS-6)


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize("text", ["../../etc", "sbx_..", "a\0b", "sbx_" + "a" * 10_000, "sbx_" + "é" * 26, "", ".", "sbx_/" + "a" * 25, "SBX_" + "a" * 26])  # fmt: skip
@pytest.mark.parametrize(
    "operation", [RunCommand(("true",)), FileOperation("read", "x")], ids=["command", "file"]
)
def test_an_id_that_is_none_becomes_no_path(
    text: str, operation: RunCommand | FileOperation
) -> None:
    house = wiring.shared_app()
    action = Action(principal=Principal("me", "sdk"), operation=operation, session_id=text)
    outcome = anyio.run(house.runtime.perform, action)
    assert (outcome.status, outcome.error and outcome.error.code) == ("error", "CW-BAD-ID")
    known = Action(principal=Principal("me", "sdk"), operation=operation, session_id=new_id("sbx"))
    missing = anyio.run(house.runtime.perform, known)
    assert (missing.status, missing.error and missing.error.code) == ("error", "CW-NO-WORKSPACE")


# --- sizes and kinds, by the API and by code (FS-3)


@pytest.mark.slow
@pytest.mark.requirement("FS-3")
def test_sizes_counts_and_extensions_hold_for_the_file_api() -> None:
    limits = {"file_size_bytes": 8192, "disk_bytes": 65_536, "file_count": 16}
    with cellwall.Sandbox.create(limits=limits) as sandbox:
        sandbox.files.write("fits", b"x" * 8192)
        for path, content in (
            ("big", b"x" * 8193),
            ("a.lnk", b"x"),
            ("a.LNK", b"x"),
            ("../x", b"x"),
            ("a\0b", b""),
        ):
            with pytest.raises(cellwall.CellwallError):
                sandbox.files.write(path, content)
        with pytest.raises(cellwall.CellwallError):
            sandbox.files.move("fits", "fits.scr")
        written = 1
        with pytest.raises(cellwall.CellwallError):
            for written in range(2, 40):  # how far it came is what is asked
                sandbox.files.write(f"f{written}", b"x" * 4096)
        assert written <= 17
    with cellwall.Sandbox.create() as sandbox:  # with room: a full one would end the run first
        code = sandbox.commands.run("echo x > b.lnk")
        assert [f.message for f in code.outcome.findings if "b.lnk" in f.message] != []
        assert not sandbox.files.exists("b.lnk")


# --- descriptors


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("is_reserved", [True, False], ids=["reserved", "control"])
def test_what_was_planted_is_found_when_no_descriptor_is_left(
    workspaces: Workspaces, project: Path, is_reserved: bool
) -> None:
    wanted = action(workspace=WorkspaceRequest(RW, str(project)))
    planted = project / "sub" / "new" / ".bashrc"

    async def run() -> bool:
        async with workspaces.lease(wanted) as lease:
            planted.parent.mkdir()
            planted.write_text("planted")
            if not is_reserved:  # the control: without it they are gone as well
                while lease._reserved:
                    os.close(lease._reserved.pop())
            with no_descriptor_left():
                try:
                    lease.settle_now()
                except (OSError, WorkspaceError):
                    return planted.exists()
            return planted.exists()

    assert anyio.run(run) is not is_reserved


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
