"""The search reports what it finds, and never a search that did not take place (RED-2)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz import engine, run


def _searching(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> engine.Figures:
    """A search whose fuzzer is this script; `$1` is where it saves findings."""
    for name in ("STATE", "FINDINGS", "ROOT"):
        monkeypatch.setattr(engine, name, folder / name.lower() if name != "ROOT" else folder)
    (folder / "state").mkdir(exist_ok=True)
    body = "for word; do case $word in -artifact_prefix=*) out=${word#*=};; esac; done\n"
    command = ["sh", "-c", body + script, "sh"]
    monkeypatch.setattr(engine, "_command", lambda _name: command)
    return engine._fuzz_one("socks", 2.0, 1)


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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing"], "there is no target"),
        (["socks", "--minutes", "0"], "too short"),
        (["socks", "--minutes", "-1"], "too short"),
        (["socks", "--minutes", "nan"], "too short"),
        (["all", "--minutes", "0.5"], "too short"),
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
