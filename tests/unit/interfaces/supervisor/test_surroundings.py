"""What a client and its supervisor must have in common."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from cellwall.interfaces.supervisor.surroundings import (
    may_inspect,
    named_places,
    surroundings,
)
from conftest import need

_SHOW = (
    "import json, os\nfrom cellwall.interfaces.supervisor.surroundings import surroundings\n"
    "print(json.dumps(surroundings(os.environ)))"
)


def elsewhere(*before: str, **options: object) -> object:
    words = [*before, sys.executable, "-c", _SHOW]
    done = subprocess.run(words, capture_output=True, check=True, **options)  # type: ignore[call-overload]
    return json.loads(done.stdout)


def test_they_survive_json_and_are_those_of_a_child():
    ours = surroundings(os.environ)
    assert ours
    assert elsewhere() == json.loads(json.dumps(ours)) == ours


@pytest.mark.requirement("ISO-10")
@pytest.mark.parametrize(
    "before",
    [
        ("env", "HOME=/nowhere"),
        ("env", "XDG_CONFIG_HOME=/nowhere"),
        ("unshare", "--mount"),
        ("unshare", "--net"),
        ("unshare", "--pid", "--fork"),
        ("unshare", "--user"),
        ("setpriv", "--no-new-privs"),
        ("setpriv", "--bounding-set=-sys_admin"),
        ("setpriv", "--groups=4242"),
        ("setpriv", "--regid=4242", "--clear-groups"),
        ("setpriv", "--ruid=4242"),
        ("setpriv", "--rgid=4242", "--keep-groups"),
        ("prlimit", "--fsize=1000000000:2000000000"),
        ("prlimit", "--stack=4000000:unlimited"),
        ("prlimit", "--nofile=512:1000"),
        ("nice", "-n", "3"),
        ("setarch", "-R"),
        ("taskset", "-c", "0"),
    ],
    ids=" ".join,
)
def test_another_view_or_other_rights_are_other_surroundings(before):
    need(os.geteuid() == 0, "root, to leave a namespace and to give up rights")
    assert elsewhere(*before) not in ([], surroundings(os.environ))


@pytest.mark.parametrize("limit", ["core=0:{core}", "nofile=300:"])
def test_limits_that_no_cell_inherits_are_no_other_surroundings(limit):
    # A vault that was opened in this process has lowered the limit to one byte for good.
    core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    assert elsewhere("prlimit", f"--{limit.format(core=core)}") == surroundings(os.environ)


_FILTERED = r"""
import ctypes
allow = ctypes.create_string_buffer(b"\x06\0\0\0\0\0\xff\x7f", 8)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("at", ctypes.c_void_p)]
program = Program(1, ctypes.addressof(allow))
def filtered():
    assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(program), 0, 0) == 0
filtered()
"""


@pytest.mark.requirement("ISO-10")
def test_one_more_filter_of_system_calls_is_other_surroundings():
    """As in a container, where every process has one filter already."""
    need(os.geteuid() == 0, "root, to set a filter without giving up setuid programs")

    def filtered(more: str) -> object:
        words = [sys.executable, "-c", f"{_FILTERED}{more}{_SHOW}"]
        return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)

    assert filtered("") == filtered("")
    assert filtered("") != filtered("filtered()\n")


@pytest.mark.requirement("ISO-10")
def test_a_process_with_more_rights_may_not_be_inspected():
    need(os.geteuid() == 0, "root, to give up rights")
    assert may_inspect(os.getpid())
    assert not may_inspect(1 << 30)
    show = (
        "from cellwall.interfaces.supervisor.surroundings import may_inspect\n"
        f"print(may_inspect({os.getpid()}))"
    )

    def shown(*before: str) -> str:
        words = [*before, sys.executable, "-c", show]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert shown() == "True"
    assert shown("setpriv", "--bounding-set=-all", "--inh-caps=-all") == "False"


def test_names_are_compared_by_what_they_are(tmp_path):
    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "same")
    (tmp_path / "other").touch()
    names = ("file", "same", "other", "absent")
    found = [named_places(str(tmp_path), {"config": name}, {}) for name in names]
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[3][1] is None
    given = named_places("/", {"workspace": f"{tmp_path}:rw"}, {})
    assert given[-1] == named_places(str(tmp_path), {}, {})[0]


def test_another_python_is_other_surroundings(monkeypatch):
    ours = surroundings(os.environ)
    for name in ("prefix", "base_prefix"):
        with monkeypatch.context() as entered:
            entered.setattr(sys, name, "/opt")
            assert surroundings(os.environ) != ours


def test_where_the_kernel_does_not_tell_there_are_none(monkeypatch):
    def fail(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as entered:
        entered.setattr(os, "stat", fail)
        found = surroundings({})
    assert found == []


def test_a_chroot_is_another_root(monkeypatch):
    ours, root = surroundings(os.environ), os.stat
    with monkeypatch.context() as entered:
        entered.setattr(os, "stat", lambda name: root("/proc" if name == "/" else name))
        found = surroundings(os.environ)
    assert found not in ([], ours)
