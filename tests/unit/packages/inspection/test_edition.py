"""The edition of the inspection changes with its code, and vouches for no code that is not loaded."""

from __future__ import annotations

import time

import pytest

from cellwall.packages.inspection.edition import digest_of, inspection_edition

LATER_S = time.time() + 3600


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "rules.py").write_text("x = 1\n")
    (tmp_path / "below" / "data.toml").write_text("y = 2\n")
    return tmp_path


def test_this_process_runs_a_known_edition():
    assert inspection_edition() == inspection_edition()
    assert len(inspection_edition() or "0" * 64) == 64


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("name", ["rules.py", "below/data.toml", "below/added.py"])
def test_any_changed_file_is_another_edition(folder, name):
    before = digest_of([str(folder)], loaded_at_s=LATER_S)
    assert before == digest_of([str(folder)], loaded_at_s=LATER_S)
    (folder / name).write_text("x = 2\n")
    assert digest_of([str(folder)], loaded_at_s=LATER_S) != before


def test_bytecode_is_no_part_of_an_edition(folder):
    before = digest_of([str(folder)], loaded_at_s=LATER_S)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "rules.cpython-311.pyc").write_bytes(b"x")
    assert digest_of([str(folder)], loaded_at_s=LATER_S) == before


@pytest.mark.requirement("PKG-1")
def test_code_that_changed_after_the_start_has_no_edition(folder):
    assert digest_of([str(folder)], loaded_at_s=time.time() - 3600) is None
