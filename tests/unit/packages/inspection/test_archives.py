"""Archives that must not be unpacked (PKG-1)."""

from __future__ import annotations

import gzip
import io
import random
import stat
import struct
import tarfile
import zipfile

import pytest

from cellwall.packages.inspection.archives import (
    UnsafeArchive,
    check_name,
    read_archive,
    strip_root,
)


def wheel(*files, mode=0o644):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return data.getvalue()


def tarball(*members, format_=tarfile.PAX_FORMAT):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", format=format_) as archive:
        for member in members:
            name, content = member if isinstance(member, tuple) else (member, b"")
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def special(kind, name="package/x", target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def read(data, filename="a.whl"):
    return {m.name: m.read(100) for m in read_archive(io.BytesIO(data), filename, len(data))}


def refusal(data, filename="a.whl"):
    with pytest.raises(UnsafeArchive) as error:
        read(data, filename)
    return error.value.code


def test_regular_files_of_a_wheel_and_a_tarball_are_read():
    assert read(wheel(("a/b.py", b"x = 1"), ("c.txt", b""))) == {"a/b.py": b"x = 1", "c.txt": b""}
    assert read(tarball(("package/index.js", b"1")), "a.tgz") == {"package/index.js": b"1"}


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "~/x", "C:/x", "a\\..\\b", "a/\u202e/b", "a\nb", "x" * 2000, ".."],
)  # fmt: skip
def test_a_path_that_leaves_the_folder_makes_the_archive_unsafe(name):
    assert refusal(wheel(("ok.py", b""), (name, b""))) == "path"
    assert refusal(tarball((name, b"")), "a.tar.gz") == "path"


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "info",
    [
        special(tarfile.SYMTYPE, target="/etc/passwd"),
        special(tarfile.LNKTYPE, target="package/y"),
        special(tarfile.CHRTYPE),
        special(tarfile.FIFOTYPE),
    ],
)
def test_links_and_devices_make_the_archive_unsafe(info):
    assert refusal(tarball(("package/y", b""), info), "a.tgz") == "link"


def test_a_symbolic_link_in_a_wheel_makes_it_unsafe():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert refusal(data.getvalue()) == "link"


@pytest.mark.slow
@pytest.mark.requirement("PKG-1")
def test_a_bomb_is_stopped_by_its_real_size():
    assert refusal(wheel(("zeros", bytes(40 * 2**20)))) == "bomb"
    assert refusal(tarball(("zeros", bytes(40 * 2**20))), "a.tgz") == "bomb"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["pax", "long name", "second header"])
def test_a_header_that_fills_the_memory_is_refused(place):
    def made(size):
        info, noise = tarfile.TarInfo("package/x"), random.Random(1).randbytes(size // 2).hex()
        if place == "long name":
            info.name = f"package/{noise}"
            return tarball((info, b""), format_=tarfile.GNU_FORMAT)
        info.pax_headers = {"comment": noise}
        return tarball(*([("package/a", b"")] if place == "second header" else []), (info, b""))

    assert refusal(made(2 * 2**20), "a.tgz") == "header"
    if place == "long name":
        assert refusal(made(2**19), "a.tgz") == "path"
    else:
        assert "package/x" in read(made(2**19), "a.tgz")


def test_a_claimed_size_that_is_not_the_real_one_is_found():
    data = bytearray(wheel(("a.py", b"x" * 1000)))
    central = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, central + 24, 10)
    struct.pack_into("<I", data, 22, 10)
    assert refusal(bytes(data)) in ("size", "damaged")


def test_names_that_differ_by_case_alone_are_refused():
    assert refusal(wheel(("a/X.py", b"1"), ("a/x.py", b"2"))) == "duplicate-name"


def test_a_name_that_is_there_twice_is_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        data = wheel(("a.py", b"1"), ("a.py", b"2"))
    assert refusal(data) == "duplicate-name"


