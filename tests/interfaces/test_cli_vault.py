"""`holdfast vault`: values go in by standard input or a hidden prompt, and come out nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

import holdfast as sdk
from conftest import audit_records
from holdfast.core.events import EventKind
from holdfast.interfaces.cli.main import main
from holdfast.secrets.settings import VaultSettings
from holdfast.secrets.vault import Vault
from interfaces.test_cli_asking import on_terminal
from interfaces.test_cli_process import error_code, holdfast

VALUE = b"the-value-that-nobody-prints"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"


def here(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    """The same program in this process: a start of Python for each word would take long."""
    before, handler = [os.dup(number) for number in range(3)], signal.getsignal(signal.SIGTERM)
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin)
        given.seek(0)
        try:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            code = main(["vault", *words])
        finally:
            signal.signal(signal.SIGTERM, handler)
            for number, saved in enumerate(before):
                os.dup2(saved, number)
                os.close(saved)
        shown = [(file.seek(0), file.read())[1] for file in (out, err)]
    return subprocess.CompletedProcess(words, code, *shown)


def told(*words: str, stdin: bytes = b"") -> dict:
    done = here(*words, "--json", stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b""), done
    assert VALUE not in done.stdout
    return json.loads(done.stdout)


def values(home: str) -> dict[str, bytes]:
    vault = Vault(os.path.join(home, "vault"), VaultSettings(key="file"))
    vault.unlock()
    return dict(vault.values())


@pytest.fixture
def quick(state_home, monkeypatch) -> None:
    config = Path(state_home, "holdfast.toml")
    config.write_text(QUICK)
    config.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))


@pytest.mark.requirement("SEC-2", "SEC-3", "SEC-6")
def test_from_init_to_rm(state_home):
    made = told("init", "--key", "file")
    assert (made["generation"], made["key"]) == (1, "file")
    assert told("set", "TOKEN", stdin=VALUE + b"\n\n") == {"name": "TOKEN", "version": 1}
    assert values(state_home) == {"TOKEN": VALUE + b"\n"}
    assert told("rotate", "TOKEN", "--binary", stdin=VALUE + b"\n")["version"] == 2
    assert told("rotate", "--end-overlap", "TOKEN") == {"name": "TOKEN", "wiped": True}
    assert values(state_home) == {"TOKEN": VALUE + b"\n"}
    words = ["--host", "api.github.com", "--method", "get", "--path", "/repos", "--tool", "run"]
    grant = told("grant", "TOKEN", *words, "--for", "8h")
    shown = ("host", "ports", "methods", "path", "place", "name", "tools", "session")
    assert [grant[key] for key in shown] == [
        *("api.github.com", [443], ["GET"], "/repos", "header", "authorization", ["run"], "")
    ]
    assert grant["until_s"] - grant["made_s"] == pytest.approx(8 * 3600, abs=600)
    listed = told("list")
    assert listed["vault"] == {"id": made["id"], "generation": 5, "key": "file"}
    assert [
        (each["name"], each["version"], each["has_previous"]) for each in listed["secrets"]
    ] == [("TOKEN", 2, False)]
    assert listed["secrets"][0]["grants"] == [grant]
    for_people = here("list").stdout.decode()
    assert "GET api.github.com:443/repos  in header authorization  for run  until 20" in for_people
    assert told("revoke", "TOKEN", grant["id"]) == {"name": "TOKEN", "revoked": 1}
    assert told("rekey")["generation"] == 7
    assert told("rm", "TOKEN") == {"removed": "TOKEN"}
    assert here("list").stdout == b"no secrets\n"
    changes = [record["body"]["change"] for record in audit_records(kind=EventKind.VAULT)]
    wanted = ("init", "set", "rotate", "end-overlap", "grant", "revoke", "rekey", "remove")
    assert [change for change in dict.fromkeys(changes) if change != "unlock"] == list(wanted)


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    ("words", "stdin", "code"),
    [
        (["set", "TOKEN"], b"", "HF-VAULT-VALUE"),
        (["set", "TOKEN"], b"\n", "HF-VAULT-VALUE"),
        (["set", "TOKEN"], b"x" * 70_000, "HF-VAULT-VALUE"),
        (["set"], VALUE, "HF-USAGE"),
        (["set", "not-a-name"], VALUE, "HF-VAULT-NAME"),
        (["set", "TOKEN", VALUE.decode()], b"", "HF-VAULT-VALUE-SHOWN"),
        (["set", "TOKEN=" + VALUE.decode()], b"", "HF-VAULT-VALUE-SHOWN"),
        (["set", "TOKEN", "--passphrase-fd", "0"], VALUE, "HF-USAGE"),
        (["rotate", "TOKEN"], VALUE, "HF-VAULT-UNKNOWN"),
        (["grant", "TOKEN", "--host", "a.example.com", "--for", "soon"], b"", "HF-USAGE"),
        (
            ["grant", "T", "--host", "a.example.com", "--query", "a", "--basic", "password"],
            b"",
            "HF-USAGE",
        ),
        (["revoke", "TOKEN"], b"", "HF-USAGE"),
        (["init", "--key", "file"], b"", "HF-VAULT-EXISTS"),
    ],
)
def test_what_is_wrong_is_told_with_its_mend(shared_vault, monkeypatch, words, stdin, code):
    monkeypatch.setenv("HOLDFAST_HOME", shared_vault)
    done = here(*words, stdin=stdin)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", code)
    assert b"  mend: " in done.stderr
    assert VALUE not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.fixture(scope="module")
def shared_vault(tmp_path_factory) -> str:
    home = tmp_path_factory.mktemp("holdfast-home")
    home.chmod(0o700)
    done = holdfast("vault", "init", "--key", "file", HOLDFAST_HOME=str(home))
    assert done.returncode == 0, done
    return str(home)


def test_without_a_vault_it_is_told_how_to_make_one():
    done = here("list")
    assert error_code(done) == "HF-VAULT-MISSING"
    assert b"holdfast vault init" in done.stderr


@pytest.mark.requirement("SEC-2")
def test_a_person_types_passphrase_and_value_and_sees_neither(quick, state_home):
    with on_terminal("vault", "init") as screen:
        screen.until("New passphrase: ")
        screen.type("a long passphrase\n")
        screen.until("The same again: ")
        screen.type("a long passphrase\n")
        code, seen = screen.end()
    assert (code, "long passphrase" in seen, "the vault made" in seen) == (0, False, True)
    with on_terminal("vault", "set", "TOKEN") as screen:
        screen.until("Passphrase of the vault: ")
        screen.type("a long passphrase\n")
        screen.until("Value: ")
        screen.type(VALUE.decode() + "\n")
        screen.until("The same again: ")
        screen.type(VALUE.decode() + "\n")
        code, seen = screen.end()
    assert (code, VALUE.decode() in seen, "TOKEN stored: version 1" in seen) == (0, False, True)
    with on_terminal("vault", "set", "TOKEN") as screen:
        screen.until("Passphrase of the vault: ")
        screen.type("a long passphrase\n")
        screen.until("Value: ")
        screen.type("one\n")
        screen.until("The same again: ")
        screen.type("other\n")
        code, seen = screen.end()
    assert (code, "HF-TYPED-TWICE" in seen) == (125, True)
    with sdk.Vault.open(passphrase="a long passphrase") as vault:
        assert [(each.name, each.version) for each in vault.list()] == [("TOKEN", 1)]


@pytest.mark.requirement("SEC-2")
def test_a_passphrase_comes_by_a_descriptor_and_never_by_a_variable(quick, state_home):
    both = b"the first passphrase\nthe second passphrase\n"
    assert here("init", "--passphrase-fd", "0", stdin=both).returncode == 0
    assert here("rekey", "--passphrase-fd", "0", stdin=both).returncode == 0
    done = here("list", "--passphrase-fd", "0", stdin=both)
    assert error_code(done) == "HF-VAULT-WRONG-KEY"
    done = here("list", "--passphrase-fd", "0", stdin=b"the second passphrase")
    assert (done.returncode, done.stdout) == (0, b"no secrets\n")
    done = here("list", "--passphrase-fd", "999999")
    assert error_code(done) == "HF-USAGE"


# The library


@pytest.mark.requirement("SEC-2", "SEC-7")
def test_the_library_does_the_same(state_home):
    with sdk.Vault.open(create=True, key="file") as vault:
        assert vault.set("TOKEN", VALUE.decode()) == 1
        assert vault.rotate("TOKEN", VALUE[::-1]) == 2
        grant = vault.grant("TOKEN", host="api.github.com", place="query", field="key")
        assert (grant.binding.place, grant.binding.name) == ("query", "key")
        assert vault.end_overlap("TOKEN")
        assert vault.list()[0].grants == (grant,)
        assert vault.revoke("TOKEN") == 1
        vault.rekey(key="file", key_file=os.path.join(state_home, "elsewhere"))
        assert repr(vault) == "Vault(unlocked)"
        assert not [
            name for name in dir(vault) if name[0] != "_" and ("get" in name or "val" in name)
        ]
    assert repr(vault) == "Vault(locked)"
    with pytest.raises(sdk.HoldfastError) as caught:
        sdk.Vault.open()
    assert caught.value.code == "HF-VAULT-NO-KEY"
    with sdk.Vault.open(key_file=os.path.join(state_home, "elsewhere")) as vault:
        vault.remove("TOKEN")
        assert vault.generation == 8
