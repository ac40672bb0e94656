"""Help, completion and the record: what people meet first."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest
from click.testing import CliRunner

from cellwall import __version__
from cellwall.interfaces.cli.commands import cli
from conftest import growing_segment
from interfaces.test_cli_process import PROGRAM, cellwall

SECTIONS = {
    "Run commands and code": ["run", "shell", "code", "fetch"],
    "Live sandboxes": ["create", "exec", "cp", "snapshot", "ps", "logs", "kill", "top"],
    "Changes to your files": ["changes", "diff", "apply", "discard", "quarantine"],
    "Agents and their rules": ["hook", "mcp", "policy", "approvals", "skills"],
    "Texts, secrets and packages": [
        *("scan", "redact", "vault", "proxy", "canary", "packages"),
        *("template", "connection", "calendar"),
    ],
    "Records and incidents": ["audit", "alerts", "stop", "incident", "erase"],
    "This host": ["doctor", "redteam", "config", "supervisor", "completion"],
    "A service for several people": [
        *("serve", "user", "token", "budget", "passkey", "pair", "db", "fleet")
    ],
}
COMMANDS = [name for names in SECTIONS.values() for name in names]
INNER = [
    *(["audit", name] for name in ("tail", "search", "show", "verify", "verifier", "prove")),
    *(["audit", name] for name in ("check-proof", "seal", "key", "hold", "export", "forward")),
    *(["audit", "forward", name] for name in ("status", "run")),
    *(["alerts", name] for name in ("list", "check", "watch", "silence", "unsilence", "test")),
    *(["config", name] for name in ("check", "show", "schema")),
    *(
        ["vault", name]
        for name in ("init", "set", "list", "rm", "rotate", "rekey", "grant", "revoke")
    ),
    *(["template", name] for name in ("build", "list", "remove")),
    *(["packages", name] for name in ("verify", "install", "feed", "audit", "sbom", "why")),
    *(["packages", "feed", name] for name in ("status", "update", "import")),
    *(["skills", name] for name in ("sign", "verify", "list", "add", "remove")),
    *(["skills", name] for name in ("propose", "review", "approve")),
    *(["quarantine", name] for name in ("list", "restore", "delete")),
    *(["snapshot", name] for name in ("create", "list", "show", "delete")),
    *(["approvals", name] for name in ("list", "show", "allow", "deny")),
    *(["policy", name] for name in ("check", "explain", "init", "test", "trust", "untrust")),
    ["policy", "learn"],
    *(["hook", name] for name in ("install", "uninstall", "status")),
    ["mcp", "install"],
    *(["user", name] for name in ("add", "list", "remove", "role", "password", "link")),
    *(["user", name] for name in ("disable", "enable")),
    *(["token", name] for name in ("create", "list", "revoke")),
    *(["budget", name] for name in ("list", "set", "remove")),
    *(["passkey", name] for name in ("list", "remove")),
    *(["db", name] for name in ("migrate", "check", "backup", "restore")),
    *(["canary", name] for name in ("add", "list", "remove")),
    *(["pair", name] for name in ("code", "list", "remove")),
    *(["connection", name] for name in ("add", "list", "remove")),
    *(["calendar", name] for name in ("list", "create")),
    *(
        ["fleet", name]
        for name in ("up", "join", "token", "status", "drain", "remove", "verify", "publish")
    ),
    *(["supervisor", name] for name in ("start", "stop", "status")),
]


def test_cellwall_alone_prints_its_help():
    alone, asked = cellwall(), cellwall("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, b"")
    sections = [each.partition(":\n") for each in asked.stdout.decode().split("\n\n")]
    listed = {
        heading: [line.split()[0] for line in rows.splitlines()]
        for heading, _, rows in sections
        if heading in SECTIONS
    }
    assert listed == SECTIONS


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), *INNER])
@pytest.mark.table("words")
def test_every_help_has_examples_that_name_the_command(words):
    # In this process: a start of Python for each of them would take a minute.
    shown, short = (CliRunner().invoke(cli, [*words, option]) for option in ("--help", "-h"))
    assert (shown.exit_code, shown.stderr, short.output) == (0, "", shown.output)
    text = shown.output
    assert "Examples:\n" in text
    assert f"    cellwall {' '.join(words)}".rstrip() in text
    assert text.isascii()  # it must print in every locale


@pytest.mark.parametrize("words", [[], ["run"], ["vault", "grant"]])
def test_the_program_itself_prints_it_as_well(words):
    done = cellwall(*words, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"    cellwall {' '.join(words)}".rstrip() in done.stdout.decode()


@pytest.mark.parametrize("name", ["run", "code"])
def test_the_shared_options_are_those_of_the_contract(name):
    text = cellwall(name, "--help").stdout.decode()
    for option in [
        *(
            "--profile",
            "--config",
            "--policy",
            "--workspace",
            "--env",
            "--allow-domain",
            "--secret",
        ),
        *("--timeout", "--memory", "--cpus", "--processes", "--disk", "--output", "--stdin"),
        *("--json", "--open-files", "--file-size", "--skill"),
    ]:
        assert f"\n  {option} " in text
    for code in ("124", "125", "137"):
        assert code in text.partition("Exit codes:")[2]


def test_version():
    assert cellwall("--version").stdout == f"cellwall {__version__}\n".encode()


@pytest.mark.parametrize("name", ["audit", "config", "template"])
def test_a_group_without_a_command_shows_its_help(name):
    done = cellwall(name)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(f"Usage: cellwall {name} ".encode())


# Completion


def completed(*words: str) -> set[str]:
    done = cellwall(
        _CELLWALL_COMPLETE="bash_complete",
        COMP_WORDS=shlex.join(["cellwall", *words]),
        COMP_CWORD=str(len(words)),
    )
    return {line.partition(",")[2] for line in done.stdout.decode().splitlines()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["co"], {"code", "config", "completion", "connection"}),
        (["run", "--work"], {"--workspace"}),
        (["code", "--profile", "p"], {"production", "paranoid"}),
        (["code", "-l", "jav"], {"java", "javascript"}),
        (["audit", "v"], {"verify", "verifier"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["run", "--template", ""], {"python", "python-data"}),
        (["mcp", "--template", "python-"], {"python-data"}),
        (["template", "remove", "p"], {"python-data"}),
    ],
)
def test_words_are_completed(words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_says_where_it_goes(shell):
    text = cellwall("completion", shell).stdout.decode()
    assert text.startswith("# Put this into ~/.")
    assert "_CELLWALL_COMPLETE" in text


def test_the_script_works_in_bash():
    lines = [
        'eval "$(cellwall completion bash)"',
        "complete -p cellwall >/dev/null",  # registered
        "COMP_WORDS=(cellwall doc); COMP_CWORD=1; _cellwall_completion cellwall",
        "echo ${COMPREPLY[@]}",
    ]
    path = f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-ec", "\n".join(lines)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"doctor\n", b"")


# The record


@pytest.fixture
def some_runs() -> list[dict]:
    words = (["run", "--json", "--", "true"], ["code", "--json", "-c", "1 / 0"])
    return [json.loads(cellwall(*each).stdout) for each in words]


def test_tail_shows_the_latest_records(some_runs):
    lines = cellwall("audit", "tail").stdout.decode().splitlines()
    kinds = ["begin", "config", "intent", "outcome", "intent", "outcome"]
    assert [line.split()[1] for line in lines] == kinds
    assert lines[2].endswith(" true")
    assert lines[4].endswith(" 1 / 0")
    assert cellwall("audit", "tail", "-n", "1").stdout.decode().splitlines() == lines[-1:]
    told = json.loads(cellwall("audit", "tail", "--json", "-n", "3").stdout)["records"]
    assert [entry["seq"] for entry in told] == [4, 5, 6]


def test_show_finds_an_action_by_its_audit_id(some_runs):
    by_event = json.loads(cellwall("audit", "show", "--json", some_runs[1]["audit_id"]).stdout)
    assert [entry["seq"] for entry in by_event["records"]] == [5, 6]
    action_id = by_event["records"][0]["action_id"]
    assert json.loads(cellwall("audit", "show", "--json", action_id).stdout) == by_event


@pytest.mark.requirement("AUD-2")
def test_verify_names_the_first_bad_record(some_runs):
    good = cellwall("audit", "verify")
    assert (good.returncode, good.stdout) == (0, b"ok: 6 records\n")
    log = growing_segment(os.environ["CELLWALL_HOME"])
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], lines[3].replace(b'"ok"', b'"no"'), *lines[4:]]))
    bad = cellwall("audit", "verify", "--json")
    told = json.loads(bad.stdout)
    assert (bad.returncode, told["ok"], told["records"], told["first_bad"]) == (1, False, 3, 4)
    assert cellwall("audit", "verify").returncode == 1


def test_no_record_at_all():
    assert cellwall("audit", "tail").stdout == b""
    done = cellwall("audit", "verify", "--json")
    assert (done.returncode, json.loads(done.stdout)["reason"]) == (1, "there is no audit log")
