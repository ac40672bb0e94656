"""The lock file of a workspace is untrusted text; a changed hash is found (PKG-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.core.errors import BadInput
from cellwall.packages.inventory import InstalledPackage, render_pylock
from cellwall.packages.locks.model import MAX_LOCK_BYTES
from cellwall.packages.locks.workspace import changed_hash, merge_locks, read_workspace_lock
from cellwall.packages.names import Ecosystem


def package(name="zebra", version="1.0", digest="a", **changes):
    filename = f"{name}-{version}-py3-none-any.whl"
    made = InstalledPackage(
        Ecosystem.PYPI,
        name,
        version,
        filename,
        f"https://files.pythonhosted.org/{filename}",
        "sha256",
        digest * 64,
        10,
    )
    return replace(made, **changes)


@pytest.mark.requirement("PKG-5")
def test_a_lock_that_was_written_is_read_back():
    written = [package(), package("quagga", "2.0", "b")]
    content = render_pylock(written)
    lock = read_workspace_lock(content)
    assert lock.is_own
    assert sorted(lock.files, key=lambda each: each.name) == [written[1], written[0]]


@pytest.mark.requirement("PKG-5")
def test_a_file_with_another_hash_than_the_lock_is_found():
    locked = read_workspace_lock(render_pylock([package(), package("quagga", "2.0", "b")])).files
    assert changed_hash(locked, [package(), package("okapi", "1.0", "c")]) is None
    changed = package(digest="d")
    assert changed_hash(locked, [package("okapi"), changed]) == changed
    assert changed_hash(locked, [package(version="1.1", digest="d")]) is None  # another file


def test_a_served_version_replaces_the_others_of_its_package():
    locked = [package(version="1.0"), package("quagga")]
    merged = merge_locks(locked, [package(version="1.1")])
    assert {(each.name, each.version) for each in merged} == {("zebra", "1.1"), ("quagga", "1.0")}
    assert merge_locks(locked, [package()]) == locked


def test_a_lock_of_another_tool_is_read():
    content = b"""
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "zebra-atlas"
version = "1.0"
wheels = [{ url = "https://a.example/x/zebra_atlas-1.0-py3-none-any.whl", hashes = { sha256 = "%s" } }]
[[packages]]
name = "here"
directory = { path = "." }
""" % (b"a" * 64)
    lock = read_workspace_lock(content)
    assert not lock.is_own
    (found,) = lock.files
    assert (found.name, found.filename) == ("zebra-atlas", "zebra_atlas-1.0-py3-none-any.whl")


HEAD = b'lock-version = "1.0"\ncreated-by = "cellwall"\n'


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[",
        HEAD + b"packages = 1",
        b"a" * (MAX_LOCK_BYTES + 1),
        HEAD + b'packages = [{ name = "a", version = "1", wheels = [{ url = 1 }] }]',
        HEAD + b'packages = [{ name = "a", version = "1", wheels = [{ url = "u" }] }]',
        HEAD
        + b'packages = [{ name = "a", version = "1", wheels = [{ hashes = { sha256 = "zz" } }] }]',
        HEAD
        + b'packages = [{ name = "\xc3\xa4", version = "1", wheels = [{ hashes = { sha256 = "'
        + b"a" * 64
        + b'" } }] }]',
        b"a = " + b"[" * 5000,
    ],
)
def test_another_form_is_refused(content):
    with pytest.raises(BadInput):
        read_workspace_lock(content)