@pytest.mark.parametrize("filename", ["a.whl", "a.tgz", "a.tar.gz", "a.zip"])
@pytest.mark.parametrize(
    "data", [b"", b"PK", b"\x1f\x8b\x08", b"x" * 10_000, b"\x1f\x8b" + bytes(1000)]
)
def test_damaged_archives_are_refused(filename, data):
    assert refusal(data, filename) == "damaged"


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_truncated_archive_is_refused(cut):
    content = bytes(range(256)) * 200
    whole = tarball(("package/a", content), ("package/b", content[::-1]))
    assert refusal(whole[: int(len(whole) * cut)], "a.tgz") == "damaged"


def test_other_formats_are_refused():
    assert refusal(b"x", "a.exe") == "format"


def test_a_plain_name_loses_empty_parts():
    assert check_name("./a//b/./c") == "a/b/c"


def two_views(order):
    """Two zip files in one: each end record has a directory of its own."""
    first, second = wheel(("a.py", b"good")), wheel(("a.py", b"evil"))
    return first + second if order else second + first


def with_comment(inner):
    data = wheel(("a.py", b"good"))
    return data[:-2] + struct.pack("<H", len(inner)) + inner


def renamed_locally(data):
    at = data.index(b"a.py")
    return data[:at] + b"b.py" + data[at + 4 :]


def counting(data, count):
    end = data.rindex(b"PK\5\6")
    return data[: end + 8] + struct.pack("<2H", count, count) + data[end + 12 :]


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "data",
    [
        two_views(True), two_views(False), b"#!/bin/sh\n" + wheel(("a.py", b"x")), wheel(("a.py", b"x")) + b"\n",
        with_comment(wheel(("a.py", b"evil"))), renamed_locally(wheel(("a.py", b"x"))),
        counting(wheel(("a.py", b"x"), ("c.py", b"y")), 1), counting(wheel(("a.py", b"x")), 0xFFFF),
    ],
    ids=["two", "two-reversed", "before", "behind", "in-comment", "local-name", "fewer", "more"],
)  # fmt: skip
def test_a_zip_file_that_readers_see_differently_is_refused(data):
    assert refusal(data) == "ambiguous"


def test_a_large_member_and_a_comment_are_no_ambiguity():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.comment = b"made by a tool"
        with archive.open("a.py", "w", force_zip64=True) as opened:
            opened.write(b"x")
    assert read(data.getvalue()) == {"a.py": b"x"}


@pytest.mark.parametrize(
    "names",
    [("\ufb01x.py", "fix.py"), ("a/e\u0301.py", "a/\u00e9.py"), ("a", "a/b"), ("a/b", "A"), ("STRASSE", "stra\u00dfe")],
)  # fmt: skip
def test_names_that_a_file_system_takes_for_one_are_refused(names):
    assert refusal(wheel(*((name, b"") for name in names))) == "duplicate-name"
    assert refusal(tarball(*((name, b"") for name in names)), "a.tgz") == "duplicate-name"


@pytest.mark.requirement("PKG-1")
def test_files_behind_the_end_of_a_tar_file_are_refused():
    plain = gzip.decompress(tarball(("package/a", b"1")))[:1024]
    more = gzip.decompress(tarball(("package/b", b"2")))
    damaged = bytes([more[0] ^ 1]) + more[1:]
    assert read(gzip.compress(plain + bytes(10_240)), "a.tgz") == {"package/a": b"1"}
    assert refusal(gzip.compress(plain + bytes(512) + more), "a.tgz") == "ambiguous"
    assert refusal(gzip.compress(plain + damaged), "a.tgz") == "damaged"


def header(name, data=b"", kind=b"0", *, prefix=b"", magic=b"ustar\x0000", size=None):
    """A header with its content, in any form that a reader might take."""
    fields = bytearray(512)
    fields[0 : len(name)] = name
    fields[100:136] = (
        b"0000644\0" + b"0000000\0" * 2 + (size or b"%011o\0" % len(data)).ljust(12, b"\0")
    )
    fields[136:148] = b"00000000000\0"
    fields[156:157], fields[257:265] = kind, magic
    fields[345 : 345 + len(prefix)] = prefix
    fields[148:156] = b" " * 8
    fields[148:156] = b"%06o\0 " % sum(fields)
    return bytes(fields) + data + bytes(-len(data) % 512)


