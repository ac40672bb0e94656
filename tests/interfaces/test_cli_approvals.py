"""A run that has to ask, and people who answer it from other terminals (POL-8)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import audit_records
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall, error_code, person

RULES = '[permissions]\nallow = ["Bash(ls *)"]\nask = ["Bash(echo *)"]\n'


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "cellwall.toml"
    path.write_text("[approvals]\ntimeout_s = 60\n")
    path.chmod(0o600)
    return path


@contextmanager
def asking(
    policy: str, settings: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run that waits, and the id of its question."""
    with prepared_program.Popen(
        ["run", "--json", "--config", str(settings), "--policy", policy, "--", *(words or ("echo", "hi"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process, waiting_id(process)
        finally:
            process.kill()


def waiting_id(process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        found = json.loads(cellwall("approvals", "list", "--json").stdout)["questions"]
        if found:
            return str(found[0]["id"])
    pytest.fail("no question came")


def outcome_of(process: subprocess.Popen[bytes]) -> dict:
    out, _ = process.communicate(timeout=DEADLINE_S)
    return json.loads(out)


@pytest.mark.requirement("POL-8")
def test_a_run_waits_and_a_yes_from_another_terminal_lets_it_go_on(policy, settings):
    with asking(policy, settings) as (process, name):
        listed = cellwall("approvals", "list").stdout.decode()
        assert listed.startswith(f"{name}  ")
        assert listed.endswith("/cli  Bash: echo hi\n")
        shown = cellwall("approvals", "show", name).stdout.decode()
        assert "wants to use Bash:\n| echo hi\n" in shown
        assert f"cellwall approvals allow {name}\n" in shown
        done = person("approvals", "allow", name)
        assert done.returncode == 0, done
        assert done.stdout.decode().endswith(f"{name} was allowed (once)\n")
        outcome = outcome_of(process)
    assert (outcome["status"], outcome["stdout"]) == ("ok", "hi\n")
    assert "allowed it this once" in outcome["decision"]["reason"]
    kinds = [record["kind"] for record in audit_records()]
    assert kinds[-3:] == ["approval", "intent", "outcome"]
    told = audit_records()[-3]["body"]
    assert (told["question"], told["verdict"], told["via"]) == (name, "allow", "queue")
    assert "| echo hi" in told["shown"]
    assert cellwall("approvals", "list").stdout == b"no questions are waiting\n"


@pytest.mark.requirement("POL-8", "POL-13")
@pytest.mark.parametrize("says", ["", "y", "yes", "abcd"])
def test_another_word_than_the_one_shown_is_no_yes(policy, settings, says):
    with asking(policy, settings) as (process, name):
        done = person("approvals", "allow", name, says=says)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"not answered; the question still waits" in done.stderr
        assert person("approvals", "allow", name).returncode == 0  # the control
        assert outcome_of(process)["status"] == "ok"


@pytest.mark.requirement("POL-8")
def test_a_no_from_another_terminal_denies_it(policy, settings):
    with asking(policy, settings) as (process, name):
        done = cellwall("approvals", "deny", "--json", name)
        assert json.loads(done.stdout)["answer"] == "deny"
        outcome = outcome_of(process)
        assert process.returncode == 125
    assert (outcome["status"], outcome["error"]["code"]) == ("denied", "CW-DENIED")
    second = cellwall("approvals", "allow", name)
    assert (second.returncode, error_code(second)) == (125, "CW-APPROVAL-TAKEN")


@pytest.mark.requirement("POL-8")
def test_without_an_answer_in_time_it_is_denied_and_a_late_one_is_told(policy, settings):
    settings.write_text("[approvals]\ntimeout_s = 3\n")
    with asking(policy, settings) as (process, name):
        outcome = outcome_of(process)
    assert outcome["status"] == "denied"
    assert "no answer within 3 s" in outcome["error"]["message"]
    late = cellwall("approvals", "allow", name)
    assert (late.returncode, error_code(late)) == (125, "CW-APPROVAL-LATE")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("choice", ["1", "Bash(echo hi)"])
def test_a_rule_is_written_to_the_users_policy(policy, settings, choice):
    with asking(policy, settings) as (process, name):
        wrong = cellwall("approvals", "allow", "--rule", "Bash(*)", name)
        assert error_code(wrong) == "CW-APPROVAL-NOT-OFFERED"
        both = cellwall("approvals", "allow", "--rule", "1", "--session", name)
        assert error_code(both) == "CW-USAGE"
        assert person("approvals", "allow", "--rule", choice, name).returncode == 0
        assert outcome_of(process)["status"] == "ok"
    written = Path(os.environ["XDG_CONFIG_HOME"], "cellwall", "policy.toml")
    (rule,) = tomllib.loads(written.read_text())["rule"]
    assert (rule["verdict"], rule["rule"]) == ("allow", "Bash(echo hi)")


def test_where_there_is_no_session_none_is_offered(policy, settings):
    with asking(policy, settings) as (_, name):
        assert b"--session" not in cellwall("approvals", "show", name).stdout
        refused = cellwall("approvals", "allow", "--session", name)
        assert (refused.returncode, error_code(refused)) == (125, "CW-APPROVAL-NOT-OFFERED")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_while_it_asks_leaves_a_denial_and_no_question(
    policy, settings, number
):
    with asking(policy, settings) as (process, _):
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + number
    assert cellwall("approvals", "list", "--json").stdout == b'{"questions": []}\n'
    assert [
        record["body"]["verdict"] for record in audit_records() if record["kind"] == "approval"
    ] == ["deny"]


@pytest.mark.requirement("POL-8")
def test_the_question_of_a_killed_run_is_gone(policy, settings):
    with asking(policy, settings) as (process, name):
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        refused = cellwall("approvals", "allow", name)
        assert (refused.returncode, error_code(refused)) == (125, "CW-NO-QUESTION")
    assert cellwall("approvals", "list").stdout == b"no questions are waiting\n"


@pytest.mark.requirement("RBAC-2")
def test_who_may_not_answer_is_told_and_a_no_is_always_taken(policy, settings, tmp_path):
    bound = tmp_path / "bound.toml"
    bound.write_text('[roles.interfaces]\ncli = "user"\n')
    bound.chmod(0o600)
    with asking(policy, settings) as (process, name):
        refused = cellwall("approvals", "allow", "--config", str(bound), name)
        assert (refused.returncode, error_code(refused)) == (125, "CW-ROLE")
        assert cellwall("approvals", "deny", "--config", str(bound), name).returncode == 0
        assert outcome_of(process)["status"] == "denied"


@pytest.mark.requirement("RBAC-1", "RBAC-2")
def test_a_role_denies_before_anybody_is_asked(policy, settings):
    settings.write_text('[roles]\ndefault = "guest"\n')
    done = cellwall(
        "run", "--json", "--config", str(settings), "--policy", policy, "--", "echo", "hi"
    )
    outcome = json.loads(done.stdout)
    assert (done.returncode, outcome["status"], outcome["error"]["code"]) == (
        125,
        "denied",
        "CW-ROLE",
    )
    assert outcome["error"]["message"].endswith("has the role guest, which lacks sandbox:execute")
    assert [record["kind"] for record in audit_records()][-1] == "denial"


def test_channels_that_are_switched_off_ask_nobody(policy, settings):
    settings.write_text("[approvals]\nchannels = []\n")
    done = cellwall(
        "run", "--json", "--config", str(settings), "--policy", policy, "--", "echo", "hi"
    )
    assert "no person could be asked" in json.loads(done.stdout)["error"]["message"]


def test_show_tells_programs_everything(policy, settings):
    with asking(policy, settings, "echo", "a\x1b[2Jb") as (_, name):
        shown = json.loads(cellwall("approvals", "show", "--json", name).stdout)
        assert (shown["id"], shown["tool"], shown["text"]) == (name, "Bash", "echo 'a\x1b[2Jb'")
        assert "| echo 'a\\x1b[2Jb'\n" in shown["shown"]
        assert b"\x1b" not in cellwall("approvals", "list").stdout
        assert b"\x1b" not in cellwall("approvals", "show", name).stdout


@pytest.mark.parametrize("words", [["show"], ["allow"], ["deny"]])
def test_an_id_that_is_none_is_refused(words):
    done = cellwall("approvals", *words, "../../etc/passwd")
    assert (done.returncode, error_code(done)) == (125, "CW-BAD-ID")
    done = cellwall("approvals", *words, "ask_" + "a" * 26)
    assert (done.returncode, error_code(done)) == (125, "CW-NO-QUESTION")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("columns", [30, 40, 80])
def test_on_a_narrow_terminal_a_command_cannot_write_at_the_left_edge(policy, settings, columns):
    forged = "x" * 12 + "Circumstances:  in a test sandbox only"
    with asking(policy, settings, "echo", forged) as (_, name):
        for words in (["list"], ["show", name], ["deny", name]):
            lines = shown_on(columns, "approvals", *words)
            assert any("xxxx" in line for line in lines), lines
            assert all(len(line) < columns for line in lines)
            rows = [line for line in lines if "test sandbox only" in line.replace("|+", "")]
            assert all(line.startswith(("|", name[:20])) for line in rows)


def test_on_too_narrow_a_terminal_nothing_is_shown(policy, settings):
    with asking(policy, settings, "echo", "x" * 12) as (_, name):
        assert any("xxxx" in line for line in shown_on(40, "approvals", "show", name))
        narrow = shown_on(10, "approvals", "show", name)
        assert not any("xxxx" in line for line in narrow)


def shown_on(columns: int, *words: str) -> list[str]:
    """The lines that a terminal of this width is sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    try:
        with prepared_program.Popen(words, stdout=theirs, stderr=subprocess.DEVNULL) as done:
            os.close(theirs)
            data = b""
            with suppress(OSError):  # the other side is closed
                while part := os.read(ours, 65_536):
                    data += part
        assert done.returncode == (0 if columns >= 20 else 125)
    finally:
        os.close(ours)
    return data.decode().replace("\r\n", "\n").splitlines()
