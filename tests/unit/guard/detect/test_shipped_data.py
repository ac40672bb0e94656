"""A model of the guard is the one that was trained, or no text is looked at (GRD-10)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cellwall
from cellwall.core.errors import CellwallError
from cellwall.guard.detect import shipped_data
from cellwall.guard.detect.rule_packs import shipped_packs
from cellwall.guard.detect.tasks import candidates, finder

TASKS = "cellwall.guard.detect.tasks"
FILES = {
    "weights.json": lambda: finder.model.__wrapped__(),
    "lexicon.toml": lambda: candidates.lexicon.__wrapped__(),
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[:1000],
    "one byte less": lambda data: data[:-1],
    "another threshold": lambda data: data.replace(b'"threshold": ', b'"threshold": 1'),
    "other words": lambda data: data.replace(b"write", b"wrote"),
}


@pytest.mark.requirement("GRD-10")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, damage: str) -> None:
    assert FILES[name]()  # the control
    data = shipped_data.read_shipped(TASKS, name)
    changed = DAMAGES[damage](data)
    monkeypatch.setattr(shipped_data, "read_shipped", lambda *_: changed)
    if changed == data:  # this file has no such words
        assert FILES[name]()
        return
    with pytest.raises(CellwallError) as error:
        FILES[name]()
    assert error.value.code == "CW-NO-CLASSIFIER"


_SCAN = """
import cellwall
try:
    report = cellwall.Guard().scan("Thanks.\\n" + "The room has a view of the sea.\\n" * 9, kind="output")
    print(report.verdict.name)
except cellwall.CellwallError as error:
    print(error.code)
"""


@pytest.mark.requirement("GRD-10")
@pytest.mark.slow
def test_an_installation_with_a_lost_link_or_pack_looks_at_no_text(tmp_path: Path) -> None:
    shutil.copytree(Path(cellwall.__file__).parent, tmp_path / "cellwall", symlinks=True)

    def scanned() -> str:
        done = subprocess.run(
            [sys.executable, "-c", _SCAN],
            env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert scanned() == "ALLOW"  # the control
    folder = tmp_path / "cellwall/guard/detect"
    weights = folder / "tasks/weights.json"
    kept = weights.read_bytes()
    weights.unlink()
    weights.symlink_to("/dev/null")
    assert scanned() == "CW-NO-CLASSIFIER"
    weights.unlink()
    assert scanned() == "CW-NO-CLASSIFIER"
    weights.write_bytes(kept)
    (folder / "packs/injection.toml").unlink()
    assert scanned() == "CW-CONFIG"


def test_every_shipped_pack_is_known() -> None:
    folder = Path(cellwall.__file__).parent / "guard/detect/packs"
    assert {pack.name for pack in shipped_packs()} == {each.stem for each in folder.glob("*.toml")}
