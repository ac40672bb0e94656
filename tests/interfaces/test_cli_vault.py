"""`cellwall vault`: values go in by standard input or a hidden prompt, and come out nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import cellwall as sdk
import terminals
from cellwall.core.outcomes import EventKind
from cellwall.secrets.format import VaultSettings
from cellwall.secrets.store import VaultStore
from conftest import audit_records
from interfaces.test_cli_asking import Screen, on_terminal
from interfaces.test_cli_process import (
    DEADLINE_S,
    PROGRAM,
    cellwall,
    error_code,
    in_process,
    person,
)

VALUE = b"the-value-that-nobody-prints"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"


def here(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    return in_process("vault", *words, stdin=stdin)


def told(*words: str, stdin: bytes = b"") -> dict:
    done = here(*words, "--json", stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b""), done
    assert VALUE not in done.stdout
    return json.loads(done.stdout)


def granted(*words: str) -> dict:
    done = person("vault", "grant", *words, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def values(home: str) -> dict[str, bytes]:
    vault = VaultStore(os.path.join(home, "vault"), VaultSettings(key="file"))
    vault.unlock()
    return dict(vault.values())


@pytest.fixture
def quick(state_home, monkeypatch) -> None:
    config = Path(state_home, "cellwall.toml")
    config.write_text(QUICK)
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))


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
    refused = here("grant", "TOKEN", *words)  # by no terminal, and no passphrase
    assert (refused.returncode, error_code(refused)) == (125, "CW-NOT-CONFIRMED")
    grant = granted("TOKEN", *words, "--for", "8h")
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
        (["set", "TOKEN"], b"", "CW-VAULT-VALUE"),
        (["set", "TOKEN"], b"\n", "CW-VAULT-VALUE"),
        (["set", "TOKEN"], b"x" * 70_000, "CW-VAULT-VALUE"),
        (["set"], VALUE, "CW-USAGE"),
        (["set", "not-a-name"], VALUE, "CW-VAULT-NAME"),
        (["set", "TOKEN", VALUE.decode()], b"", "CW-VAULT-VALUE-SHOWN"),
        (["set", "TOKEN=" + VALUE.decode()], b"", "CW-VAULT-VALUE-SHOWN"),
        (["set", "TOKEN", "--passphrase-fd", "0"], VALUE, "CW-USAGE"),
        (["rotate", "TOKEN"], VALUE, "CW-VAULT-UNKNOWN"),
        (["grant", "TOKEN", "--host", "a.example.com", "--for", "soon"], b"", "CW-USAGE"),
        (
            ["grant", "T", "--host", "a.example.com", "--query", "a", "--basic", "password"],
            b"",
            "CW-USAGE",
        ),
        (["revoke", "TOKEN"], b"", "CW-USAGE"),
        (["init", "--key", "file"], b"", "CW-VAULT-EXISTS"),
    ],
)
@pytest.mark.sample(6)
def test_what_is_wrong_is_told_with_its_hint(shared_vault, monkeypatch, words, stdin, code):
    monkeypatch.setenv("CELLWALL_HOME", shared_vault)
    done = here(*words, stdin=stdin)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", code)
    assert b"  hint: " in done.stderr
    assert VALUE not in done.stderr
    if code == "CW-VAULT-EXISTS":
        assert f"{shared_vault}/vault" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.fixture(scope="module")
def shared_vault(tmp_path_factory) -> str:
    home = tmp_path_factory.mktemp("cellwall-home")
    home.chmod(0o700)
    done = cellwall("vault", "init", "--key", "file", CELLWALL_HOME=str(home))
    assert done.returncode == 0, done
    return str(home)


def test_without_a_vault_it_is_told_how_to_make_one():
    done = here("list")
    assert error_code(done) == "CW-VAULT-MISSING"
    assert b"cellwall vault init" in done.stderr


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
    assert (code, "CW-TYPED-TWICE" in seen) == (125, True)
    with sdk.Vault.open(passphrase="a long passphrase") as vault:
        assert [(each.name, each.version) for each in vault.list()] == [("TOKEN", 1)]


@pytest.mark.requirement("SEC-2")
def test_a_passphrase_comes_by_a_descriptor_and_never_by_a_variable(quick, state_home):
    both = b"the first passphrase\nthe second passphrase\n"
    assert here("init", "--passphrase-fd", "0", stdin=both).returncode == 0
    assert here("rekey", "--passphrase-fd", "0", stdin=both).returncode == 0
    done = here("list", "--passphrase-fd", "0", stdin=both)
    assert error_code(done) == "CW-VAULT-WRONG-KEY"
    done = here("list", "--passphrase-fd", "0", stdin=b"the second passphrase")
    assert (done.returncode, done.stdout) == (0, b"no secrets\n")
    done = here("list", "--passphrase-fd", "999999")
    assert error_code(done) == "CW-USAGE"


# Signals at the prompt

# As a shell: the program has a process group of its own, so that it can be stopped.
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(2, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
status = os.waitpid(pid, os.WUNTRACED)[1]
has_echo = bool(termios.tcgetattr(2)[3] & termios.ECHO)
print("stopped", os.WIFSTOPPED(status), "echo", has_echo, flush=True)
os.kill(pid, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def has_echo(screen: Screen) -> bool:
    return bool(termios.tcgetattr(screen.terminal)[3] & termios.ECHO)


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_whatever_ends_a_hidden_prompt_the_terminal_has_its_echo_again(state_home, number):
    assert here("init", "--key", "file").returncode == 0
    with on_terminal("vault", "set", "TOKEN") as screen:
        screen.until("Value: ")
        assert not has_echo(screen)
        screen.type("half of a value")
        screen.process.send_signal(number)
        # As who was ended by it, however we take it.
        assert screen.process.wait(DEADLINE_S) in (-number, 128 + number)
        assert has_echo(screen)
    assert values(state_home) == {}


@pytest.mark.requirement("SEC-2")
def test_who_is_stopped_at_a_hidden_prompt_has_an_echo_meanwhile_and_none_after(state_home):
    assert here("init", "--key", "file").returncode == 0
    words = [sys.executable, "-c", SHELL, PROGRAM, "vault", "set", "TOKEN"]
    with terminals.on_terminal(words, Screen) as screen:
        screen.until("Value: ")
        screen.type("half of a value\x1a")
        screen.until("stopped True echo True")
        screen.until("echo True[^$]*Value: ")
        assert not has_echo(screen)
        screen.type(VALUE.decode() + "\n")
        screen.until("The same again: ")
        screen.type(VALUE.decode() + "\n")
        code, seen = screen.end()
    assert (code, VALUE.decode() in seen) == (0, False)
    assert values(state_home) == {"TOKEN": VALUE}


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("typed", ["\x03", "\x1c"])
def test_the_prompt_of_a_run_is_ended_by_a_key_as_well(quick, state_home, typed):
    secret = b"a long passphrase\n"
    assert here("init", "--passphrase-fd", "0", stdin=secret).returncode == 0
    words = ["run", "--secret", "TOKEN", "--allow-domain", "api.example.com", "--", "true"]
    with on_terminal(*words) as screen:
        screen.until("Passphrase of the vault: ")
        assert not has_echo(screen)
        screen.type("half of it" + typed)
        assert screen.process.wait(DEADLINE_S) in (130, -signal.SIGQUIT)
        assert has_echo(screen)


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(("length", "is_taken"), [(4094, True), (4095, False), (4200, False)])
def test_a_line_that_the_terminal_may_have_cut_is_refused(state_home, length, is_taken):
    assert here("init", "--key", "file").returncode == 0
    typed = "x" * (length - 3) + "END"
    with on_terminal("vault", "set", "TOKEN") as screen:
        screen.until("Value: ")
        screen.type(typed + "\n")
        if is_taken:
            screen.until("The same again: ")
            screen.type(typed + "\n")
        code, seen = screen.end()
    assert (code, "CW-TYPED-LONG" in seen) == ((0, False) if is_taken else (125, True))
    assert values(state_home) == ({"TOKEN": typed.encode()} if is_taken else {})


# What is weak is told


@pytest.mark.requirement("SEC-2")
def test_a_value_that_protects_little_is_told_and_not_shown(state_home):
    assert here("init", "--key", "file").returncode == 0
    for words, value, told_word in (
        (["set", "PIN"], b"0451234", b"shorter than 8 bytes"),
        (["rotate", "PIN", "--json"], b"changeme", b"common word"),
        (["set", "GITHUB_TOKEN"], b"hub_token", b"own name"),
    ):
        done = here(*words, stdin=value)
        assert (done.returncode, told_word in done.stderr) == (0, True), done
        assert value not in done.stdout + done.stderr
    assert b"warning" not in here("set", "TOKEN", stdin=VALUE).stderr


@pytest.mark.requirement("SEC-3")
def test_a_grant_that_could_never_be_used_is_refused(state_home):
    assert here("init", "--key", "file").returncode == 0
    told("set", "TOKEN", stdin=VALUE)
    done = person("vault", "grant", "TOKEN", "--host", "a.example.com", "--tool", "fetch")
    assert (done.returncode, b"[CW-VAULT-GRANT]" in done.stderr) == (125, True)
    assert b"A fetch carries no secret" in done.stderr
    for tool in ("run", "code", "sandbox"):
        grant = granted("TOKEN", "--host", "a.example.com", "--tool", tool)
        assert grant["tools"] == [tool]


@pytest.mark.requirement("SEC-1")
def test_a_passphrase_that_is_cheap_to_guess_is_told(quick, state_home):
    done = here("init", "--passphrase-fd", "0", stdin=b"a long passphrase\n")
    assert (done.returncode, b"argon2_memory_kib to 19456" in done.stderr) == (0, True)
    done = here("rekey", "--key", "file", "--passphrase-fd", "0", stdin=b"a long passphrase\n")
    assert (done.returncode, b"warning" in done.stderr) == (0, False)


@pytest.mark.requirement("SEC-1")
def test_a_key_of_ones_own_place_comes_with_the_setting_that_finds_it(
    state_home, monkeypatch, capsys
):
    key, config = Path(state_home, "my key"), Path(state_home, "cellwall.toml")
    assert b"or the vault stays shut:" in here("init", "--key-file", str(key)).stderr
    setting = capsys.readouterr().err
    assert setting == f'[vault]\nkey_file = "{key}"\n'
    lost = here("list")
    assert (lost.returncode, b"[CW-VAULT-NO-KEY]" in lost.stderr) == (125, True)
    config.write_text(setting)
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    assert here("list").returncode == 0


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
    with pytest.raises(sdk.CellwallError) as caught:
        sdk.Vault.open()
    assert caught.value.code == "CW-VAULT-NO-KEY"
    with sdk.Vault.open(key_file=os.path.join(state_home, "elsewhere")) as vault:
        vault.remove("TOKEN")
        assert vault.generation == 8
