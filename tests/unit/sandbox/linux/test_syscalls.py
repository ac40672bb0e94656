"""The kernel calls do what their flags say, and fail as OSError."""

from __future__ import annotations

import errno
import os

import pytest

from cellwall.sandbox.linux import _syscalls
from cellwall.sandbox.linux._syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    landlock_abi,
    openat2,
)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"inside")
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "in" / "link").symlink_to("a")
    (tmp_path / "in" / "out").symlink_to("../outside")
    fd = os.open(tmp_path / "in", os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def content(root, path, resolve):
    fd = openat2(root, path, flags=os.O_RDONLY, resolve=resolve)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_openat2_opens_what_lies_beneath(root):
    assert content(root, "a", RESOLVE_BENEATH) == b"inside"
    assert content(root, b"link", RESOLVE_BENEATH) == b"inside"


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    ("path", "resolve", "code"),
    [
        ("../outside", RESOLVE_BENEATH, errno.EXDEV),
        ("out", RESOLVE_BENEATH, errno.EXDEV),
        ("/etc/passwd", RESOLVE_BENEATH, errno.EXDEV),
        ("link", RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, errno.ELOOP),
        ("missing", RESOLVE_BENEATH, errno.ENOENT),
        ("a\0b", RESOLVE_BENEATH, errno.EINVAL),
    ],
)
def test_openat2_refuses_as_oserror(root, path, resolve, code):
    with pytest.raises(OSError) as caught:
        openat2(root, path, flags=os.O_RDONLY, resolve=resolve)
    assert caught.value.errno == code


def test_without_the_flags_the_same_paths_do_lead_out(root):
    assert content(root, "../outside", 0) == b"outside"
    assert content(root, "out", 0) == b"outside"


@pytest.mark.requirement("FS-1")
def test_magic_links_are_not_followed():
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(openat2(proc, "self/root", flags=os.O_PATH, resolve=0))
        with pytest.raises(OSError) as caught:
            openat2(proc, "self/root", flags=os.O_PATH, resolve=RESOLVE_NO_MAGICLINKS)
    finally:
        os.close(proc)
    assert caught.value.errno == errno.ELOOP


def test_descriptors_do_not_survive_an_exec(root):
    fd = openat2(root, "a", flags=os.O_RDONLY, resolve=RESOLVE_BENEATH)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_landlock_version_is_a_number_where_it_is_built_in():
    try:
        with open("/sys/kernel/security/lsm") as modules:
            active = "landlock" in modules.read().split(",")
    except OSError:
        active = landlock_abi() > 0
    assert (landlock_abi() > 0) == active


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_no_landlock_is_version_zero(monkeypatch, code):
    monkeypatch.setattr(_syscalls, "_create_ruleset", lambda *_: -1)
    monkeypatch.setattr(_syscalls.ctypes, "get_errno", lambda: code)
    assert landlock_abi() == 0
