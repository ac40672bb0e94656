"""docs/guides/incident.md, followed to the letter against real sandboxes (OBS-3)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from cellwall.sandbox.linux.cell_ending import is_frozen
from cellwall.sandbox.linux.cell_search import find_cells
from cellwall.sandbox.run_ledger import cell_tag
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall

RUNBOOK = Path(__file__).parents[2] / "docs/guides/incident.md"
_BLOCK = re.compile(r"^## (\d)\. .*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.only_on("warm", reason="the commands are the same, and find cells of both paths")
@pytest.mark.requirement("OBS-3")
@pytest.mark.usefixtures("supervisor")
def test_the_runbook_works_as_it_is_written(tmp_path: Path) -> None:
    home, programs = os.environ["CELLWALL_HOME"], tmp_path / "bin"
    programs.mkdir()
    prepared_program.install_launcher(programs)
    sandbox = cellwall("create", "--timeout", "600").stdout.decode().strip()
    background = "sleep 600 > /dev/null 2>&1 & echo kept > file"
    assert cellwall("exec", sandbox, "--", "sh", "-c", background).returncode == 0

    def follow(step: str, commands: str) -> str:
        script = f"set -eu\nPATH={programs}:$PATH\n{commands}"
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"step {step}: {done.stderr}"
        return done.stdout

    steps = dict(_BLOCK.findall(RUNBOOK.read_text()))
    assert list(steps) == ["1", "2", "3", "4", "5", "6"]

    assert re.search(r"\n([1-9]\d*) sandboxes.* are alive, \1 suspended\n", follow("1", steps["1"]))
    cells = find_cells(f"{home}/runs", cell_tag(f"{home}/runs"))
    assert cells
    assert all(map(is_frozen, cells))
    assert b"CW-STOPPED" in cellwall("run", "--", "true").stderr

    follow("2", steps["2"])
    assert "ok: made" in follow("3", steps["3"])
    report = (tmp_path / "evidence/report.txt").read_text()
    assert f"== {sandbox} ==" in report
    assert "sleep 600" in report
    names = {each["name"] for cell in read(tmp_path, "cells.json") for each in cell["processes"]}
    assert "sleep" in names
    listed = read(tmp_path, f"workspaces/{sandbox}.files.json")
    assert [(each["path"], each["size"]) for each in listed if each["path"] == "file"] == [
        ("file", 5)
    ]

    assert "0 sandboxes and templates are alive" in follow("4", steps["4"])
    assert find_cells(f"{home}/runs", cell_tag(f"{home}/runs")) == ()
    follow("5", steps["5"])
    follow("6", steps["6"])
    assert cellwall("exec", sandbox, "--", "cat", "file").stdout == b"kept\n"


def read(folder: Path, name: str) -> list[dict[str, object]]:
    with tarfile.open(folder / "evidence/case.tar") as outer:
        payload = outer.extractfile("payload.tar")
        with tarfile.open(fileobj=payload) as inner:
            member = inner.extractfile(name)
            assert member is not None
            return list(json.load(member))
