"""A host without a folder for temporary files is told, not surprised."""

from __future__ import annotations

import os
import tempfile

import pytest

from cellwall.core.errors import StorageError
from cellwall.core.scratch import scratch_folder
from cellwall.sandbox import languages


@pytest.mark.requirement("ERR-1")
def test_no_writable_folder_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch_folder("cellwall-x-") as folder:  # the control
        assert os.listdir(folder) == []

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/secret']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_words: none())
    with pytest.raises(StorageError) as refused:
        scratch_folder("cellwall-x-")
    assert refused.value.code == "CW-NO-TEMPORARY-FOLDER"
    assert "TMPDIR" in refused.value.hint
    assert "/secret" not in f"{refused.value.message}{refused.value.hint}"
    assert languages.module_files("tools")  # a run needs none
