"""Programs of the host: from places that nobody else can write, or not at all (ISO-13)."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from pathlib import Path

import pytest

from cellwall.core import host_programs
from cellwall.core.host_programs import (
    ProgramRefused,
    has_program,
    host_program,
    operator_program,
    wheel_program,
)
from conftest import need

pytestmark = pytest.mark.requirement("ISO-13")


def program(path: Path, text: str = "#!/bin/sh\nexit 0\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two fixed places, as if the system's; whoever runs the tests stands in for root."""
    need(os.geteuid() == 0, "root, to whom the fixed places belong")
    first, second = tmp_path / "usr/local/bin", tmp_path / "usr/bin"
    for place in (first, second):
        place.mkdir(parents=True)
    monkeypatch.setattr(host_programs, "FIXED_PLACES", (str(first), str(second)))
    return first, second


def test_programs_of_the_system_are_found_without_a_search_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert host_program("sh").endswith("/sh")
    assert has_program("sh")
    assert not has_program("no-such-program")


def test_the_first_sound_place_wins(places: tuple[Path, Path]) -> None:
    first, second = program(places[0] / "tool"), program(places[1] / "tool")
    assert host_program("tool") == str(first)
    first.unlink()
    assert host_program("tool") == str(second)
    second.unlink()
    with pytest.raises(ProgramRefused) as refused:
        host_program("tool")
    assert refused.value.is_missing
    assert "Install tool" in refused.value.hint


def group_writable(path: Path) -> None:
    path.chmod(0o775)


def other_writable(path: Path) -> None:
    path.chmod(0o757)


def of_somebody(path: Path) -> None:
    os.chown(path, 1234, 1234)


@pytest.mark.parametrize("harm", [group_writable, other_writable, of_somebody])
@pytest.mark.parametrize("what", ["file", "folder", "parent"])
def test_what_others_can_replace_is_passed_over_and_told(
    places: tuple[Path, Path], what: str, harm: object
) -> None:
    first = program(places[0] / "tool")
    victim = {"file": first, "folder": first.parent, "parent": first.parent.parent}[what]
    assert host_program("tool") == str(first), "the control: sound before"
    harm(victim)  # type: ignore[operator]  # one of the three above
    with pytest.raises(ProgramRefused) as refused:
        host_program("tool")
    assert not refused.value.is_missing
    assert str(victim) in refused.value.why
    assert "chown root" in refused.value.hint
    second = program(places[1] / "tool")
    assert host_program("tool") == str(second)


def test_links_are_followed_through_every_directory(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    theirs = program(tmp_path / "project/.venv/bin/tool")
    (places[0] / "tool").symlink_to(theirs)
    assert host_program("tool") == str(places[0] / "tool"), "the control: all of it is root's"
    os.chown(tmp_path / "project/.venv", 1234, 1234)
    with pytest.raises(ProgramRefused, match=r"belongs to uid 1234"):
        host_program("tool")
    # Also a link to a folder, a relative one, one in the middle, and a circle.
    (places[0] / "tool").unlink()
    places[0].rmdir()
    places[0].symlink_to("../../project/.venv/bin")
    with pytest.raises(ProgramRefused, match=r"belongs to uid 1234"):
        host_program("tool")
    places[0].unlink()
    places[0].symlink_to(places[0])
    with pytest.raises(ProgramRefused, match="too many links"):
        host_program("tool")


def test_a_sticky_folder_may_be_on_the_way_but_not_a_plain_one(
    places: tuple[Path, Path],
) -> None:
    found = program(places[0] / "tool")
    found.parent.parent.chmod(0o1777)
    assert host_program("tool") == str(found)
    found.parent.parent.chmod(0o777)
    with pytest.raises(ProgramRefused):
        host_program("tool")


def test_a_link_of_somebody_else_in_a_sticky_folder_is_not_followed(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    found = program(places[1] / "other")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (places[0] / "tool").symlink_to(shared / "link")
    (shared / "link").symlink_to(found)
    assert host_program("tool") == str(places[0] / "tool")
    os.lchown(shared / "link", 65534, 65534)
    with pytest.raises(ProgramRefused, match="belongs to uid 65534"):
        host_program("tool")


@pytest.mark.parametrize("kind", ["not executable", "directory", "fifo"])
def test_only_files_that_can_be_executed(places: tuple[Path, Path], kind: str) -> None:
    path = places[0] / "tool"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path, 0o755)
    else:
        program(path, mode=0o644)
    with pytest.raises(ProgramRefused, match="is no program"):
        host_program("tool")


# Commands of the operator's


@pytest.mark.requirement("SEC-1", "AUD-2")
def test_a_command_is_an_absolute_path_or_a_name_of_the_system_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "bin/cat")
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(own.parent)
    assert operator_program(str(own)) == str(own)
    assert operator_program("cat") != str(own), "PATH would have led to it"
    assert operator_program("cat").endswith("/cat")
    for relative in ("./cat", "bin/cat", "../bin/cat"):
        with pytest.raises(ProgramRefused, match="absolute path"):
            operator_program(relative)
    own.parent.chmod(0o777)
    with pytest.raises(ProgramRefused) as refused:
        operator_program(str(own))
    assert str(own) in refused.value.detail
    assert str(own) not in refused.value.why + refused.value.hint, "ERR-1"


