"""Which directories may be given, judged by the place a descriptor really has (FS-1).

Which covers stood all the time is told by inodes, and never guessed (FS-4).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.types import Cover
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.paths import is_at_or_below
from cellwall.sandbox.protection import host_directory
from cellwall.sandbox.protection.host_directory import (
    cover_identities,
    intact_covers,
    lost_covers,
    open_host_directory,
    own_path,
)


@contextmanager
def given(directory: str, home: Path) -> Iterator[tuple[int, str]]:
    descriptor, place = open_host_directory(directory, state_home=str(home))
    try:
        yield descriptor, place
    finally:
        os.close(descriptor)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.mark.parametrize("form", ["{}", "{}/", "{}//", "{}/.", "{}/sub/.."])
def test_a_plain_directory_is_opened_with_the_place_it_has(
    form: str, tmp_path: Path, home: Path
) -> None:
    project = tmp_path / "p"
    (project / "sub").mkdir(parents=True)
    with given(form.format(project), home) as (descriptor, place):
        assert place == str(project)
        assert os.path.samestat(os.fstat(descriptor), project.stat())


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("directory", ["/", "//", "/etc/..", "/etc", "/etc/ssl", "/proc/1", "/proc/self/root", "/proc/self/cwd", "/dev/shm", "/home", "/root", "/usr/share", "/tmp", "/tmp/../etc", "/var/lib"])  # fmt: skip
def test_the_system_is_never_given(directory: str, home: Path) -> None:
    with pytest.raises(WorkspaceError) as refused, given(directory, home):
        pass
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-WORKSPACE-REFUSED", True)


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("inside", ["hooks", "info", "refs/heads", "hooks/deep/er"])
def test_the_inside_of_a_git_directory_of_any_name_is_not_given(
    inside: str, tmp_path: Path, home: Path
) -> None:
    for name in ("store/objects", "store/refs", f"store/{inside}", "other/objects"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "store/HEAD").write_text("ref: refs/heads/main\n")
    with (
        pytest.raises(WorkspaceError, match="git directory"),
        given(f"{tmp_path}/store/{inside}", home),
    ):
        pass
    for name in ("store", "other/objects"):  # the control: a repository whole, and no repository
        with given(str(tmp_path / name), home):
            pass


@pytest.mark.requirement("FS-1")
def test_the_user_s_home_is_not_given_but_a_directory_in_it_is(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = tmp_path / "person"
    (person / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(person))
    with pytest.raises(WorkspaceError), given(str(person), home):
        pass
    with given(str(person / "project"), home):
        pass


@pytest.mark.requirement("FS-1")
def test_neither_the_state_folder_nor_what_holds_it_nor_what_is_in_it(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    (state / "workspaces").mkdir(parents=True)
    beside = tmp_path / "a" / "state-not"
    beside.mkdir()
    for directory in (state, state.parent, tmp_path, state / "workspaces"):
        with pytest.raises(WorkspaceError), given(str(directory), state):
            pass
    with given(str(beside), state):  # a name that only begins alike
        pass


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    "name", ["file", "link", "missing", "a\0b", "x" * 300, "deep/" * 2000, "fifo"]
)
def test_what_is_no_directory_is_refused_in_words(name: str, tmp_path: Path, home: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WorkspaceError) as refused, given(f"{tmp_path}/{name}", home):
        pass
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-WORKSPACE-REFUSED", True)
    assert len(refused.value.message) < 400


def test_a_link_on_the_way_is_followed_but_its_end_is_judged(tmp_path: Path, home: Path) -> None:
    (tmp_path / "way").symlink_to("/etc")
    with pytest.raises(WorkspaceError), given(f"{tmp_path}/way/ssl", home):
        pass


def test_no_descriptor_is_leaked_by_a_refusal(home: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for directory in ("/etc", "/nowhere", str(home)):
        with pytest.raises(WorkspaceError), given(directory, home):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("place", ["/home/u/project", "/tmp/x", "/srv/a b", "/root/p", "/var/www/p", "/opt/p", "/workspaces/p", "/usrlocal/p", "/opt/pythonic"])  # fmt: skip
def test_an_ordinary_project_can_appear_at_its_own_path(place: str) -> None:
    assert own_path(place) == place


def test_a_project_at_the_path_of_workspaces_is_there_already() -> None:
    assert own_path("/workspace") is None


@pytest.mark.requirement("FS-1", "ISO-2")
@pytest.mark.parametrize("place", ["/usr", "/usr/src/p", "/etc/p", "/proc/1", "/dev/shm/p", "/tmp", "/workspace/p", "/code", "/code/p", "/skills/p", "/.cellwall/net", "/bin/p", "/lib64/p", "/opt/python", "/opt/python/bin", "/opt/packages/p", "/run/p", "/sys/p", "/home/a\nb", "/x" * 600, "/a" * 80])  # fmt: skip
def test_nothing_is_mounted_over_what_a_cell_has_of_its_own(place: str) -> None:
    with pytest.raises(WorkspaceError) as refused:
        own_path(place)
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-WORKSPACE-OWN-PATH", True)


@pytest.mark.parametrize(("place", "why"), [("/home/a\nb", "line break"), ("/x" * 600, "longer"), ("/etc/p", "files of its own")])  # fmt: skip
def test_the_reason_tells_what_is_wrong_with_a_path(place: str, why: str) -> None:
    with pytest.raises(WorkspaceError, match=why):
        own_path(place)


COVERS: tuple[Cover, ...] = (("ro", ".git"), ("hide", ".env"), ("pin", "sub"), ("ro", "gone"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / ".env").write_text("A=1")
    return tmp_path


def test_what_is_filled_or_written_in_place_has_kept_its_cover(project: Path) -> None:
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        assert covered.keys() == {".git", ".env", "gone"}
        (project / ".git/config").touch()
        (project / ".env").write_text("A=2")
        assert lost_covers(tree, covered) == []
        assert intact_covers(tree, covered) == {".git", ".env", "gone"}


def test_what_was_made_anew_has_lost_it_whatever_its_inode_number(project: Path) -> None:
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        (project / ".git").rmdir()
        (project / ".git").mkdir()  # often with the number of the old one
        (project / "new").write_text("A=2")
        (project / "new").rename(project / ".env")
        (project / "gone").touch()
        assert lost_covers(tree, covered) == [".env", ".git", "gone"]
        assert intact_covers(tree, covered) == frozenset()


def test_where_there_are_no_handles_nothing_is_certain(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_directory, "file_handle", lambda *_: "")
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        assert lost_covers(tree, covered) == []
        assert intact_covers(tree, covered) <= {"gone"}
        (project / ".git").rmdir()
        assert lost_covers(tree, covered) == [".git"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [(".git", True), (".git/a/b", True), (".github", False), ("a/.git", False), ("", False)],
)
def test_what_lies_behind_a_cover(path: str, expected: bool) -> None:
    assert is_at_or_below(path, {".git"}) is expected
