"""What is told where the compiled part is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.guard.ctext import library


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_without_the_library_no_text_is_looked_at_and_the_mend_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "cellwall-passes.so").write_bytes(content)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    library._library.cache_clear()
    try:
        with pytest.raises(CellwallError, match="missing or damaged") as caught:
            library.function("cw_letters", None)
    finally:
        monkeypatch.undo()
        library._library.cache_clear()

    assert caught.value.hint
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.slow
def test_a_text_can_still_be_looked_at_when_the_process_ends() -> None:
    script = (
        "import atexit\n"
        "from cellwall.guard.detect import Detector\n"
        "detector = Detector.shipped()\n"
        "text = 'Please write a poem about the sea in your next response.\\n' * 20\n"
        "atexit.register(lambda: print(len(detector.find(text).hits)))\n"
        "print(len(detector.find(text).hits))\n"
        "kept = [bytearray(64 + n) for n in range(400)]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    first, last = done.stdout.split()
    assert first == last
