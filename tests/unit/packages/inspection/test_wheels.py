"""Wheels that run code at the start of Python, or are not what they say (PKG-1)."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import read_archive
from cellwall.packages.inspection.wheels import inspect_wheel
from unit.packages.inspection.malware import PYTHON

METADATA = b"Metadata-Version: 2.1\nName: The_Thing\nVersion: 1.0\n"

DATA = "the_thing-1.0.data/data"
ENTRIES = "the_thing-1.0.dist-info/entry_points.txt"
SCRIPTS = "the_thing-1.0.data/scripts"
STEALING = PYTHON["environment"][0].encode()


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def build(files, *, metadata=METADATA, record=None):
    files = {"thing/__init__.py": b"", "the_thing-1.0.dist-info/METADATA": metadata, **files}
    lines = "".join(record_line(name, data) for name, data in files.items())
    listed = lines if record is None else record
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(
            "the_thing-1.0.dist-info/RECORD", listed + "the_thing-1.0.dist-info/RECORD,,\n"
        )
    data.seek(0)
    return data


def inspect(files, **changes):
    stream = build(files, **changes)
    members = read_archive(stream, "the_thing-1.0-py3-none-any.whl", len(stream.getvalue()))
    return [(each.code, each.verdict) for each in inspect_wheel(members, "the-thing", "1.0")]


def test_an_ordinary_wheel_has_no_finding():
    assert (
        inspect(
            {"thing/code.py": b"import os\n", "the_thing-1.0.data/scripts/thing": b"#!python\n"}
        )
        == []
    )


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("files", "finding"),
    [
        ({"x.pth": b"import os; os.system('id')\n"}, ("pth-code", Verdict.DENY)),
        ({"x.pth": b"# note\n  import\tos\n"}, ("pth-code", Verdict.DENY)),
        ({"x.pth": b"../elsewhere\n"}, ("pth", Verdict.ASK)),
        ({"sitecustomize.py": b""}, ("start-up-module", Verdict.DENY)),
        ({"usercustomize/__init__.py": b""}, ("start-up-module", Verdict.DENY)),
        ({"json/__init__.py": b""}, ("shadows-stdlib", Verdict.ASK)),
        ({"os.py": b""}, ("shadows-stdlib", Verdict.ASK)),
        ({"thing/fast.so": b"\x7fELF"}, ("native-code", Verdict.ALLOW)),
        ({"the_thing-1.0.data/data/etc/x": b""}, ("data", Verdict.ASK)),
        ({"the_thing-1.0.data/odd/x": b""}, ("data", Verdict.DENY)),
    ],
)
def test_a_file_that_runs_by_itself_is_found(files, finding):
    assert inspect(files) == [finding]


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "metadata",
    [b"Name: other\nVersion: 1.0\n", b"Name: the-thing\nVersion: 2.0\n", b"", b"Name: the-thing\nVersion: x\n",
     b"Name: the-thing\nVersion: " + b"9" * 5000 + b"\n"],
)  # fmt: skip
def test_metadata_of_another_package_is_found(metadata):
    assert inspect({}, metadata=metadata) == [("metadata", Verdict.DENY)]


def test_files_that_record_does_not_list_or_lists_otherwise_are_found():
    assert inspect({"thing/x.py": b"1"}, record=record_line("thing/x.py", b"2")) == [
        ("record", Verdict.DENY),
        ("record", Verdict.DENY),
    ]


def test_a_wheel_without_metadata_is_not_one():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x.py", "")
    members = read_archive(data, "x.whl", len(data.getvalue()))
    codes = [each.code for each in inspect_wheel(members, "x", "1.0")]
    assert codes == ["metadata", "record"]


@pytest.mark.requirement("PKG-1")
def test_metadata_that_differs_from_the_metadata_of_the_index_is_found():
    for served, codes in ((hashlib.sha256(METADATA).hexdigest(), []), ("0" * 64, ["metadata"])):
        stream = build({})
        members = read_archive(stream, "the_thing-1.0-py3-none-any.whl", len(stream.getvalue()))
        found = inspect_wheel(members, "the-thing", "1.0", served)
        assert [each.code for each in found] == codes


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("files", "finding"),
    [
        ({"the_thing-1.0.data/purelib/x.pth": b"import os\n"}, ("pth-code", Verdict.DENY)),
        ({"the_thing-1.0.data/platlib/sitecustomize.py": b""}, ("start-up-module", Verdict.DENY)),
        ({"sitecustomize.so": b""}, ("start-up-module", Verdict.DENY)),
        ({"other-2.0.dist-info/METADATA": b""}, ("metadata", Verdict.DENY)),
        ({"requests/__init__.py": b""}, ("shadows-package", Verdict.ASK)),
        ({"thing/hidden.pyc": b""}, ("bytecode", Verdict.ASK)),
        ({"the_thing-1.0.data/scripts/git": b""}, ("system-command", Verdict.DENY)),
        (
            {"the_thing-1.0.dist-info/entry_points.txt": b"[console_scripts]\ncurl = a:b\n"},
            ("system-command", Verdict.DENY),
        ),
        (
            {"the_thing-1.0.dist-info/entry_points.txt": b"[pytest11]\nx = thing\n"},
            ("loaded-automatically", Verdict.ALLOW),
        ),
    ],
)
def test_files_that_take_effect_elsewhere_are_found(files, finding):
    assert finding in inspect(files)


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("files", "finding"),
    [
        # Python 3.13 splits a .pth file at form feeds, and skips a byte order mark.
        ({"x.pth": b"# note\x0cimport os\n"}, ("pth-code", Verdict.DENY)),
        ({"x.pth": b"\xef\xbb\xbfimport os\n"}, ("pth-code", Verdict.DENY)),
        ({"x.start": b"thing:main\n"}, ("pth-code", Verdict.DENY)),
        ({"thing/x.start": b"thing:main\n"}, None),
        # `data` is the root of the environment, in which lib64 is a link to lib.
        ({f"{DATA}/lib64/python3.11/site-packages/x.pth": b"import os\n"}, ("pth-code", Verdict.DENY)),
        ({f"{DATA}/lib/python3.11/site-packages/sitecustomize.py": b""}, ("start-up-module", Verdict.DENY)),
        ({f"{DATA}/lib64/x": b""}, ("data", Verdict.ASK)),
        ({f"{DATA}/pyvenv.cfg": b""}, ("data", Verdict.ASK)),
        ({f"{DATA}/bin/git": b""}, ("system-command", Verdict.DENY)),
        ({f"{DATA}/share/man/man1/thing.1": b""}, None),
        # Bytecode with the hash of its source (PEP 552) runs in the place of the source.
        ({"thing/__pycache__/__init__.cpython-311.pyc": b"\xa7\x0d\x0d\x0a\1\0\0\0"}, ("bytecode", Verdict.ASK)),
        ({"thing/__pycache__/__init__.cpython-311.pyc": b"\xa7\x0d\x0d\x0a\0\0\0\0"}, None),
        ({f"{SCRIPTS}/thing": b"#!python\n" + STEALING}, ("steals-data", Verdict.DENY)),
        ({f"{SCRIPTS}/thing": b"#!/bin/sh\n"}, None),
        ({ENTRIES: b"[console_scripts]\n./git = a:b\n"}, ("script-path", Verdict.DENY)),
        ({ENTRIES: b"[ console_scripts ]\n../../x = a:b\n"}, ("script-path", Verdict.DENY)),
        ({ENTRIES: b"[console_scripts]\nthing = a:b\n[other]\n./x = a:b\n"}, None),
    ],
)  # fmt: skip
def test_files_that_take_effect_by_another_path_are_found(files, finding):
    found = inspect(files)
    assert finding in found if finding else found == []
