"""Installations by name: the verdict before any byte, consent, the lock, and what runs in cells."""

from __future__ import annotations

import json
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import pytest

from cellwall.core.approvals import AnswerKind
from cellwall.core.errors import BadInput, Denied, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import RunResult
from cellwall.core.packages import parse_install
from cellwall.core.types import Action, Principal, WorkspaceMode, WorkspaceMount
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.feed import Feed
from cellwall.packages.inventory import InstalledPackage, render_pylock
from cellwall.packages.judge import PackageJudge
from cellwall.packages.locks.workspace import read_workspace_lock
from cellwall.packages.names import Ecosystem
from cellwall.runtime.package_installs import PackageInstaller
from cellwall.runtime.package_record import PackageRecord
from cellwall.runtime.source_builds import BuildReport
from cellwall.sandbox.templates import uv_program
from unit.runtime.questions_for_tests import said

MOUNT = WorkspaceMount(mode=WorkspaceMode.PRIVATE)


class Files:
    """A workspace of files in memory."""

    def __init__(self, **files):
        self.files = {name.replace("_", "."): content for name, content in files.items()}

    def operate(self, action):
        match action.operation.name:
            case "exists":
                return action.operation.path in self.files
            case "read":
                return self.files[action.operation.path]
            case "write":
                self.files[action.operation.path] = action.operation.content
        return None


class AuditLines:
    async def record(self, event):
        pass


class Sessions:
    def __init__(self):
        self.consents = []

    def consent(self, action_id, ecosystem, names, answer):
        self.consents.append((action_id, ecosystem, tuple(names), answer))

    @asynccontextmanager
    async def open(self, action, *, near):
        yield {}


class NoTrees:
    """The workspace has an environment."""

    def new_key(self, action, operation, base):
        return b""


class Answered:
    """uv was asked before."""

    async def prepare(self, action, cells):
        pass


def installer(tmp_path, files=None, *, without_feed=Verdict.ALLOW, builds=(), trees=None):
    rules = PackageRules(without_feed=without_feed)
    judge = PackageJudge(Feed(str(tmp_path)), rules)
    builder = Builder(*builds)
    return PackageInstaller(
        lambda: judge,
        PackageRecord(AuditLines()),
        Sessions(),
        files or Files(),
        lambda: builder,
        Answered(),
        trees or NoTrees(),
    )


def action(ecosystem, *names, **changes):
    made = Action(
        principal=Principal("me", "mcp"),
        operation=parse_install(ecosystem, names),
        session_id=new_id("sbx"),
        env={"PIP_INDEX_URL": "https://evil.example"},
        allow_domains=("evil.example",),
        secrets=("TOKEN",),
    )
    return replace(made, **changes)


def package(digest="a"):
    name = "zebra-1.0-py3-none-any.whl"
    return InstalledPackage(
        Ecosystem.PYPI, "zebra", "1.0", name, f"https://x/{name}", "sha256", digest * 64, 9
    )


class Builder:
    """Builds nothing; reports one after the other."""

    def __init__(self, *reports):
        self.reports = list(reports)

    async def build_missing(self, action, operation, cells, *, before=()):
        self.before = set(before)
        return self.reports.pop(0) if self.reports else BuildReport()


class Cells:
    """Runs nothing; the proxy serves `served` to the first cell."""

    near = None

    def __init__(self, found, served=(), codes=(0, 0)):
        self.mount = MOUNT
        self.record, self.served, self.codes = found.record, served, list(codes)
        self.seen = []

    @asynccontextmanager
    async def private(self, step):
        assert step.session_id is None
        yield self

    async def run(self, step):
        self.seen.append(step)
        if step.registries:
            for each in self.served:
                context = EgressContext(action_id=step.id, principal="me", interface="mcp")
                await self.record.note_install(each, context)
        return RunResult(self.codes.pop(0))


def steps(cells):
    return [step.operation.argv[4] for step in cells.seen]


def install(found, wanted, cells, mount=MOUNT):
    cells.mount = mount
    return anyio.run(partial(found.install, wanted, cells))


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("ecosystem", "names", "verdict", "text"),
    [
        ("pypi", ["requests"], Verdict.ALLOW, "requests"),
        ("pypi", ["requests", "reqeusts==1"], Verdict.ASK, "requests (rank"),
        ("pypi", ["yaml"], Verdict.ASK, "did you mean pyyaml?"),
        ("npm", ["loadsh@^1"], Verdict.ASK, "lodash (rank"),
    ],
)
def test_names_are_judged_before_any_byte(tmp_path, ecosystem, names, verdict, text):
    decision = installer(tmp_path).judge(parse_install(ecosystem, names))
    assert decision.verdict is verdict
    assert text in decision.reason


