"""The search reports what it finds, and never a search that did not take place (RED-2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fuzz import engine, figures, run
from fuzz.figures import TargetFigures
from fuzz.processes import FuzzerProcesses


def _replace_fuzzer(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """The fuzzer is this script; `$out` is where it saves findings, `$0` the target."""
    for name in ("STATE", "FINDINGS", "ROOT"):
        monkeypatch.setattr(engine, name, folder / name.lower() if name != "ROOT" else folder)
    (folder / "state").mkdir(exist_ok=True)
    body = "for word; do case $word in -artifact_prefix=*) out=${word#*=};; esac; done\n"
    monkeypatch.setattr(engine, "_command", lambda name: ["sh", "-c", body + script, name])


def _searching(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> TargetFigures:
    _replace_fuzzer(monkeypatch, folder, script)
    return engine._fuzz_one("socks", engine.SearchOptions(2.0, 1), FuzzerProcesses())


_STATS = "echo 'stat::number_of_executed_units: 7' >&2\n"


@pytest.mark.requirement("RED-2")
def test_the_same_finding_is_reported_by_every_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = f'{_STATS}echo bad > "${{out}}crash-1"; sleep 1; exit 77'
    for _ in range(2):  # the file of the first is there when the second begins
        found = _searching(monkeypatch, tmp_path, crash)
        assert len(found.findings) >= 1
        assert (tmp_path / "findings" / "socks-crash-1").read_text() == "bad\n"


@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize("script", ["exit 1", f"{_STATS}exit 1", "exit 0", f"{_STATS}kill -9 $$"])
def test_a_search_that_did_not_take_place_is_no_clean_one(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "socks-crash-of-an-earlier-search").touch()
    with pytest.raises(engine.SearchEnded, match="could not be run"):
        _searching(monkeypatch, tmp_path, script)
    assert _searching(monkeypatch, tmp_path, f"{_STATS}exit 0").findings == []


@pytest.mark.requirement("RED-2")
def test_jobs_run_at_the_same_time_and_their_figures_are_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each opens a pipe that only opens if the other one runs.
    os.mkfifo(tmp_path / "pipe")
    script = f"""case $0 in
      socks) echo hello > {tmp_path}/pipe;;
      url) read word < {tmp_path}/pipe; [ "$word" = hello ] || exit 1; echo bad > "${{out}}crash-1"; sleep 1;;
      *) exit 1;;
    esac; {_STATS}"""
    _replace_fuzzer(monkeypatch, tmp_path, script)
    path = tmp_path / "figures.json"
    names = ["socks", "url", "dns-query"]
    assert engine.fuzz(names, seconds=3.0, seed="1", keeps=False, path=str(path), jobs=2) == 1
    found = figures.read(path)
    assert sorted(each.target for each in found.targets) == ["socks", "url"]
    assert [each.findings for each in sorted(found.targets, key=lambda each: each.target)] == [
        [],
        ["./dev fuzz url --replay findings/url-crash-1"],
    ]
    assert [each.startswith("dns-query could not be run") for each in found.failed] == [True]
    shown = figures.table(found)
    assert "**findings: 1**" in shown
    assert "dns-query could not be run" in shown
    assert "1 findings" in capsys.readouterr().out


_INTERRUPTED = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from fuzz import engine
folder = Path(sys.argv[2])
engine.STATE, engine.FINDINGS, engine.ROOT = folder / "state", folder / "findings", folder
engine.STATE.mkdir()
engine._command = lambda name: ["sh", "-c", f"exec 5> {folder}/pipe; echo begun >&5; sleep 600 & wait", name]
sys.exit(engine.fuzz(["socks", "url"], seconds=1200.0, seed="1", keeps=False, path=None, jobs=2))
"""


@pytest.mark.requirement("RED-2")
def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    # Every process below holds the writing end, which ends with the last of them.
    os.mkfifo(tmp_path / "pipe")
    tests = str(Path(__file__).parents[1])
    search = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, tests, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with (tmp_path / "pipe").open("rb") as pipe:
            assert [pipe.readline(), pipe.readline()] == [b"begun\n"] * 2
            search.send_signal(signal.SIGINT)
            assert pipe.read() == b""
        out, _ = search.communicate(timeout=30)
    finally:
        search.kill()
        search.communicate()
    assert search.returncode == engine.INTERRUPTED
    assert "interrupted: 2 of 2 targets not run" in out
    assert {each.name for each in (tmp_path / "state").iterdir()} == {
        "corpora",
        "socks.log",
        "url.log",
    }


@pytest.mark.requirement("RED-2")
def test_an_interrupt_between_two_starts_ends_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class InterruptedPool(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            if self._threads:  # the first search has begun, as a slow main thread sees it
                (tmp_path / "pipe").read_bytes()
                raise KeyboardInterrupt
            return super().submit(*arguments, **named)

    os.mkfifo(tmp_path / "pipe")
    _replace_fuzzer(monkeypatch, tmp_path, f"echo begun > {tmp_path}/pipe; exec sleep 600")
    monkeypatch.setattr(engine, "ThreadPoolExecutor", InterruptedPool)
    found = engine.fuzz(["socks", "url"], seconds=1200.0, seed="1", keeps=False, path=None, jobs=2)
    assert found == engine.INTERRUPTED
    assert "interrupted: 2 of 2 targets not run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing"], "there is no target"),
        (["socks", "--minutes", "0"], "too short"),
        (["socks", "--minutes", "-1"], "too short"),
        (["socks", "--minutes", "nan"], "too short"),
        (["all", "--minutes", "0.5"], "too short"),
        (["socks", "--jobs", "0"], "--jobs is at least 1"),
        (["guard", "--jobs", "2"], "--jobs is at least 1"),
        (["guard", "socks"], "one target at a time"),
        (["guard", "--replay", "x"], "no single inputs"),
        (["all", "--replay", "x"], "no single inputs"),
    ],
)
def test_bad_arguments_are_refused(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", *words])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.requirement("RED-2")
def test_the_fuzzer_can_be_installed_on_every_processor() -> None:
    """A new lock took a version with wheels for x86_64 alone, and `./dev fuzz` failed elsewhere."""
    lock = tomllib.loads((engine.ROOT / "uv.lock").read_text("utf-8"))
    found = [each for each in lock["package"] if each["name"] == "atheris"]
    assert found
    assert all("sdist" in each for each in found)
