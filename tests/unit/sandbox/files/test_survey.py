"""A walk leaves out dull files, counts every one, and finds what a walk of all files finds (FS-4)."""

from __future__ import annotations

import os
import random
import socket
import sys
from pathlib import Path

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import Protection, load
from cellwall.sandbox.files import survey as survey_module
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.survey import Survey
from cellwall.sandbox.protection.found_names import KnownLinks
from cellwall.sandbox.protection.protected_paths import scan

NAMES = (
    *("a.py", "README.md", "data", "x", "config", "HEAD", "head", "commondir", "objects", "refs"),
    *(".env", ".ENV.local", "id_rsa", "key.pem", "CLAUDE.md", "claude.md.", "AGENTS.md", ".bashrc"),
    *(".git", "git~1", ".g\u200cit", "hooks", "settings.json", ".claude", ".ssh", ".vscode"),
    *(
        "\uff48\uff45\uff41\uff44",
        "täglich",
        "line\nbreak",
        os.fsdecode(b"\xff\xfe"),
        "secret.txt",
        "w" * 255,
    ),
)


def steps_of(root: Root, survey: Survey | None, **options) -> list[str]:
    return [step.path for step in root.walk(max_entries=10_000, survey=survey, **options)]


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("seed", range(30))
def test_a_scan_finds_what_a_scan_of_every_file_finds(seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    directories = [tmp_path]
    files: list[Path] = []
    for _ in range(60):
        path = chance.choice(directories) / chance.choice(NAMES)
        kind = chance.choice(["file", "file", "file", "dir", "dir", "link", "symlink", "socket"])
        if os.path.lexists(path) or len(os.fsencode(path)) > 1000:
            continue
        if kind == "dir":
            path.mkdir()
            directories.append(path)
        elif kind == "link" and files:
            path.hardlink_to(chance.choice(files))
        elif kind == "symlink":
            path.symlink_to(chance.choice(NAMES))
        elif kind == "socket" and len(os.fsencode(path)) < 100:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        else:
            path.write_text("text")
            files.append(path)
    protection = load().with_extra(["secret.txt"]).with_paths(["data/x"])
    with Root.open(tmp_path) as root:
        quick_links, links = KnownLinks(), KnownLinks()
        quick = scan(root, protection, max_entries=10_000, links=quick_links)
        walk = Root.walk
        monkeypatch.setattr(Root, "walk", lambda self, *a, survey=None, **k: walk(self, *a, **k))
        assert quick == scan(root, protection, max_entries=10_000, links=links)
        assert quick_links == links


@pytest.mark.requirement("FS-4")
def test_files_are_left_out_unless_their_name_link_time_or_type_matters(tmp_path):
    for name in ("plain.py", "linked.py", "CLAUDE.md"):
        (tmp_path / name).write_text("")
    (tmp_path / "second.py").hardlink_to(tmp_path / "linked.py")
    (tmp_path / "link").symlink_to("plain.py")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/deep.py").write_text("")
    look = load().names_to_look_at
    with Root.open(tmp_path) as root:
        assert steps_of(root, Survey(look)) == ["CLAUDE.md", "below", "link"]
        kept = Survey(look, are_links_dull=lambda directory: directory == "below")
        assert {"linked.py", "second.py"} < set(steps_of(root, kept))
        changed_ns = (tmp_path / "below/deep.py").stat().st_ctime_ns
        assert "below/deep.py" in steps_of(root, Survey(look, since_ns=changed_ns))
        assert "below/deep.py" not in steps_of(root, Survey(look, since_ns=changed_ns + 1))
        assert len(steps_of(root, None)) == 7


def test_everything_is_counted_as_before(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/large").write_bytes(b"x" * 100_000)
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "link").symlink_to("holes")
    with Root.open(tmp_path) as root:
        steps = [step.status for step in root.walk(max_entries=100)]
        assert root.usage(max_entries=100) == (sum(s.st_blocks for s in steps) * 512, len(steps))
        assert root.usage("a/b", max_entries=100).name_count == 1


def test_many_long_names_fit(tmp_path):
    names = [f"{number:04}" + "n" * 250 for number in range(700)]
    for name in names:
        (tmp_path / name).touch()
    with Root.open(tmp_path) as root:
        assert steps_of(root, Survey(lambda given: [os.fsdecode(name) for name in given])) == names
        assert root.usage(max_entries=700).name_count == 700
        with pytest.raises(WorkspaceError, match="too many files"):
            root.usage(max_entries=699)
        passed: list[str] = []
        assert steps_of(root, Survey(), on_overflow=passed.append) == []
        assert list(root.walk(max_entries=1, survey=Survey(), on_overflow=passed.append)) == []
        assert passed == [""]


def test_a_directory_that_is_removed_while_it_is_open_is_empty(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    descriptor = os.open(gone, os.O_RDONLY | os.O_DIRECTORY)
    try:
        gone.rmdir()
        assert Survey().look(descriptor, "gone", max_names=10) == ([], 0)
    finally:
        os.close(descriptor)


def test_names_that_match_nothing_are_remembered_and_the_others_found_again():
    protection = Protection(load().entries)
    names = [
        b"a.py",
        b"CLAUDE.md",
        b"\xff",
        "\uff23\uff2c\uff21\uff35\uff24\uff25.md".encode(),
        b"HEAD",
    ]
    first = protection.names_to_look_at(names)
    assert sorted(first) == ["CLAUDE.md", "HEAD", "\uff23\uff2c\uff21\uff35\uff24\uff25.md"]
    assert sorted(protection.names_to_look_at(names)) == sorted(first)


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_missing_or_damaged_library_refuses_the_walk(content, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "cellwall-survey.so").write_bytes(content)
    monkeypatch.setattr(survey_module, "__file__", str(tmp_path / "survey.py"))
    monkeypatch.setattr(survey_module, "_survey_directory", _uncached())
    with Root.open(tmp_path) as root, pytest.raises(survey_module.SandboxFailed) as caught:
        root.usage(max_entries=10)
    assert caught.value.code == "CW-NO-SURVEY"
    assert str(tmp_path) not in str(caught.value) + (caught.value.hint or "")


def _uncached():
    return sys.modules[survey_module.__name__]._survey_directory.__wrapped__
