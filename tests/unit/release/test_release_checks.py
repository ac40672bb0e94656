"""What must not be released is found before anything is built, or in what was built."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from release import build, smoke
from release.bill_of_materials import check_sbom


def test_a_file_that_is_not_committed_is_named(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "kept.py").write_text("")
    (tmp_path / ".gitignore").write_text("ignored\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    (tmp_path / "ignored").write_text("")
    assert build.uncommitted_files(tmp_path) == []
    (tmp_path / "kept.py").write_text("changed")
    (tmp_path / "token.txt").write_text("secret")
    assert build.uncommitted_files(tmp_path) == [" M kept.py", "?? token.txt"]


@pytest.mark.slow
def test_a_release_of_wheels_that_nobody_tried_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "cellwall-1-py3-none-manylinux_2_28_riscv64.whl"
    assert build.try_wheels("uv", [foreign]) != []
    monkeypatch.setattr(smoke, "find_pythons", dict)
    own = tmp_path / f"cellwall-1-py3-none-manylinux_2_28_{build.platform.machine()}.whl"
    assert build.try_wheels("uv", [own]) != []


def test_component_without_version_is_a_problem_of_the_bill_of_materials(tmp_path: Path) -> None:
    bill = tmp_path / "bill.json"
    good = {"name": "anyio", "version": "4.0", "purl": "pkg:pypi/anyio@4.0"}
    own = {"metadata": {"component": {"name": "cellwall", "version": "1"}}}
    bill.write_text(json.dumps({**own, "components": [good]}))
    assert check_sbom(bill) == (1, [])
    bill.write_text(json.dumps({**own, "components": [{"name": "anyio"}]}))
    assert check_sbom(bill) == (
        1,
        ["bill.json: 'anyio' has no version", "bill.json: 'anyio' has no purl"],
    )
    bill.write_text(json.dumps({**own, "components": []}))
    assert check_sbom(bill) == (0, ["bill.json: no component is listed"])