@pytest.mark.requirement("PKG-1")
def test_a_missing_feed_denies_and_says_what_to_run(tmp_path):
    found = installer(tmp_path, without_feed=Verdict.ASK)
    decision = found.judge(parse_install("pypi", ["requests"]))
    assert decision.verdict is Verdict.DENY  # a person's yes would not hold for dependencies
    assert "cellwall packages feed update" in decision.reason


@pytest.mark.requirement("PKG-2", "PKG-4")
def test_the_cells_have_the_registry_alone_and_nothing_of_the_session(tmp_path):
    files = Files()
    found = installer(tmp_path, files)
    cells, wanted = Cells(found, [package()]), action("pypi", "zebra")
    result = install(found, wanted, cells)
    assert steps(cells) == ["stage", "commit"]
    settings_of_uv = uv_program.ENVIRONMENT
    for step, registries, env in zip(
        cells.seen, [("pypi",), ()], [settings_of_uv, {}], strict=True
    ):
        assert (step.registries, step.env) == (registries, env)
        assert (step.allow_domains, step.secrets, step.session_id) == ((), (), None)
    assert result.value == {
        "ecosystem": "pypi",
        "installed": [
            {"name": "zebra", "version": "1.0", "file": package().filename, "sha256": "a" * 64}
        ],
    }
    assert read_workspace_lock(files.files["pylock.toml"]).files == (package(),)
    assert found.record.take(wanted.id)[0].name == "zebra"


@pytest.mark.requirement("PKG-5")
def test_a_changed_hash_is_refused_and_the_copy_dropped(tmp_path):
    lock = render_pylock([package("b")])
    files = Files(pylock_toml=lock)
    found = installer(tmp_path, files)
    cells = Cells(found, [package()])
    with pytest.raises(Denied) as refused:
        install(found, action("pypi", "zebra"), cells)
    assert refused.value.code == "CW-LOCK-CHANGED"
    assert (steps(cells), files.files) == (["stage", "discard"], {"pylock.toml": lock})


@pytest.mark.requirement("PKG-5")
def test_a_lock_of_another_tool_stays_and_one_that_cannot_be_read_refuses(tmp_path):
    theirs = b'lock-version = "1.0"\ncreated-by = "uv"\npackages = []\n'
    files = Files(pylock_toml=theirs)
    found = installer(tmp_path, files)
    result = install(found, action("pypi", "zebra"), Cells(found, [package()]))
    assert files.files == {"pylock.toml": theirs}
    assert "left as it is" in result.findings[0].message
    found = installer(tmp_path, Files(pylock_toml=b"["))
    cells = Cells(found, [package()])
    with pytest.raises(BadInput):
        install(found, action("pypi", "zebra"), cells)
    assert steps(cells) == ["stage", "discard"]


@pytest.mark.parametrize("codes", [(1,), (0, 1)])
def test_nothing_counts_as_installed_where_a_cell_failed(tmp_path, codes):
    found = installer(tmp_path)
    result = install(found, action("npm", "zebra"), Cells(found, codes=codes))
    assert (result.exit_code, result.value) == (1, {"ecosystem": "npm", "installed": []})


@pytest.mark.parametrize("mode", [WorkspaceMode.READ_ONLY, WorkspaceMode.COPY_ON_WRITE])
def test_a_workspace_that_cannot_keep_packages_is_refused(tmp_path, mode):
    found = installer(tmp_path)
    cells = Cells(found)
    for wanted, mount in (
        (action("pypi", "zebra"), replace(MOUNT, mode=mode)),
        (action("pypi", "zebra", session_id=None), MOUNT),
    ):
        with pytest.raises(WorkspaceError):
            install(found, wanted, cells, mount)
    assert cells.seen == []


