"""The lexicon of the classifier: how it is loaded, and what long texts are read around."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellwall.guard.detect.passages.lexicon import cues, lexicon
from cellwall.parsing import derived_cache


def test_is_parsed_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    # 200 kB of TOML take the parser in Python 25 ms before the first text of a process, not 8.
    stored: dict[bytes, bytes] = {}
    made: list[bytes] = []

    def cache(source: bytes, make: Callable[[], bytes]) -> bytes:
        if source not in stored:
            stored[source] = make()
            made.append(source)
        return stored[source]

    monkeypatch.setattr(derived_cache, "_cache", cache)
    first, second = lexicon.__wrapped__(), lexicon.__wrapped__()
    assert len(made) == 1
    assert first == second == lexicon()


def test_cues_are_few_in_ordinary_text() -> None:
    plain = "instead of the old file, run the new rule from now on and act as follows before you go"
    assert [cue for cue in cues() if cue in plain] == []
