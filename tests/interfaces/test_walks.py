"""docs/walks.md names the files of a real run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/cellwall"
MAX_FILES = 25
TRACE = """
import json, os, sys, threading
seen = set()

def note(frame, event, argument):
    if event == "call":
        seen.add(frame.f_code.co_filename)

sys.argv = ["cellwall", "run", "--", "true"]
threading.setprofile(note)
sys.setprofile(note)
from cellwall.interfaces.entry import main
code = main()
sys.setprofile(None)
os.write(1, json.dumps([code, sorted(seen)]).encode())
"""


def walks() -> list[list[str]]:
    text = (ROOT / "docs/walks.md").read_text()
    return [re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE) for part in text.split("\n## ")[1:]]


def test_every_file_of_a_walk_exists_and_no_walk_is_long():
    assert [path for walk in walks() for path in walk if not (SOURCE / path).is_file()] == []
    assert all(0 < len(walk) <= MAX_FILES for walk in walks())


@pytest.mark.parametrize("path", ["cold"], indirect=True)
def test_every_file_of_the_first_walk_takes_part_in_a_run(path):
    done = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, check=True, cwd="/", text=True
    )
    code, seen = json.loads(done.stdout)
    ran = {str(Path(each).relative_to(SOURCE)) for each in seen if each.startswith(str(SOURCE))}
    assert code == 0
    assert [each for each in walks()[0] if each.endswith(".py") and each not in ran] == []
