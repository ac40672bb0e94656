"""`cellwall create | exec | cp`: one sandbox, many commands (FS-7)."""

from __future__ import annotations

import json

import pytest

from interfaces.test_cli_process import cellwall, error_code

pytestmark = pytest.mark.usefixtures("supervisor")


def made(*words: str) -> str:
    done = cellwall("create", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_files_and_processes_live_from_command_to_command(tmp_path):
    (tmp_path / "given").write_bytes(b"\x00\xff data")
    sandbox = made("--timeout", "20")
    assert cellwall("cp", str(tmp_path / "given"), f"{sandbox}:kept").returncode == 0
    assert cellwall("exec", sandbox, "--", "cat", "kept").stdout == b"\x00\xff data"
    done = cellwall("exec", "--stdin", sandbox, "--", "sh", "-c", "cat > more; exit 3", stdin=b"in")
    assert done.returncode == 3
    assert cellwall("cp", f"{sandbox}:more", str(tmp_path)).returncode == 0
    assert (tmp_path / "more").read_bytes() == b"in"
    outcome = json.loads(cellwall("exec", "--json", sandbox, "--", "echo", "hi").stdout)
    assert (outcome["status"], outcome["stdout"]) == ("ok", "hi\n")
    assert cellwall("kill", sandbox).returncode == 0
    assert error_code(cellwall("exec", sandbox, "--", "true")) == "CW-NO-SANDBOX"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["exec", "sbx_nope", "--", "true"], "CW-BAD-ID"),
        (["exec", "--json", "sbx_nope"], "CW-USAGE"),
        (["cp", "a", "b"], "CW-USAGE"),
        (["cp", "sbx_a:b", "sbx_c:d"], "CW-USAGE"),
        (["cp", "/nonexistent", "sbx_00000000000000000000000000:x"], "CW-COPY-FILE"),
        (["create", "--stdin"], "CW-USAGE"),
        (["create", "--keep-alive", "0"], "CW-USAGE"),
    ],
)
def test_wrong_usage_says_what_is_wrong(words, code):
    done = cellwall(*words)
    assert done.returncode == 125
    assert code.encode() in done.stdout + done.stderr
