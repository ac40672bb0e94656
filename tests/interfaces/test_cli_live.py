"""`cellwall create | exec | cp`: one sandbox, many commands (FS-7)."""

from __future__ import annotations

import json
import os
import resource
import stat

import pytest

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli import live
from interfaces.test_cli_process import cellwall, error_code, started

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
        (["create", "--keep-alive", "0"], "CW-BAD-LIMIT"),
        (["create", "--keep-alive", "nan"], "CW-BAD-LIMIT"),
        (["create", "--passphrase-fd", "3"], "CW-USAGE"),
        (["create", "--template", "nope"], "CW-NO-TEMPLATE"),
        (["create", "--skill", "nope"], "CW-SKILL-UNKNOWN"),
        (["create", "--secret", "NOPE"], "CW-VAULT"),
        (["create", "--policy", "/nonexistent.toml"], "CW-POLICY"),
        (["create", "--allow-domain", "*"], "CW-BAD-DOMAIN"),
        (["create", "--env", "1=2"], "CW-BAD-ENV"),
        (["exec", "--json", "sbx_nope", "--"], "CW-USAGE"),
        (["exec", "sbx_nope", "--timeout", "5", "--", "true"], "before the id"),
        (["cp", "/dev/zero", "sbx_00000000000000000000000000:x"], "CW-COPY-FILE"),
    ],
)
@pytest.mark.sample(8)
def test_wrong_usage_says_what_is_wrong(words, code):
    done = cellwall(*words)
    assert done.returncode == 125
    assert code.encode() in done.stdout + done.stderr


def test_a_sandbox_whose_id_nobody_gets_does_not_stay(supervisor):
    before = cellwall("ps", "--json").stdout
    with open("/dev/full", "wb") as full, started("create", stdout=full) as process:
        assert b"CW-OUTPUT-UNWRITABLE" in process.communicate(timeout=60)[1]
    assert cellwall("ps", "--json").stdout == before
    sandbox = made()  # the control
    assert sandbox.encode() in cellwall("ps", "--json").stdout
    cellwall("kill", sandbox)


@pytest.mark.requirement("FS-1")
def test_a_copy_neither_waits_for_a_fifo_nor_loses_what_was_there(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "old").write_bytes(b"kept")
    (tmp_path / "old").chmod(0o4750)
    with pytest.raises(BadInput, match="not a regular file"):
        live._write_file(str(tmp_path / "fifo"), b"x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(BadInput, match="cannot be written: File too large"):
            live._write_file(str(tmp_path / "old"), bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "old").read_bytes() == b"kept"
    live._write_file(str(tmp_path / "old"), b"new")  # the control
    assert (tmp_path / "old").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o750
    assert sorted(os.listdir(tmp_path)) == ["fifo", "old"]


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_copy_goes_into_no_directory_that_code_may_have_made_a_link(tmp_path, end):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BadInput, match="is a link to a directory"):
        live._target_file(f"{tmp_path}/link{end}", "authorized_keys")
    assert live._target_file(f"{tmp_path}/real{end}", "out") == f"{tmp_path}/real{end or '/'}out"
    assert live._target_file(f"{tmp_path}/new", "out") == f"{tmp_path}/new"


@pytest.mark.requirement("FS-1")
def test_a_copy_follows_no_link_that_code_may_have_left(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("mine")
    folder.mkdir()
    (folder / "out").symlink_to(victim)
    sandbox = made("--timeout", "20")
    assert cellwall("exec", sandbox, "--", "sh", "-c", "echo theirs > out").returncode == 0
    assert error_code(cellwall("cp", f"{sandbox}:out", str(folder))) == "CW-COPY-FILE"
    assert victim.read_text() == "mine"
    # The control: without the link the same copy is made.
    (folder / "out").unlink()
    assert cellwall("cp", f"{sandbox}:out", str(folder)).returncode == 0
    assert (folder / "out").read_text() == "theirs\n"
    cellwall("kill", sandbox)


@pytest.mark.requirement("FS-9")
def test_snapshots_are_taken_listed_restored_and_deleted():
    one = made()
    cellwall("exec", one, "--", "sh", "-c", "echo one > a")
    taken = json.loads(cellwall("snapshot", "create", one, "--name", "first", "--json").stdout)
    assert (taken["name"], taken["session"], taken["files"]) == ("first", one, 1)
    name = taken["id"]
    assert name in cellwall("snapshot", "list").stdout.decode()
    assert one in cellwall("snapshot", "show", name).stdout.decode()
    words = {"COMP_WORDS": "cellwall snapshot delete snp_", "COMP_CWORD": "3"}
    told = cellwall(**words, _CELLWALL_COMPLETE="bash_complete").stdout.decode()
    assert name in told
    two = made("--from-snapshot", name)
    assert cellwall("snapshot", "delete", name).returncode == 0
    assert cellwall("exec", two, "--", "cat", "a").stdout == b"one\n"
    assert error_code(cellwall("snapshot", "show", name)) == "CW-NO-SNAPSHOT"
    assert error_code(cellwall("snapshot", "delete", "../workspaces")) == "CW-BAD-ID"
    for each in (one, two):
        cellwall("kill", each)
