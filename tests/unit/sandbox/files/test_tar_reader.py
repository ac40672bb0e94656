"""Archives that strangers made: taken whole or refused whole (FS-1, FS-3, FS-4, FS-7)."""

from __future__ import annotations

import ctypes
import gzip
import io
import os
import random
import stat
import tarfile
import threading
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.files.tar_transfer import pack, unpack
from cellwall.sandbox.protection.protected_paths import access_check_for

LIMITS = WriteLimits(
    max_file_bytes=1 << 20, max_total_bytes=1 << 24, max_files=1000, blocked_extensions=(".exe",)
)
END = bytes(1024)
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture
def place(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "canary").write_bytes(b"untouched")
    yield tmp_path / "ws"
    assert sorted(os.listdir(tmp_path)) == ["outside", "ws"]
    assert os.listdir(tmp_path / "outside") == ["canary"]
    assert (tmp_path / "outside" / "canary").read_bytes() == b"untouched"


@pytest.fixture
def ws(place):
    with FileTree.open(place) as tree:
        yield tree


def entry(name, data=b"", **changes):
    """One member as `tarfile` writes it, header and content."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    form = changes.pop("format", tarfile.GNU_FORMAT)
    for key, value in changes.items():
        setattr(info, key, value)
    return info.tobuf(form, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def directory(name, **changes):
    return entry(name, type=tarfile.DIRTYPE, mode=0o755, **changes)


def archive(*entries):
    return b"".join(entries) + END


def pax(records, *, kind=tarfile.XHDTYPE):
    lines = b""
    for key, value in records:
        body = b" " + key + b"=" + value + b"\n"
        size = len(body) + 1
        while len(str(size)) + len(body) != size:
            size = len(str(size)) + len(body)
        lines += str(size).encode() + body
    return entry("pax", lines, type=kind)


def uploaded(ws, data, path=".", limits=LIMITS):
    return unpack(ws, path, io.BytesIO(data), limits=limits)


def refused_code(ws, data, path=".", limits=LIMITS):
    with pytest.raises(WorkspaceError) as caught:
        uploaded(ws, data, path, limits)
    assert caught.value.hint
    return caught.value.code


def tree(place):
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
    }


# Ordinary work.


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("pressed", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids="ugp".__getitem__
)
def test_an_archive_becomes_the_tree_that_was_packed(ws, place, form, pressed):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as out:
        for name, data in (("./top.bin", bytes(range(256)) * 5), ("d/e/x", b""), ("d/ü", b"u")):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), 1_000_000_000, 0o4755
            out.addfile(info, io.BytesIO(data))
        empty = tarfile.TarInfo("d/empty/")
        empty.type = tarfile.DIRTYPE
        out.addfile(empty)
    data = pressed(packed.getvalue())
    done = uploaded(ws, data, "in/here")
    assert tree(place / "in" / "here") == {
        "d": None,
        "d/e": None,
        "d/e/x": b"",
        "d/empty": None,
        "d/ü": b"u",
        "top.bin": bytes(range(256)) * 5,
    }
    status = (place / "in/here/top.bin").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o755, 1_000_000_000)
    assert (done.files, done.directories, done.content_bytes) == (3, 5, 1281)
    assert done.archive_bytes == len(data)


@pytest.mark.requirement("FS-7")
def test_long_names_of_both_kinds_and_a_git_archives_comment_are_taken(ws, place):
    long = "/".join(["n" * 200] * 4)
    data = archive(
        pax([(b"comment", b"0" * 40)], kind=tarfile.XGLTYPE),
        entry(f"gnu/{long}", b"1"),
        entry(f"pax/{long}", b"2", format=tarfile.PAX_FORMAT),
        pax([(b"SCHILY.xattr.user.x", b"\0\n=bin"), (b"mtime", b"1.5"), (b"size", b"1")]),
        entry("sized", b"3"),
    )
    uploaded(ws, data)
    assert (place / "gnu" / long).read_bytes() == b"1"
    assert (place / "pax" / long).read_bytes() == b"2"
    assert (place / "sized").read_bytes() == b"3"
    assert (place / "sized").stat().st_mtime == 1


@pytest.mark.requirement("FS-7")
def test_what_is_packed_can_be_unpacked_and_is_a_tar_for_others(ws, place):
    (place / "a/b").mkdir(parents=True)
    (place / "a/b/run").write_bytes(b"#!")
    (place / "a/b/run").chmod(0o6755)
    (place / ("l" * 180)).write_bytes(b"x" * 513)
    os.close(os.open(os.fsencode(place) + b"/\xff\n", os.O_CREAT | os.O_WRONLY))
    sink = io.BytesIO()
    done = pack(ws, ".", sink, limits=LIMITS)
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as found:
        members = {m.name: (m.isdir(), m.size, m.mode, m.uid, m.uname) for m in found}
        assert found.extractfile("a/b/run").read() == b"#!"
    assert members["a/b/run"] == (False, 2, 0o755, 0, "")
    assert sorted(members) == sorted(["a", "a/b", "a/b/run", "l" * 180, "\udcff\n"])
    assert (done.files, done.directories, done.content_bytes) == (3, 2, 515)
    assert done.archive_bytes == len(sink.getvalue())
    sub = io.BytesIO()
    pack(ws, "a", sub, limits=LIMITS)
    uploaded(ws, sub.getvalue(), "copy")
    assert tree(place / "copy") == {"b": None, "b/run": b"#!"}


@pytest.mark.requirement("FS-7")
def test_existing_files_are_replaced_and_others_stay(ws, place):
    (place / "d").mkdir()
    (place / "d/old").write_bytes(b"old")
    (place / "d/other").write_bytes(b"other")
    os.link(place / "d/old", place / "second-name")
    done = uploaded(ws, archive(directory("d"), entry("d/old", b"new")))
    assert tree(place) == {"d": None, "d/old": b"new", "d/other": b"other", "second-name": b"old"}
    assert (done.files, done.directories) == (1, 0)


@pytest.mark.requirement("FS-7")
def test_memory_is_bounded_both_ways(ws, place):
    size = 24 << 20
    limits = WriteLimits(max_file_bytes=size, max_total_bytes=2 * size, max_files=10)
    with (place / "big").open("wb") as big:
        big.truncate(size)

    class Counted:
        written = 0

        def write(self, data):
            self.written += len(data)

    class Stream:
        """A header, that many zeros, the end; none of it made before it is asked for."""

        left = 512 + size + 1024

        def read(self, most):
            start = entry("in", size=size) if self.left == 512 + size + 1024 else b""
            data = start or bytes(min(most, self.left))
            self.left -= len(data)
            return data

    sink = Counted()
    tracemalloc.start()
    try:
        pack(ws, ".", sink, limits=limits)
        (place / "big").unlink()
        unpack(ws, ".", Stream(), limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sink.written > size
    assert (place / "in").stat().st_size == size
    assert peak < 2 << 20


# Hostile members, each next to one that is fine: nothing of either arrives.


@pytest.mark.requirement("FS-1", "FS-3", "FS-7")
@pytest.mark.parametrize(
    ("member", "code"),
    [
        (entry("/etc/x", b"!"), "CW-PATH-OUTSIDE"),
        (entry("/workspace/x", b"!"), "CW-PATH-OUTSIDE"),
        (entry("../outside/x", b"!"), "CW-PATH-OUTSIDE"),
        (entry("a/../../outside/x", b"!"), "CW-PATH-OUTSIDE"),
        (entry("a/../x", b"!"), "CW-PATH-OUTSIDE"),
        (directory("../outside/d"), "CW-PATH-OUTSIDE"),
        (pax([(b"path", b"../outside/x")]) + entry("x", b"!"), "CW-PATH-OUTSIDE"),
        (pax([(b"path", b"/etc/x")]) + entry("x", b"!"), "CW-PATH-OUTSIDE"),
        (pax([(b"path", b"x\0y")]) + entry("x", b"!"), "CW-PATH-INVALID"),
        (pax([(b"path", b"")]) + entry("x", b"!"), "CW-PATH-INVALID"),
        (entry("x\ny", b"!"), "CW-PATH-INVALID"),
        (entry("x\x1b[2Jy", b"!"), "CW-PATH-INVALID"),
        (entry("x\x85y", b"!"), "CW-PATH-INVALID"),
        (entry("\udcff", b"!"), "CW-PATH-INVALID"),
        (entry("n" * 256, b"!"), "CW-PATH-INVALID"),
        (entry("d/" * 65 + "x", b"!"), "CW-PATH-INVALID"),
        (entry("nn/" * 1400 + "x", b"!"), "CW-PATH-INVALID"),
        (entry("l", type=tarfile.SYMTYPE, linkname="fine"), "CW-ARCHIVE-LINK"),
        (entry("l", type=tarfile.SYMTYPE, linkname="../outside"), "CW-ARCHIVE-LINK"),
        (entry("l", type=tarfile.LNKTYPE, linkname="fine"), "CW-ARCHIVE-LINK"),
        (entry("l", type=tarfile.SYMTYPE, linkname="k" * 200), "CW-ARCHIVE-LINK"),
        (entry("f", type=tarfile.FIFOTYPE), "CW-ARCHIVE-SPECIAL"),
        (entry("c", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "CW-ARCHIVE-SPECIAL"),
        (entry("b", type=tarfile.BLKTYPE, devmajor=8), "CW-ARCHIVE-SPECIAL"),
        (entry("u", type=b"Z"), "CW-ARCHIVE-SPECIAL"),
        (entry("s", type=tarfile.GNUTYPE_SPARSE), "CW-ARCHIVE-SPARSE"),
        (
            pax([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9" * 12)]) + entry("s"),
            "CW-ARCHIVE-SPARSE",
        ),
        (entry("evil.EXE", b"MZ"), "CW-EXTENSION-BLOCKED"),
        (entry("evil.exe.", b"MZ"), "CW-EXTENSION-BLOCKED"),
        (entry("fine", b"again"), "CW-ARCHIVE-CONFLICT"),
        (entry("./fine", b"again"), "CW-ARCHIVE-CONFLICT"),
        (directory("d") + directory("d/"), "CW-ARCHIVE-CONFLICT"),
        (entry("fine/below", b"!"), "CW-ARCHIVE-CONFLICT"),
        (directory("fine"), "CW-ARCHIVE-CONFLICT"),
        (entry("d/x", b"!") + entry("d", b"!"), "CW-ARCHIVE-CONFLICT"),
        (entry("big", bytes((1 << 20) + 1)), "CW-FILE-TOO-LARGE"),
        (pax([(b"size", b"9" * 15)]) + entry("x"), "CW-FILE-TOO-LARGE"),
        (pax([(b"size", b"9" * 400)]) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"size", b"-1")]) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"x", b"y" * 70_000)]) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"x", b"y")]) * 5 + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"path", b"a"), (b"path", b"b")]) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"path", b"a")], kind=tarfile.XGLTYPE) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"hdrcharset", b"EBCDIC")]) + entry("x"), "CW-ARCHIVE-INVALID"),
        (entry("p", b"99999 path=x\n", type=tarfile.XHDTYPE) + entry("x"), "CW-ARCHIVE-INVALID"),
        (entry("p", b"0 path=x\n", type=tarfile.XHDTYPE) + entry("x"), "CW-ARCHIVE-INVALID"),
        (entry("p", b"no header", type=tarfile.XHDTYPE) + entry("x"), "CW-ARCHIVE-INVALID"),
        (pax([(b"path", b"alone")]), "CW-ARCHIVE-INVALID"),
        (entry("d", b"data", type=tarfile.DIRTYPE), "CW-ARCHIVE-INVALID"),
        (entry("x/", b"!", type=tarfile.REGTYPE), "CW-ARCHIVE-INVALID"),
        (entry(".", b"!"), "CW-ARCHIVE-INVALID"),
        (entry("neg", size=-512), "CW-ARCHIVE-INVALID"),
        (b"garbage" * 200, "CW-ARCHIVE-INVALID"),
        (END + entry("hidden", b"!"), "CW-ARCHIVE-INVALID"),
        (bytes(512) + entry("hidden", b"!"), "CW-ARCHIVE-INVALID"),
        (bytes(2 << 20), "CW-ARCHIVE-INVALID"),
    ],
)
def test_a_hostile_member_spoils_the_whole_archive(ws, place, member, code):
    (place / "old").write_bytes(b"old")
    fine = entry("old", b"new") + entry("fine", b"fine")
    assert refused_code(ws, archive(fine, member), "sub") == code
    assert refused_code(ws, gzip.compress(archive(fine, member))) == code
    assert tree(place) == {"old": b"old"}
    uploaded(ws, archive(fine))  # the control: without it, all is taken
    assert tree(place) == {"old": b"new", "fine": b"fine"}


@pytest.mark.requirement("FS-3")
def test_an_archive_cut_anywhere_is_refused(ws, place):
    whole = archive(entry("a", b"x" * 700), pax([(b"mtime", b"1")]), entry("b", b"y"))
    pressed = gzip.compress(whole)
    for end in range(0, len(whole), 97):
        assert refused_code(ws, whole[:end]) == "CW-ARCHIVE-TRUNCATED"
    for end in range(2, len(pressed)):
        assert refused_code(ws, pressed[:end]) == "CW-ARCHIVE-TRUNCATED"
    assert tree(place) == {}
    assert uploaded(ws, whole).files == uploaded(ws, pressed).files == 2


@pytest.mark.requirement("FS-3")
def test_gzip_that_is_broken_goes_on_or_never_ends_is_refused(ws, place):
    pressed = gzip.compress(archive(entry("a", b"x")))
    assert refused_code(ws, pressed + b"garbage") == "CW-ARCHIVE-INVALID"
    assert refused_code(ws, pressed[:-8] + bytes(8)) == "CW-ARCHIVE-INVALID"
    assert refused_code(ws, b"\x1f\x8b" + os.urandom(100)) == "CW-ARCHIVE-INVALID"

    class Endless:
        def read(self, size):
            return gzip.compress(b"") * (size // 20)

    with pytest.raises(WorkspaceError, match="gzip without content"):
        unpack(ws, ".", Endless(), limits=LIMITS)
    assert tree(place) == {}
    half = archive(entry("a", b"x"))
    uploaded(ws, gzip.compress(half[:700]) + gzip.compress(half[700:]))  # joined gzip is gzip
    assert tree(place) == {"a": b"x"}


@pytest.mark.requirement("FS-3")
@pytest.mark.slow
def test_bombs_end_at_the_limits(ws, place):
    limits = WriteLimits(max_file_bytes=1 << 30, max_total_bytes=1 << 20, max_files=20)
    presser = zlib.compressobj(9, wbits=31)
    bomb = presser.compress(header := entry("zeros", size=1 << 30)) + presser.compress(
        bytes(64 << 20)
    )
    assert len(header) == 512
    assert refused_code(ws, bomb, limits=limits) == "CW-WORKSPACE-FULL"
    many = archive(*(entry(f"{n}") for n in range(21)))
    assert refused_code(ws, many, limits=limits) == "CW-ARCHIVE-TOO-LARGE"
    pairs = archive(*(entry(f"{n}/{n}") for n in range(11)))
    assert refused_code(ws, pairs, limits=limits) == "CW-WORKSPACE-FULL"
    dirs = archive(*(directory(f"{n}/{n}") for n in range(11)))
    assert refused_code(ws, dirs, limits=limits) == "CW-WORKSPACE-FULL"
    assert refused_code(ws, archive(entry("d/" * 21 + "x")), limits=limits) == "CW-WORKSPACE-FULL"
    tops = archive(*[directory("./")] * 21)
    assert refused_code(ws, tops, limits=limits) == "CW-ARCHIVE-TOO-LARGE"
    (place / "there").write_bytes(bytes(900_000))
    two = archive(entry("a", bytes(200_000)))
    assert refused_code(ws, two, limits=limits) == "CW-WORKSPACE-FULL"
    assert tree(place).keys() == {"there"}
    uploaded(
        ws, archive(entry("there", bytes(1_000_000))), limits=limits
    )  # in the place of the old
    uploaded(ws, archive(*(entry(f"{n}") for n in range(19))), limits=limits)
    assert len(tree(place)) == 20


# What stands in the way.


@pytest.mark.requirement("FS-1", "FS-7")
def test_nothing_is_written_through_a_link_or_over_another_kind(ws, place):
    (place / "out").symlink_to("../outside")
    (place / "in").symlink_to("real")
    (place / "real").mkdir()
    (place / "file").write_bytes(b"file")
    before = tree(place)
    for member, code in (
        (entry("out/x", b"!"), "CW-NOT-A-DIRECTORY"),
        (entry("in/x", b"!"), "CW-NOT-A-DIRECTORY"),
        (entry("out", b"!"), "CW-NOT-A-FILE"),
        (entry("real", b"!"), "CW-NOT-A-FILE"),
        (directory("file"), "CW-NOT-A-DIRECTORY"),
        (entry("file/x", b"!"), "CW-NOT-A-DIRECTORY"),
    ):
        assert refused_code(ws, archive(entry("fine"), member)) == code
    for path in ("out", "../outside", "/etc"):
        assert refused_code(ws, archive(entry("x", b"!")), path) == "CW-PATH-OUTSIDE"
    assert refused_code(ws, archive(entry("x")), "file") == "CW-NOT-A-DIRECTORY"
    assert tree(place) == before
    uploaded(ws, archive(entry("x", b"!")), "in")  # the user's own path may hold a link inside
    assert (place / "real/x").read_bytes() == b"!"


@pytest.mark.requirement("FS-4", "FS-7", "FS-8")
def test_protected_names_are_neither_uploaded_nor_downloaded(place):
    (place / ".git/hooks").mkdir(parents=True)
    (place / ".env").write_text("SECRET=1")
    with FileTree.open(place, access_check=access_check_for(load())) as ws:
        for name in (
            *(".env", "sub/.ENV", ".git/hooks/pre-commit", ".ssh/authorized_keys", "x/HEAD"),
            *(
                "x/commondir",
                "sub/.git",
                "a/.git/modules/b/c/config",
                "deep/CLAUDE.md",
                ".mcp.json",
            ),
        ):
            code = refused_code(ws, archive(entry("fine"), entry(name, b"!")))
            assert code == "CW-PATH-PROTECTED"
        assert refused_code(ws, archive(entry("pre-commit")), ".git/hooks") == "CW-PATH-PROTECTED"
        assert refused_code(ws, archive(entry("hooks/x")), ".git") == "CW-PATH-PROTECTED"
        assert not (place / "fine").exists()
        uploaded(ws, archive(entry("fine", b"x"), entry("src/env", b"y")))
        sink = io.BytesIO()
        pack(ws, ".", sink, limits=LIMITS)
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as found:
        names = found.getnames()
    assert {"fine", "src/env"} <= set(names)
    assert ".env" not in names
    assert b"SECRET" not in sink.getvalue()


@pytest.mark.requirement("FS-7")
def test_a_download_refuses_links_and_special_files_or_leaves_them_out(ws, place):
    (place / "file").write_bytes(b"x")
    (place / "link").symlink_to("/etc/passwd")
    os.mkfifo(place / "pipe")
    with pytest.raises(WorkspaceError) as caught:
        pack(ws, ".", io.BytesIO(), limits=LIMITS)
    assert caught.value.code == "CW-LINK-IN-TREE"
    sink = io.BytesIO()
    assert pack(ws, ".", sink, limits=LIMITS, skip_links=True).files == 1
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as found:
        assert found.getnames() == ["file"]


@pytest.mark.requirement("FS-7")
def test_a_download_is_bounded(ws, place):
    with (place / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    small = WriteLimits(max_file_bytes=1 << 10, max_total_bytes=1 << 11, max_files=3)

    def code():
        with pytest.raises(WorkspaceError) as caught:
            pack(ws, ".", io.BytesIO(), limits=small)
        return caught.value.code

    assert code() == "CW-FILE-TOO-LARGE"
    (place / "sparse").unlink()
    for name in "abc":
        (place / name).write_bytes(bytes(1000))
    assert code() == "CW-ARCHIVE-TOO-LARGE"
    for name in "abcd":
        (place / name).write_bytes(b"")
    assert code() == "CW-WORKSPACE-TOO-LARGE"
    (place / "d").unlink()
    assert pack(ws, ".", io.BytesIO(), limits=small).files == 3


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("wrong", ["text", None, 7])
def test_a_source_that_gives_no_bytes_is_told_so(ws, place, wrong):
    class Source:
        def read(self, _size):
            return wrong

    with pytest.raises(BadInput) as caught:
        unpack(ws, ".", Source(), limits=LIMITS)
    assert caught.value.code == "CW-BAD-SOURCE"
    assert tree(place) == {}


@pytest.mark.requirement("FS-7")
def test_an_error_of_the_source_leaves_nothing_behind(ws, place):
    start = entry("a", b"x") + entry("b", bytes(200_000))[:100_000]

    class Source(io.BytesIO):
        def read(self, size):
            return super().read(size) or pytest.fail("cut")

    with pytest.raises(pytest.fail.Exception):
        unpack(ws, ".", Source(start), limits=LIMITS)
    assert tree(place) == {}


@pytest.mark.requirement("FS-7")
def test_what_was_put_in_place_is_taken_away_if_the_rest_fails(ws, place, monkeypatch):
    real, moves = os.rename, []

    def rename(source, target, **fds):
        moves.append(target)
        if len(moves) == 3:
            raise OSError(28, "full")
        return real(source, target, **fds)

    monkeypatch.setattr("cellwall.sandbox.files.tar_transfer.os.rename", rename)
    data = archive(entry("new/a", b"1"), entry("new/b", b"2"), entry("c", b"3"))
    assert refused_code(ws, data) == "CW-DISK-FULL"
    assert moves == ["a", "b", "c"]
    assert tree(place) == {}


@pytest.mark.requirement("FS-1")
def test_links_that_come_and_go_lead_no_member_out(ws, place):
    """Somebody swaps a directory for a link to the outside all the time."""
    (place / "d").mkdir()
    (place / "link").symlink_to("../outside")
    exchange = ctypes.CDLL(None).renameat2
    one, other = os.fsencode(place / "d"), os.fsencode(place / "link")
    done = threading.Event()

    def swap():
        while not done.is_set():
            exchange(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)
            done.wait(random.random() / 1000)  # long enough at times for a whole upload

    thread = threading.Thread(target=swap)
    thread.start()
    arrived = refusals = 0
    try:
        while arrived < 5 or refusals < 100:  # both happen; the fixture looks outside
            try:
                uploaded(ws, archive(entry(f"d/{arrived}", b"!")))
                arrived += 1
            except WorkspaceError as error:
                known = {"CW-NOT-A-DIRECTORY", "CW-PATH-OUTSIDE", "CW-NOT-FOUND", "CW-NOT-A-FILE"}
                assert error.code in known  # noqa: PT017
                refusals += 1
    finally:
        done.set()
        thread.join()


@pytest.mark.requirement("FS-7", "RED-2")
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_garbage_is_refused_or_taken_and_never_breaks(tmp_path_factory, data):
    whole = archive(
        directory("d"),
        pax([(b"mtime", b"1"), (b"path", b"d/x")]),
        entry("x", b"x" * 600),
        entry("y"),
    )
    changed = bytearray(whole)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6)
    ):
        changed[at] = value
    for start in range(0, len(changed) - 511, 512):  # let the garbage come past the checksums
        block = bytes(changed[start : start + 512])
        if block != whole[start : start + 512] and block[257:262] == b"ustar":
            blank = block[:148] + b" " * 8 + block[156:]
            changed[start + 148 : start + 156] = b"%06o\0 " % sum(blank)
    piece = data.draw(st.sampled_from([bytes(changed), b"\x1f\x8b" + bytes(changed)]))
    piece = data.draw(st.sampled_from([piece, gzip.compress(piece), data.draw(st.binary())]))
    top = tmp_path_factory.mktemp("garbage")
    (top / "ws").mkdir()
    with FileTree.open(top / "ws") as ws:
        try:
            uploaded(ws, piece)
        except WorkspaceError:
            assert os.listdir(top / "ws") == []
    assert os.listdir(top) == ["ws"]
