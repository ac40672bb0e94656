"""A passed inspection holds for the same bytes, name and rules, and for no others (PKG-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.packages.registry.passed_inspections import PassedInspections

SUBJECT = ("pypi", "zebra", "1.0", "zebra-1.0-py3-none-any.whl", "sha256", "a" * 64, None)


def passed_in(folder, edition="one", **options):
    return PassedInspections(str(folder), lambda: edition, **options)


@pytest.fixture
def folder(tmp_path):
    """A folder with one entry."""
    passed_in(tmp_path / "inspected").add(*SUBJECT)
    return tmp_path / "inspected"


def entry_in(folder: Path) -> Path:
    (entry,) = folder.iterdir()
    return entry


def test_an_entry_is_seen_by_the_next_process(folder):
    assert passed_in(folder).has(*SUBJECT)
    assert entry_in(folder).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("place", range(len(SUBJECT)))
def test_an_entry_holds_for_its_whole_subject_only(folder, place):
    other = (*SUBJECT[:place], "other", *SUBJECT[place + 1 :])
    assert passed_in(folder).has(*SUBJECT)
    assert not passed_in(folder).has(*other)


@pytest.mark.requirement("PKG-1")
def test_other_rules_inspect_again(folder):
    assert not passed_in(folder, "two").has(*SUBJECT)


@pytest.mark.requirement("PKG-1")
def test_without_a_known_edition_nothing_is_remembered(tmp_path, folder):
    assert not passed_in(folder, None).has(*SUBJECT)
    passed_in(tmp_path / "other", None).add(*SUBJECT)
    assert not (tmp_path / "other").exists()


def cut(entry):
    entry.write_bytes(b"")


def lengthen(entry):
    entry.write_bytes(entry.read_bytes() + b"x")


def let_others_write(entry):
    entry.chmod(0o666)


def let_others_write_the_folder(entry):
    entry.parent.chmod(0o770)


def replace_by_a_link(entry):
    real = entry.rename(entry.parent.parent / "real")
    entry.symlink_to(real)


def replace_by_a_folder(entry):
    entry.unlink()
    entry.mkdir()


def replace_the_folder_by_a_link(entry):
    real = entry.parent.rename(entry.parent.parent / "real")
    (entry.parent.parent / "inspected").symlink_to(real)


def give_away(entry):
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    os.chown(entry, 12345, 12345)


def give_the_folder_away(entry):
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    os.chown(entry.parent, 12345, 12345)


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "change",
    [
        cut,
        lengthen,
        let_others_write,
        let_others_write_the_folder,
        replace_by_a_link,
        replace_by_a_folder,
        replace_the_folder_by_a_link,
        give_away,
        give_the_folder_away,
    ],
)
def test_a_damaged_or_foreign_entry_is_none(folder, change):
    assert passed_in(folder).has(*SUBJECT)
    change(entry_in(folder))
    assert not passed_in(folder).has(*SUBJECT)


def test_a_folder_that_others_can_write_gets_no_entry(tmp_path):
    tmp_path.chmod(0o777)
    passed_in(tmp_path).add(*SUBJECT)
    assert list(tmp_path.iterdir()) == []


def test_the_entries_are_bounded_and_the_unused_go_first(folder):
    os.utime(entry_in(folder), (0, 0))
    passed = passed_in(folder, max_entries=2)
    for number in range(300):
        passed.add("pypi", f"zebra-{number}")
        if number == 0:
            assert passed.has("pypi", "zebra-0")
    assert not passed.has(*SUBJECT)
    assert len(list(folder.iterdir())) < 300
