"""What a client and its supervisor must have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cellwall.interfaces.supervisor.surroundings import surroundings
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
    ],
    ids=" ".join,
)
def test_another_view_or_other_rights_are_other_surroundings(before):
    need(os.geteuid() == 0, "root, to leave a namespace and to give up rights")
    assert elsewhere(*before) not in ([], surroundings(os.environ))


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
