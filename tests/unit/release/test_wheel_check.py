"""A wheel that is not what its name promises is found."""

from __future__ import annotations

import base64
import hashlib
import platform
import tarfile
import zipfile
from pathlib import Path

import pytest
from release.elf_files import NotElf, read_elf
from release.wheel_check import LIBRARIES, PROGRAM, problems, source_files

import cellwall

INSTALLED = Path(cellwall.__file__).parent.parent
NAME = f"cellwall-0.1.0-py3-none-manylinux_2_99_{platform.machine()}.whl"
OTHER = {"aarch64": "x86_64", "x86_64": "aarch64"}[platform.machine()]


def wheel_of(folder: Path, name: str, changes: dict[str, bytes | None] | None = None) -> str:
    """The native files of this installation, as a wheel; None removes one."""
    files: dict[str, bytes | None] = {
        each: (INSTALLED / each).read_bytes() for each in (PROGRAM, *LIBRARIES)
    }
    files["cellwall-0.1.0.dist-info/METADATA"] = b"Name: cellwall\nVersion: 0.1.0\n"
    tag = name.removeprefix("cellwall-0.1.0-").removesuffix(".whl")
    files["cellwall-0.1.0.dist-info/WHEEL"] = f"Tag: {tag}\n".encode()
    files |= changes or {}
    path = folder / name
    record = "cellwall-0.1.0.dist-info/RECORD"
    rows = []
    with zipfile.ZipFile(path, "w") as wheel:
        for each, data in files.items():
            if data is None:
                continue
            info = zipfile.ZipInfo(each)
            info.external_attr = 0o755 << 16
            wheel.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{each},sha256={digest},{len(data)}")
        wheel.writestr(record, "\n".join([*rows, f"{record},,", ""]))
    return str(path)


def test_a_wheel_with_our_native_files_has_no_problems(tmp_path: Path) -> None:
    assert problems(wheel_of(tmp_path, NAME)) == []


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        (NAME.replace(platform.machine(), OTHER), {}, f"it is for {platform.machine()}"),
        (NAME.replace("2_99", "2_1"), {}, "it needs GLIBC_"),
        (NAME.replace("manylinux_2_99", "musllinux_1_2"), {}, "libc.so.6"),
        (NAME, {PROGRAM: None, **dict.fromkeys(LIBRARIES)}, "is missing"),
        (NAME, {"cellwall/extra.so": (INSTALLED / LIBRARIES[0]).read_bytes()}, "nobody expects"),
        (NAME, {PROGRAM: (INSTALLED / LIBRARIES[0]).read_bytes()}, "not static"),
        (NAME, {"cellwall/extra.so": b"\x7fELF\x01\x01\x01"}, "another kind of machine"),
        (NAME, {"cellwall-0.1.0.dist-info/METADATA": b"Version: 0.2.0\n"}, "says Version"),
        (NAME, {"cellwall-0.1.0.dist-info/WHEEL": b"Tag: py3-none-any\n"}, "says Tag"),
        (NAME, {"cellwall-0.1.0.dist-info/WHEEL": None}, "WHEEL is missing"),
        ("cellwall-0.1.0-py3-none-linux_aarch64.whl", {}, "no platform of a release"),
    ],
)
def test_a_wheel_that_breaks_its_promise_is_found(
    tmp_path: Path, name: str, changes: dict[str, bytes | None], why: str
) -> None:
    assert any(why in each for each in problems(wheel_of(tmp_path, name, changes)))


def test_bytes_that_record_does_not_cover_are_found(tmp_path: Path) -> None:
    path = wheel_of(tmp_path, NAME)
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("cellwall/more.py", b"")
    assert "its RECORD lists other files" in problems(path)


def test_a_wheel_has_the_files_of_the_source_archive_and_no_others(tmp_path: Path) -> None:
    archive = tmp_path / "cellwall-0.1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for name in ("src/cellwall/one.py", "src/cellwall/data/two.toml", "tests/three.py"):
            made.addfile(tarfile.TarInfo(f"cellwall-0.1.0/{name}"))
    sources = source_files(str(archive))
    assert sources == {"cellwall/one.py", "cellwall/data/two.toml"}
    whole: dict[str, bytes | None] = dict.fromkeys(sources, b"")
    assert problems(wheel_of(tmp_path, NAME, whole), sources=sources) == []
    changed = {**whole, "cellwall/one.py": None, "cellwall/planted.py": b""}
    assert problems(wheel_of(tmp_path, NAME, changed), sources=sources) == [
        "cellwall/one.py is missing",
        "cellwall/planted.py is not in the source archive",
    ]


def test_a_program_of_the_host_is_read_as_its_loader_reads_it() -> None:
    found = read_elf(Path("/usr/bin/env").read_bytes())
    assert found.machine == platform.machine()
    assert not found.is_static
    assert any(each.startswith("libc.so") for each in found.needed)
    with pytest.raises(NotElf):
        read_elf(b"#!/bin/sh\n")
