"""Which program runs which language, and what it may be given (LANG-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.host_programs import ProgramRefused
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
def test_a_language_without_interpreter_is_refused_with_the_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "_inside", lambda name: None)
    monkeypatch.setattr(languages, "_deno", lambda: None)
    with pytest.raises(BadInput) as refused:
        languages.program_for(RunCode("javascript", b""))
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-LANGUAGE-MISSING", True)
    assert languages.available()["javascript"] is False


def test_what_is_available_does_run() -> None:
    for language, there in languages.available().items():
        if there:
            program = languages.program_for(RunCode(language, b""))
            outside = program.extra_bind[0] if program.extra_bind else program.argv[0]
            assert os.access(outside, os.X_OK) or outside.startswith("/opt/python/")


@pytest.mark.requirement("ISO-13", "LANG-1", "ISO-11")
@pytest.mark.parametrize("has_network", [False, True])
def test_deno_has_the_narrowest_permissions(
    monkeypatch: pytest.MonkeyPatch, has_network: bool
) -> None:
    monkeypatch.setattr(languages, "_deno", lambda: "/somewhere/bin/deno")
    program = languages.program_for(RunCode("typescript", b""), has_network=has_network)
    words = [word for word in program.argv if word.startswith("-")]
    assert not {"-A", "--allow-all", "--allow-run", "--allow-ffi", "--allow-sys"} & set(words)
    assert {"--no-prompt", "--allow-env"} <= set(words)
    assert ("--allow-net" in words) == has_network
    assert program.extra_bind == ("/somewhere/bin/deno", languages.DENO_INSIDE)


@pytest.mark.requirement("ISO-13")
def test_a_deno_that_was_changed_is_refused_and_takes_no_other_language_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(distribution: str, name: str) -> str:
        raise ProgramRefused(f"{name} was changed", hint=f"Install {distribution} again.")

    monkeypatch.setattr(languages, "wheel_program", changed)
    languages._deno.cache_clear()
    try:
        with pytest.raises(BadInput) as refused:
            languages.program_for(RunCode("typescript", b""))
        assert (refused.value.code, refused.value.hint) == (
            "CW-LANGUAGE-PROGRAM",
            "Install deno again.",
        )
        assert languages.program_for(RunCode("python", b"")).is_interpreter
        assert languages.available()["python"]
    finally:
        languages._deno.cache_clear()
