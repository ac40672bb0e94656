"""Files of a copy-on-write sandbox from outside: one view for the caller and the code (FS-2, FS-7)."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path

import pytest

import cellwall


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "low" / "inner").mkdir(parents=True)
    (place / "a").write_text("host")
    (place / "low" / "f").write_text("low")
    (place / "low" / "inner" / "g").write_text("deep")
    return place


def contents(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): path.read_text()
        for path in place.rglob("*")
        if path.is_file()
    }


def names(sandbox: cellwall.Sandbox, path: str = ".") -> list[str]:
    return [entry.path for entry in sandbox.files.list(path)]


def refusal(work, *arguments: object) -> str:
    with pytest.raises(cellwall.CellwallError) as refused:
        work(*arguments)
    assert refused.value.hint
    return refused.value.code


@pytest.mark.requirement("FS-2", "FS-7")
def test_the_caller_and_the_code_see_each_others_changes_and_the_host_sees_none(project: Path):
    before = contents(project)
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        # Before anything runs.
        assert (sbx.files.read("a"), names(sbx)) == ("host", ["a", "low"])
        sbx.files.write("a", "mine")
        sbx.files.write("new/b", b"\0\xff")
        assert not sbx.files.exists("made")
        # While it lives: names that were looked up in vain, and directories that were listed.
        told = sbx.commands.run("cat a; rm a; echo inside > made; rm low/f; mv new newer").stdout
        assert (told, sbx.files.exists("a"), sbx.files.read("made")) == ("mine", False, "inside\n")
        assert names(sbx) == ["low", "made", "newer"]
        assert (names(sbx, "low"), sbx.files.read_bytes("newer/b")) == (["low/inner"], b"\0\xff")
        sbx.files.write("made", "again")
        sbx.files.remove("newer")
        sbx.files.make_dir("d/e")
        assert sbx.run_code("import os; [open('made').read(), sorted(os.listdir())]").value == [
            "again",
            ["d", "low", "made"],
        ]
        kinds = {change.path: change.kind for change in cellwall.Changes(sbx.id).list()}
        sandbox_id = sbx.id
    assert kinds == {"a": "removed", "low/f": "removed", "made": "added", "d": "added", "d/e": "added"}  # fmt: skip
    assert contents(project) == before
    cellwall.Changes(sandbox_id).apply()
    assert contents(project) == {"low/inner/g": "deep", "made": "again"}


@pytest.mark.requirement("FS-2", "LANG-1")
@pytest.mark.parametrize("language", ["bash", "javascript"])
def test_code_in_every_language_works_on_the_same_view(project: Path, language: str):
    code = {
        "bash": "echo -n $(cat a) > {0}; cat",
        "javascript": "const f = require('fs'); f.writeFileSync('{0}', f.readFileSync('a'));"
        " process.exitCode = 3",
    }[language]
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        assert not sbx.files.exists("one")
        if (ran := sbx.run_code(code.replace("{0}", "one"), language=language)).error:
            pytest.skip(ran.error.message)
        assert ran.exit_code == (3 if language == "javascript" else 0)
        assert sbx.run_code("import os; os.path.exists('two'), os.listdir()").value[0] is False
        sbx.files.write("a", "changed")
        assert names(sbx) == ["a", "low", "one"]
        sbx.run_code(code.replace("{0}", "two"), language=language)
        assert sbx.run_code("import os; os.path.exists('two'), len(os.listdir())").value == [
            True,
            4,
        ]
        assert (sbx.files.read("one"), sbx.files.read("two")) == ("host", "changed")


@pytest.mark.requirement("FS-7")
def test_directories_of_the_host_are_moved_and_removed_like_others(project: Path):
    (project / "low" / "run").write_text("x")
    (project / "low" / "run").chmod(0o755)
    (project / "low" / "link").symlink_to("f")
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        sbx.files.write("low/mine", "new")
        sbx.files.move("low", "high")
        assert names(sbx) == ["a", "high"]
        look = (
            "ls high; cat high/inner/g high/link high/mine; test -x high/run; ls .[!.]* 2>/dev/null"
        )
        assert sbx.commands.run(look).stdout == "f\ninner\nlink\nmine\nrun\ndeeplownew"
        assert refusal(sbx.files.move, "high", "high/inner/x") == "CW-PATH-INVALID"
        sbx.files.make_dir("full/x")
        assert refusal(sbx.files.move, "high", "full") == "CW-NOT-EMPTY"
        sbx.files.move("high", "low")
        sbx.files.remove("low")
        assert (names(sbx), sbx.commands.run("ls -A").stdout) == (["a", "full"], "a\nfull\n")
    assert (project / "low" / "inner" / "g").read_text() == "deep"


@pytest.mark.requirement("FS-3")
def test_limits_count_what_was_written_and_not_what_the_host_has(project: Path):
    (project / "large").write_bytes(bytes(range(256)) * 8000)
    for number in range(60):
        (project / "low" / f"n{number}").touch()
    limits = {"disk_bytes": 1_000_000, "file_size_bytes": 900_000, "file_count": 50}
    with cellwall.Sandbox.create(workspace=f"{project}:cow", limits=limits) as sbx:
        full = "CW-WORKSPACE-FULL"
        sbx.files.write("small", "fits")
        assert refusal(sbx.files.write, "b", bytes(900_001)) == "CW-FILE-TOO-LARGE"
        # What the host's file takes up gives no room: it stays.
        sbx.files.write("large", bytes(800_000))
        assert refusal(sbx.files.write, "b", bytes(300_000)) == full
        assert refusal(sbx.files.move, "low", "away") == "CW-WORKSPACE-TOO-LARGE"
        sbx.files.remove("large")
        (project / "larger").write_bytes(bytes(range(256)) * 8000)
        assert refusal(sbx.files.move, "larger", "moved") == full
        sbx.commands.run("mkdir many; cd many; for i in $(seq 60); do : > $i; done")
        assert refusal(sbx.files.write, "one-more", "x") in {full, "CW-WORKSPACE-TOO-LARGE"}


@pytest.mark.requirement("FS-7")
def test_trees_go_in_and_out(project: Path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for name in ("low/f", "up/x"):
            info = tarfile.TarInfo(name)
            info.size = 2
            made.addfile(info, io.BytesIO(b"up"))
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        assert sbx.files.upload(archive.getvalue()).files == 2
        assert sbx.commands.run("cat low/f up/x; echo -n code > up/y").stdout == "upup"
        with tarfile.open(fileobj=io.BytesIO(sbx.files.download())) as found:
            members = {each.name: each for each in found if each.isfile()}
            got = {name: found.extractfile(each).read() for name, each in members.items()}  # type: ignore[union-attr]  # a file
    assert got == {
        "a": b"host",
        "low/f": b"up",
        "low/inner/g": b"deep",
        "up/x": b"up",
        "up/y": b"code",
    }
    assert (project / "low" / "f").read_text() == "low"


@pytest.mark.requirement("FS-7")
def test_a_watch_that_began_before_the_first_run_sees_it_and_ends_with_the_sandbox(project: Path):
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        watch = sbx.files.watch(timeout=60)
        with watch:
            sbx.files.write("before", "x")
            sbx.commands.run("echo x > low/made; rm a")
            seen: list[tuple[str, str]] = []
            while ("removed", "a") not in seen:
                change = next(watch)
                seen.append((change.kind, change.path))
        assert {("created", "before"), ("created", "low/made")} <= set(seen)


def test_first_operations_at_once_and_a_first_run_among_them(project: Path):
    failed: list[BaseException] = []
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:

        def work(number: int) -> None:
            try:
                if number == 3:
                    assert sbx.commands.run("cat a").stdout == "host"
                sbx.files.write(f"w{number}", str(number))
                assert sbx.files.read(f"w{number}") == str(number)
            except BaseException as error:  # looked at below
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert sbx.commands.run("cat w*").stdout == "012345"
