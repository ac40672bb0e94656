"""Which program runs which language, and what it may be given (LANG-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.types import RunCode
from cellwall.sandbox import languages


@pytest.mark.requirement("LANG-1")
def test_python_and_shell_run_from_the_system_s_own_places() -> None:
    for language in ("python", "shell"):
        program = languages.program_for(RunCode(language, b""))
        assert program.argv[0].startswith(("/usr/", "/bin/", "/opt/python/"))
        assert program.is_interpreter or program.code_path.startswith("/code/")


def test_the_code_is_never_a_word_of_the_command_line() -> None:
    for language in ("python", "shell"):
        program = languages.program_for(RunCode(language, b"hunter2"))
        assert not any("hunter2" in word for word in program.argv)


def test_programs_are_not_looked_for_in_the_caller_s_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not languages.program_for(RunCode("python", b"")).argv[0].startswith(str(tmp_path))


@pytest.mark.requirement("LANG-1")
def test_a_language_without_interpreter_is_refused_with_the_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "_inside", lambda name: None)
    monkeypatch.setattr(languages, "_deno", lambda: None)
    with pytest.raises(BadInput) as refused:
        languages.program_for(RunCode("javascript", b""))
    assert (refused.value.code, bool(refused.value.mend)) == ("CW-LANGUAGE-MISSING", True)
    assert languages.available()["javascript"] is False


def test_what_is_available_does_run() -> None:
    for language, there in languages.available().items():
        if there:
            program = languages.program_for(RunCode(language, b""))
            outside = program.extra_bind[0] if program.extra_bind else program.argv[0]
            assert os.access(outside, os.X_OK) or outside.startswith("/opt/python/")