# Wheels


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with one wheel in it."""
    folder = tmp_path / "venv/lib/site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(host_programs, "_own_places", lambda: [str(folder)])
    monkeypatch.setattr(host_programs, "_own_folders", lambda: {"/", "/tmp"})
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("CELLWALL_HOME", str(home))
    return folder


def install(site: Path, text: str = "#!/bin/sh\necho genuine\n") -> Path:
    path = program(site.parent.parent / "bin/tool", text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    record = site / "tool_py-1.0.dist-info/RECORD"
    record.parent.mkdir(exist_ok=True)
    record.write_text(f"../../bin/tool,sha256={digest},{len(text)}\ntool_py/x.py,,\n")
    return path


def test_a_wheel_s_program_has_the_hash_of_its_record(site: Path) -> None:
    path = install(site)
    assert wheel_program("tool-py", "tool") == str(path)
    with pytest.raises(ProgramRefused) as missing:
        wheel_program("other-py", "tool")
    assert missing.value.is_missing
    path.write_text("#!/bin/sh\necho forged!\n")
    with pytest.raises(ProgramRefused, match="not the file that was installed") as refused:
        wheel_program("tool-py", "tool")
    assert (refused.value.is_missing, "force-reinstall tool-py" in refused.value.hint) == (
        False,
        True,
    )


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_file_once_verified_is_verified_again_when_it_changes(
    site: Path, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    path = install(site)
    read: list[str] = []
    real = host_programs._identity
    if is_settled:
        monkeypatch.setattr(host_programs, "_SETTLED_AFTER_S", -1.0)
    assert wheel_program("tool-py", "tool") == str(path)
    monkeypatch.setattr(host_programs, "_remember", read.append)
    assert wheel_program("tool-py", "tool") == str(path)
    note = Path(os.environ["CELLWALL_HOME"], "programs.verified")
    assert note.exists() == is_settled, "one that was just changed is not believed next time"
    # The same size and the same times, as far as they can be set.
    info = path.stat()
    path.write_text("#!/bin/sh\necho forged!\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (info.st_size, info.st_mtime_ns)
    assert real is host_programs._identity
    with pytest.raises(ProgramRefused, match="not the file that was installed"):
        wheel_program("tool-py", "tool")


def test_a_note_that_others_can_write_is_not_believed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_programs, "_SETTLED_AFTER_S", -1.0)
    path = install(site)
    wheel_program("tool-py", "tool")
    assert len(host_programs._read_verified()) == 1
    Path(os.environ["CELLWALL_HOME"]).chmod(0o777)
    assert host_programs._read_verified() == []
    assert wheel_program("tool-py", "tool") == str(path), "read as a whole again"


def test_a_package_of_the_working_directory_is_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "project"
    (planted / "x").mkdir(parents=True)
    install(planted / "x")
    (planted / "x/tool_py-1.0.dist-info").rename(planted / "shfmt_py-9.9.dist-info")
    program(planted / "shfmt")
    monkeypatch.chdir(planted)
    monkeypatch.syspath_prepend(str(planted))
    monkeypatch.setenv("PYTHONPATH", str(planted))
    monkeypatch.setenv("PATH", str(planted))
    assert not wheel_program("shfmt-py", "shfmt").startswith(str(planted))


@pytest.mark.parametrize("harm", [other_writable, of_somebody])
def test_a_wheel_s_program_that_others_can_replace_is_refused(site: Path, harm: object) -> None:
    need(os.geteuid() == 0, "root")
    path = install(site)
    harm(path.parent)  # type: ignore[operator]  # as above
    with pytest.raises(ProgramRefused, match="others can change"):
        wheel_program("tool-py", "tool")


def test_the_clock_of_the_test_is_the_kernel_s(tmp_path: Path) -> None:
    """`_SETTLED_AFTER_S` compares the two."""
    file = tmp_path / "x"
    file.touch()
    assert abs(time.time() - file.stat().st_ctime) < 60
