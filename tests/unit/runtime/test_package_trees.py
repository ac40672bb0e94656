"""Which tree is kept, and when an earlier one is used."""

from __future__ import annotations

import hmac
from dataclasses import replace

import anyio
import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.packages import parse_install
from cellwall.core.types import Action, Principal
from cellwall.packages.kept_trees import KeptTrees, RegistryAnswer
from cellwall.runtime.package_trees import NO_KEY, PackageTrees
from cellwall.sandbox.languages import python_version
from unit.runtime.test_package_installs import Files

ANSWERS = (RegistryAnswer("GET", "pypi.org", "/simple/zebra/", "", "", "http", 200, '"1"'),)
KEY, PROGRAM, BASE = b"k" * 32, "source", "/workspace/.local"
SITE = f".local/lib/python{python_version()}/site-packages"


class Uv:
    name = "uv-1-python-3"


class Registry:
    """Answers as before, or not."""

    def __init__(self):
        self.findings = ()
        self.asked = []

    async def repeats(self, action, answers):
        self.asked.append((action.session_id, tuple(answers)))
        return self.findings


@pytest.fixture
def action():
    operation = parse_install("pypi", ["zebra"])
    return Action(principal=Principal("me", "mcp"), operation=operation, session_id=new_id("sbx"))


@pytest.fixture
def made(tmp_path):
    registry, files = Registry(), Files()
    kept = KeptTrees(str(tmp_path / "trees"))
    return PackageTrees(lambda: kept, registry.repeats, files, Uv()), registry, files


def left(files, action, archive=b"tree", *, key=KEY):
    mac = hmac.digest(key, archive, "sha256")
    files.files[f".cellwall-install/{action.id}.tree"] = archive + mac


def keep(trees, action, *, answers=ANSWERS):
    trees.keep(action, action.operation, PROGRAM, key=KEY, answers=answers)


def find(trees, action, program=PROGRAM):
    return anyio.run(trees.find, action, action.operation, program)


@pytest.mark.requirement("PKG-1")
def test_a_tree_is_used_only_where_the_registry_answers_as_before(made, action):
    trees, registry, files = made
    assert find(trees, action) is None
    left(files, action)
    keep(trees, action)
    assert find(trees, action).archive == b"tree"
    assert registry.asked == [(None, ANSWERS)]
    registry.findings = None
    assert find(trees, action) is None
    registry.findings = ()
    assert find(trees, action, "another source") is None
    other = parse_install("pypi", ["zebra>=1"])
    assert find(trees, replace(action, operation=other)) is None


@pytest.mark.requirement("PKG-5")
def test_an_archive_that_processes_of_the_sandbox_wrote_is_not_kept(made, action):
    trees, _, files = made
    path = f".cellwall-install/{action.id}.tree"
    keep(trees, action)  # none is there
    left(files, action, key=b"guess")
    keep(trees, action)
    left(files, action)
    files.files[path] = files.files[path].replace(b"tree", b"evil")
    keep(trees, action)
    files.files[path] = b""
    keep(trees, action)
    left(files, action)
    keep(trees, action, answers=())
    assert find(trees, action) is None
    # The control: the archive of the cell.
    keep(trees, action)
    assert find(trees, action).archive == b"tree"


@pytest.mark.requirement("PKG-5")
def test_only_a_new_environment_of_python_is_the_tree_of_its_request(made, action):
    trees, _, files = made
    assert len(trees.new_key(action, action.operation, BASE)) == len(KEY)
    assert trees.new_key(action, parse_install("npm", ["zebra"]), BASE) == NO_KEY
    files.files[SITE] = b""
    assert trees.new_key(action, action.operation, BASE) == NO_KEY

    def refuse(_action):
        raise WorkspaceError("a link")

    files.operate = refuse
    assert trees.new_key(action, action.operation, BASE) == NO_KEY
