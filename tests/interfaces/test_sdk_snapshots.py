"""Snapshots and forks of live sandboxes over the SDK (FS-9)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

import cellwall
from cellwall import AsyncSandbox, NotCarried, Sandbox
from cellwall.core.labels import Label

pytestmark = pytest.mark.requirement("FS-9")


@pytest.fixture
def sbx() -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox


def layers_of(home: str) -> list[str]:
    return sorted(os.listdir(f"{home}/snapshots/layers"))


@pytest.mark.smoke
def test_a_snapshot_has_files_and_packages_of_its_time_and_outlives_the_sandbox(state_home):
    with Sandbox.create() as sbx:
        sbx.files.write("src/a.txt", "one")
        sbx.run_code(
            "import os, site\nplace = site.getusersitepackages()\n"
            "os.makedirs(place, exist_ok=True)\n"
            "_ = open(place + '/installed.py', 'w').write('word = 42')"
        )
        taken = sbx.snapshot("first", ttl=3600)
        sbx.files.write("src/a.txt", "two")
        sbx.files.remove("src")
        assert [each.id for each in Sandbox.list_snapshots()] == [taken.id]
    assert (taken.name, taken.layers) == ("first", 1)
    assert round(taken.expires_s - taken.created_s) == 3600
    with Sandbox.create(from_snapshot=taken.id) as two:
        assert two.files.read("src/a.txt") == "one"
        assert (
            two.commands.run("python3 -c 'import installed; print(installed.word)'").stdout
            == "42\n"
        )
        two.files.write("src/a.txt", "three")
        assert two.run_code("open('src/a.txt').read()").value == "three"
        with Sandbox.create(from_snapshot=taken.id) as three:
            assert three.files.read("src/a.txt") == "one"
        Sandbox.delete_snapshot(taken.id)  # in use: its layers stay
        assert two.run_code("open('src/a.txt').read()").value == "three"
        assert layers_of(state_home)
    assert layers_of(state_home) == []
    with pytest.raises(cellwall.NotFound) as refused:
        Sandbox.create(from_snapshot=taken.id)
    assert refused.value.code == "CW-NO-SNAPSHOT"


def test_plain_variables_are_carried_and_all_others_are_named(sbx):
    sbx.run_code(
        "import json as j\nx = {'a': [1, (2, 3.5), {4}, b'\\xff', None, True]}\n"
        "def f(): return 1\nclass C: pass\nc = C()\nloop = []\nloop.append(loop)\n"
        "token = 'ghp_' + 'x7Qm2Lp9Zr4Tn8Vb1Kc6Yd3Hf5Jg0Ws2Ea4U'\n"
        "late = open('late', 'w')"
    )
    taken = sbx.snapshot()
    assert set(taken.variables) >= {"j", "x"}
    lost = {each.name: each.reason for each in taken.not_carried}
    assert lost["f"] == lost["C"] == "a function or a class"
    assert lost["c"] == "an object of the type C"
    assert lost["late"] == "an object of the type TextIOWrapper"
    assert "itself" in lost["loop"]
    assert lost["token"] == "its text looks like a secret"
    assert "programs" in lost
    with Sandbox.create(from_snapshot=taken.id) as two:
        done = two.run_code("repr(x), j.dumps(1), 'f' in globals(), 'token' in globals()")
        assert done.value == [
            "{'a': [1, (2, 3.5), {4}, b'\\xff', None, True]}", "1", False, False
        ]  # fmt: skip
        assert two.not_restored == ()
    with Sandbox.create(from_snapshot=sbx.snapshot(state=False).id) as three:
        assert three.run_code("'x' in globals()").value is False


def test_forks_are_alike_apart_and_leave_the_sandbox_and_its_programs_alone(sbx, state_home):
    sbx.run_code("n = 1\n_ = open('data', 'w').write('base')")
    program = sbx.commands.run("while sleep 0.01; do date +%N > beat; done", background=True)
    forks = sbx.fork(2)
    try:
        assert [each.run_code("n, open('data').read()").value for each in forks] == [
            [1, "base"]
        ] * 2
        forks[0].run_code("n = 2\n_ = open('data', 'w').write('mine')")
        assert forks[1].run_code("n, open('data').read()").value == [1, "base"]
        assert sbx.run_code("n, open('data').read()").value == [1, "base"]
        assert program.info().is_running
        before = sbx.files.read("beat")
        assert sbx.run_code(
            f"import time\nwhile open('beat').read() in ('', {before!r}): time.sleep(0.01)\n1"
        ).value  # it was continued
        assert Sandbox.list_snapshots() == []
    finally:
        for each in forks:
            each.kill()
    assert layers_of(state_home) == []


def test_with_end_processes_nothing_is_copied_and_the_sandbox_goes_on(sbx, state_home):
    program = sbx.commands.run("sleep 600", background=True)
    sbx.run_code("n = 1\nimport os\nos.mkdir('d')\n_ = open('d/a', 'w').write('one')")
    inode = os.stat(f"{state_home}/workspaces/{sbx.id}/files/d/a").st_ino
    taken = sbx.snapshot(end_processes=True)
    (layer,) = layers_of(state_home)
    assert os.stat(f"{state_home}/snapshots/layers/{layer}/files/d/a").st_ino == inode
    assert not program.info().is_running
    assert sbx.run_code("'n' in globals()").value is False  # told by `not_carried`: programs
    assert sbx.run_code("open('d/a').read()").value == "one"
    sbx.run_code("import shutil\nshutil.rmtree('d')\nos_made = open('e', 'w').write('two')")
    assert [each.path for each in sbx.files.list(".")] == ["e"]
    again = sbx.snapshot(end_processes=True)
    assert again.layers == 2
    with (
        Sandbox.create(from_snapshot=taken.id) as two,
        Sandbox.create(from_snapshot=again.id) as three,
    ):
        assert two.commands.run("find . -type f").stdout == "./d/a\n"
        assert three.commands.run("find . -type f").stdout == "./e\n"


def test_what_the_sandbox_has_read_is_known_of_its_snapshots_and_forks(state_home):
    with Sandbox.create(allow_domains=["example.com"]) as sbx:
        sbx.commands.run("true")
        assert Label.UNTRUSTED in sbx.labels.labels
        taken = sbx.snapshot()
    with Sandbox.create(from_snapshot=taken.id) as two:
        assert two.labels.labels == {Label.UNTRUSTED}  # egress is no property of files
        two.commands.run("true")
        assert two.labels.labels == {Label.UNTRUSTED}


@pytest.mark.requirement("POL-1")
def test_a_rule_denies_snapshots_and_restoring_them(tmp_path, sbx):
    taken = sbx.snapshot()
    rules = tmp_path / "rules.toml"
    rules.write_text('[permissions]\nallow = ["Code", "Snapshot"]\ndeny = ["RestoreSnapshot"]\n')
    with Sandbox.create(policy=str(rules)) as ruled:
        ruled.snapshot()
    with pytest.raises(cellwall.Denied) as refused:
        Sandbox.create(policy=str(rules), from_snapshot=taken.id)
    assert "RestoreSnapshot" in refused.value.message
    rules.write_text('[permissions]\nallow = ["Code"]\n')
    with Sandbox.create(policy=str(rules)) as ruled, pytest.raises(cellwall.Denied):
        ruled.snapshot()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "x" * 101}, "CW-SNAPSHOT-NAME"),
        ({"name": "a\x1b[31m"}, "CW-SNAPSHOT-NAME"),
        ({"ttl": 0.0}, "CW-SNAPSHOT-TTL"),
        ({"ttl": float("nan")}, "CW-SNAPSHOT-TTL"),
    ],
)
def test_a_senseless_request_is_refused_with_a_hint(sbx, options, code):
    with pytest.raises(cellwall.BadInput) as refused:
        sbx.snapshot(**options)
    assert refused.value.code == code
    assert refused.value.hint


def test_a_directory_of_the_host_is_in_no_snapshot(tmp_path):
    with (
        Sandbox.create(workspace=f"{tmp_path}:cow") as sbx,
        pytest.raises(cellwall.WorkspaceError) as refused,
    ):
        sbx.snapshot()
    assert refused.value.code == "CW-SNAPSHOT-NOT-PRIVATE"


def test_the_async_core_has_the_same_names():
    async def use() -> tuple[object, ...]:
        async with AsyncSandbox.create() as sbx:
            await sbx.files.write("a", "1")
            taken = await sbx.snapshot("async")
            (fork,) = await sbx.fork()
            try:
                return taken.name, await fork.files.read("a"), fork.not_restored
            finally:
                await fork.kill()
                await AsyncSandbox.delete_snapshot(taken.id)

    assert anyio.run(use) == ("async", "1", ())
    assert NotCarried("a", "b").to_json() == {"name": "a", "reason": "b"}