@pytest.mark.requirement("PKG-3")
def test_a_package_manager_runs_again_after_a_build_and_not_without_one(tmp_path):
    builds = [BuildReport(("zebra 1.0",)), BuildReport(("okapi 1.0",)), BuildReport()]
    for codes, expected in (((1, 1, 0, 0), ["stage"] * 3 + ["commit"]), ((1, 1, 1), ["stage"] * 3)):
        found = installer(tmp_path, builds=builds)
        cells = Cells(found, [package()], codes=codes)
        result = install(found, action("pypi", "zebra"), cells)
        assert (steps(cells), result.exit_code) == (expected, codes[-1])
        assert found.open_builder().before <= {"zebra 1.0", "okapi 1.0"}
        assert bool(result.value["installed"]) is (codes[-1] == 0)


@pytest.mark.requirement("PKG-3")
def test_a_build_that_failed_is_the_result_and_nothing_is_installed(tmp_path):
    failed = RunResult(2, stderr=b"no compiler")
    found = installer(tmp_path, builds=[BuildReport(failed=failed)])
    cells = Cells(found, codes=(1,))
    result = install(found, action("pypi", "zebra"), cells)
    assert (result.exit_code, result.stderr) == (2, b"no compiler")
    assert result.value == {"ecosystem": "pypi", "installed": []}


@pytest.mark.requirement("PKG-3")
def test_sources_are_built_without_a_workspace_and_nothing_is_installed(tmp_path):
    found = installer(tmp_path, builds=[BuildReport(("zebra 1.0",))])
    operation = replace(parse_install("pypi", ["zebra"]), only_build=True)
    cells, wanted = Cells(found, codes=(1, 0)), action("pypi", "zebra", operation=operation)
    assert install(found, replace(wanted, session_id=None), cells).exit_code == 0
    for step in cells.seen:
        assert (step.registries, step.secrets, step.stdin) == (("pypi",), (), b"zebra\n")
        assert step.operation.argv[1:3] == ("pip", "compile")


@pytest.mark.requirement("PKG-2")
def test_consent_is_passed_on_for_the_names_of_one_action(tmp_path):
    found = installer(tmp_path)
    wanted = action("pypi", "Zebra[x]>=1", "okapi")
    answer = said(AnswerKind.ONCE)
    found.consent(wanted, wanted.operation, answer)
    assert found.sessions.consents == [(wanted.id, Ecosystem.PYPI, ("okapi", "zebra"), answer)]


@pytest.mark.requirement("PKG-5")
def test_two_installations_at_once_lose_no_hash_of_the_lock(tmp_path):
    both_read = threading.Barrier(2, timeout=1.0)

    class SlowFiles(Files):
        """Both installations would read the lock before either writes, if nothing prevents that."""

        def operate(self, wanted):
            found = super().operate(wanted)
            if wanted.operation.name == "exists":
                with suppress(threading.BrokenBarrierError):
                    both_read.wait()
            return found

    files = SlowFiles()
    found = installer(tmp_path, files)
    other = replace(package("b"), name="okapi", filename="okapi-1.0-py3-none-any.whl")

    async def run():
        async with anyio.create_task_group() as tasks:
            for served in (package(), other):
                cells, wanted = Cells(found, [served]), action("pypi", served.name)
                tasks.start_soon(found.install, wanted, cells)

    anyio.run(run)
    locked = read_workspace_lock(files.files["pylock.toml"]).files
    assert {each.name for each in locked} == {"zebra", "okapi"}


@pytest.mark.requirement("PKG-4")
@pytest.mark.parametrize("name", ["package-lock.json", "npm-shrinkwrap.json"])
def test_a_lock_of_npm_that_names_another_place_for_a_package_is_refused(tmp_path, name):
    def locked(url):
        entry = {"version": "1.0.0", "resolved": url}
        packages = {"": {"dependencies": {"zebra": "1"}}, "node_modules/zebra": entry}
        files = Files()
        files.files[name] = json.dumps({"lockfileVersion": 3, "packages": packages}).encode()
        return files

    registry = "https://registry.npmjs.org"
    found = installer(tmp_path, locked(f"{registry}/zebra/-/zebra-1.0.0.tgz"))
    cells = Cells(found)
    assert install(found, action("npm", "zebra"), cells).exit_code == 0
    assert steps(cells) == ["stage", "commit"]
    for url in ("file:evil.tgz", f"{registry}/evil/-/evil-1.0.0.tgz", "git+ssh://a.example/b#0"):
        found = installer(tmp_path, locked(url))
        cells = Cells(found)
        with pytest.raises(BadInput) as refused:
            install(found, action("npm", "zebra"), cells)
        assert (refused.value.code, cells.seen) == ("CW-BAD-LOCK", [])
