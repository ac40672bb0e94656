"""The kept inputs of the fuzzers, among them one for each finding, through every target (RED-2)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fuzz import corpus, native
from fuzz.targets import all_targets

TARGETS = all_targets()


@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_get_a_result_or_the_declared_error(name: str) -> None:
    inputs = corpus.read(name)
    assert len(inputs) >= 3, "without inputs the search begins at nothing"
    for data in (b"", *inputs):
        TARGETS[name].run(data)


@pytest.mark.requirement("RED-2")
@pytest.mark.slow
@pytest.mark.parametrize("name", native.TARGETS)
@pytest.mark.sample(2)
def test_kept_inputs_of_native_code_pass_the_sanitisers(name: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    need(compiler, "a C compiler with AddressSanitizer")
    program = native.build(name, tmp_path, compiler=[str(compiler)], replays=True)
    files = []
    for number, data in enumerate(corpus.read(name)):
        files.append(tmp_path / f"input-{number}")
        files[-1].write_bytes(data)
    assert len(files) >= 3
    done = subprocess.run(
        [program, *files], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, f"{len(files)} inputs\n"), done.stderr


@pytest.mark.requirement("RED-2")
def test_every_corpus_belongs_to_a_target() -> None:
    files = {path.stem for path in corpus.FOLDER.glob("*.txt")}
    assert files == TARGETS.keys() | native.TARGETS.keys()


def test_a_target_whose_parser_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an exception that is not declared leaves the target."""
    from fuzz.targets import messages  # noqa: PLC0415  # only here

    def broken(data: bytes, start: int = 0) -> int:
        raise IndexError(start)

    monkeypatch.setattr(messages, "plain_end", broken)
    with pytest.raises(IndexError):
        TARGETS["passkey-cbor"].run(b"\xa0")
