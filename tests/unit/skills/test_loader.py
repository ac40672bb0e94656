"""Only what was signed is handed out, and what is handed out is what was compared (SKL-1)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError, SkillRefused
from cellwall.core.keys import make_key
from cellwall.skills import folders, loader
from cellwall.skills.manifest import MANIFEST_NAME, MAX_FILES
from unit.skills.signing import load, sign

FILES = {"SKILL.md": b"Say hello.\n", "bin/hello": b"#!/bin/sh\necho hello\n"}


@pytest.mark.requirement("SKL-1")
def test_a_signed_folder_is_handed_out_whole(folder, key):
    skill = load(folder, key).skill
    assert (skill.name, dict(skill.files)) == ("greeting", FILES)
    assert skill.executables == {"bin/hello"}
    assert skill.signers == (f"tester+{key.public.id.hex()}",)
    assert len(skill.digest) == 64
    with pytest.raises(TypeError):
        skill.files["SKILL.md"] = b""  # type: ignore[index]  # it must not work
    with pytest.raises(AttributeError):
        skill.name = "other"  # type: ignore[misc]  # as above


def edit(place: Path) -> None:
    (place / "SKILL.md").write_text("Say hullo.\n")


def grow(place: Path) -> None:
    with (place / "SKILL.md").open("a") as file:
        file.write("More.")


def add(place: Path) -> None:
    (place / "bin" / "extra").write_text("")


def drop(place: Path) -> None:
    (place / "SKILL.md").unlink()


def link(place: Path) -> None:
    (place / "SKILL.md").rename(place.parent / "moved")
    (place / "SKILL.md").symlink_to(place.parent / "moved")


def link_folder(place: Path) -> None:
    (place / "bin").rename(place.parent / "moved")
    (place / "bin").symlink_to(place.parent / "moved")


def hard_link(place: Path) -> None:
    os.link(place / "SKILL.md", place.parent / "second-name")


def fifo(place: Path) -> None:
    (place / "SKILL.md").unlink()
    os.mkfifo(place / "SKILL.md")


def unix_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(place / "s"))


def empty_folder(place: Path) -> None:
    (place / "empty").mkdir()


def folder_for_file(place: Path) -> None:
    (place / "SKILL.md").unlink()
    (place / "SKILL.md").mkdir()
    (place / "SKILL.md" / "a").write_text("")


def executable(place: Path) -> None:
    (place / "SKILL.md").chmod(0o755)


def not_executable(place: Path) -> None:
    (place / "bin" / "hello").chmod(0o644)


def set_id(place: Path) -> None:
    (place / "bin" / "hello").chmod(0o4755)


def other_case(place: Path) -> None:
    (place / "SKILL.md").rename(place / "skill.md")


def not_utf8(place: Path) -> None:
    Path(os.fsdecode(os.fsencode(place) + b"/a\xff")).write_text("")


def no_manifest(place: Path) -> None:
    (place / MANIFEST_NAME).unlink()


def manifest_is_a_link(place: Path) -> None:
    (place / MANIFEST_NAME).rename(place.parent / "manifest")
    (place / MANIFEST_NAME).symlink_to(place.parent / "manifest")


def manifest_is_huge(place: Path) -> None:
    os.truncate(place / MANIFEST_NAME, 1 << 40)


def manifest_is_cut(place: Path) -> None:
    os.truncate(place / MANIFEST_NAME, 40)


def flood(place: Path) -> None:
    for number in range(2 * MAX_FILES + 1):
        (place / f"{number}").touch()


CHANGED, FILE, UNSIGNED = "CW-SKILL-CHANGED", "CW-SKILL-FILE", "CW-SKILL-UNSIGNED"


@pytest.mark.slow
@pytest.mark.requirement("SKL-1")
@pytest.mark.parametrize(
    ("tamper", "code", "named"),
    [
        (edit, CHANGED, "SKILL.md"),
        (grow, CHANGED, "SKILL.md"),
        (add, CHANGED, "bin/extra"),
        (drop, CHANGED, "SKILL.md"),
        (link, FILE, "SKILL.md"),
        (link_folder, FILE, "bin"),
        (hard_link, FILE, "SKILL.md"),
        (fifo, FILE, "SKILL.md"),
        (unix_socket, FILE, "s"),
        (empty_folder, FILE, "empty"),
        (folder_for_file, CHANGED, "SKILL.md/a"),
        (executable, CHANGED, "SKILL.md"),
        (not_executable, CHANGED, "bin/hello"),
        (set_id, FILE, "bin/hello"),
        (other_case, CHANGED, "skill.md"),
        (not_utf8, "CW-SKILL-PATH", "a\\udcff"),
        (no_manifest, UNSIGNED, ""),
        (manifest_is_a_link, FILE, MANIFEST_NAME),
        (manifest_is_huge, "CW-SKILL-TOO-LARGE", MANIFEST_NAME),
        (manifest_is_cut, UNSIGNED, ""),
        (flood, "CW-SKILL-TOO-LARGE", ""),
    ],
)
def test_what_was_changed_is_refused_and_named(folder, key, tamper, code, named):
    load(folder, key)  # the control: untouched it loads
    tamper(folder)
    with pytest.raises(CellwallError) as raised:
        load(folder, key)
    assert raised.value.code == code
    assert named in raised.value.message
    assert str(folder.parent) not in str(raised.value)


@pytest.mark.requirement("SKL-1")
def test_a_skill_in_the_place_of_another_is_refused(folder, key):
    assert load(folder, key, name="greeting").skill.name == "greeting"
    with pytest.raises(SkillRefused, match="was signed as greeting"):
        load(folder, key, name="payments")


@pytest.mark.requirement("SKL-1")
def test_signed_anew_by_a_stranger_is_refused(folder, key, tmp_path):
    edit(folder)
    sign(folder, make_key(str(tmp_path / "stranger.pem"), "tester"))
    with pytest.raises(SkillRefused) as raised:
        load(folder, key)
    assert raised.value.code == UNSIGNED
    sign(folder, key)
    assert load(folder, key).skill.files["SKILL.md"] == b"Say hullo.\n"


@pytest.mark.requirement("SKL-1")
def test_a_file_swapped_after_it_was_opened_does_not_get_in(folder, key, monkeypatch):
    """Whoever wins the race is compared like everybody, and nothing is read a second time."""
    reads: list[str] = []
    real = folders.read_once

    def swapping(path, node, status, *, max_bytes):
        reads.append(path)
        (folder / path).rename(folder.parent / "old")
        (folder / path).write_bytes(b"evil, evil\n")
        content = real(path, node, status, max_bytes=max_bytes)
        (folder / path).unlink()
        (folder.parent / "old").rename(folder / path)
        return content

    monkeypatch.setattr(loader, "read_once", swapping)
    # The descriptor holds the old file: a rename changes its ctime, so the reader even notices.
    with pytest.raises(SkillRefused, match="was changed while it was read"):
        load(folder, key)
    assert reads == ["SKILL.md"]


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_file_that_changes_while_it_is_read_is_refused(folder, key, monkeypatch, extra):
    real = os.read

    def growing(descriptor, size):
        part = real(descriptor, size)
        if part.startswith(b"Say"):
            with (folder / "SKILL.md").open("ab") as file:
                file.write(extra)
            os.utime(folder / "SKILL.md")
        return part

    monkeypatch.setattr(os, "read", growing)
    with pytest.raises(SkillRefused, match=r"'SKILL.md' was changed while it was read"):
        load(folder, key)


def test_collecting_passes_over_an_old_manifest_and_refuses_links(folder, tmp_path):
    with folders.closing_fd(folders.open_directory(str(folder))) as descriptor:
        draft = loader.collect(descriptor, "greeting")
        assert dict(draft.files) == FILES
        (folder / "secret").symlink_to("/etc/shadow")
        with pytest.raises(SkillRefused, match="'secret' is a symbolic link"):
            loader.collect(descriptor, "greeting")
        (folder / "secret").unlink()
        os.truncate(folder / "SKILL.md", 1 << 33)
        with pytest.raises(SkillRefused) as raised:
            loader.collect(descriptor, "greeting")
        assert raised.value.code == "CW-SKILL-TOO-LARGE"