def pax(key, value):
    rest = b" %s=%s\n" % (key, value)
    size = next(n for n in range(1000) if n == len(str(n)) + len(rest))
    return str(size).encode() + rest


GOOD, EVIL, NAME = b'{"n":1}', b'{"n":2}', b"package/package.json"
LONG = header(b"@LongLink", b"package/a\0", b"L")


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "second",
    [
        header(b"./package.json", EVIL),
        LONG + header(b"p", pax(b"path", NAME), b"x") + header(b"package/a", EVIL),
        header(b"p", pax(b"path", NAME), b"x") + LONG + header(b"package/a", EVIL),
        header(b"p", pax(b"path", NAME), b"x") * 2 + header(b"package/a", EVIL),
        header(b"p", pax(b"comment", b"a\n" + pax(b"path", NAME)[:-1]), b"x") + header(b"package/a", EVIL),
        header(b"p", pax(b"GNU.sparse.name", b"package/a"), b"x") + header(NAME, EVIL),
        header(b"p", pax(b"path", b"package/a") + b"9 x", b"x") + header(NAME, EVIL),
        header(b"p", pax(b"path", NAME), b"g") + header(b"package/a", EVIL),
        header(NAME, EVIL, prefix=b"y", magic=b"ustar  \0"),
        header(NAME, EVIL, prefix=b"y", magic=bytes(8)),
        header(b"package/a", header(NAME, EVIL), size=b"0o00002000\0"),
        header(b"package/a", header(NAME, EVIL), size=b"0_0002000\0"),
        header(b"package/a", header(NAME, EVIL), size=b"\x80" + bytes(9) + b"\4\0"),
        header(b"package/d/", header(NAME, EVIL), b"5"),
        header(b"package/d/", header(NAME, EVIL), b"0"),
        header(b"@LongLink", b"package/a\0x\0", b"L") + header(NAME, EVIL),
    ],
)  # fmt: skip
def test_a_file_that_tar_readers_see_under_other_names_or_sizes_is_refused(second):
    assert refusal(gzip.compress(header(NAME, GOOD) + second + bytes(1024)), "a.tgz") == "ambiguous"


def test_the_extended_headers_of_ordinary_tools_are_read():
    long = b"package/" + b"x" * 150
    data = (
        header(b"g", pax(b"comment", b"of git archive"), b"g")
        + header(b"p", pax(b"mtime", b"1.5") + pax(b"path", long + b"1"), b"x")
        + header(b"package/short", GOOD)
        + header(b"@LongLink", long + b"2\0", b"L", magic=b"ustar  \0")
        + header(b"package/short", GOOD, magic=b"ustar  \0")
        + header(b"3", GOOD, prefix=b"package/d")
        + header(b"package/d/", b"", b"5")
    )
    names = {f"{long.decode()}1", f"{long.decode()}2", "package/d/3"}
    assert read(gzip.compress(data + bytes(1024)), "a.tgz").keys() == names


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("names", [("a/x", "b/x"), ("a/x", "y"), ("x",)])
def test_files_outside_of_one_folder_are_refused(names):
    data = tarball(*((name, b"") for name in names))
    with pytest.raises(UnsafeArchive, match="one folder"):
        list(strip_root(read_archive(io.BytesIO(data), "a.tgz", len(data))))


@pytest.mark.requirement("PKG-1")
def test_a_second_size_in_a_pax_record_is_refused():
    info = tarfile.TarInfo("package/x")
    for size, is_refused in (("3", False), ("03", True), ("2", True), ("1024", True)):
        info.pax_headers = {"size": size}
        data = tarball((info, b"abc"))
        if is_refused:
            assert refusal(data, "a.tgz") == "ambiguous"
        else:
            assert read(data, "a.tgz") == {"package/x": b"abc"}


def test_a_path_of_too_many_folders_is_refused():
    assert refusal(wheel(("a/" * 100 + "x", b""))) == "path"
