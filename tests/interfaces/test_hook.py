"""`cellwall hook` as a process: whatever happens to it, an agent's tool is not let through.

Exit code 1, a signal, or nothing on standard output with 0 would let it through.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellwall.interfaces.hooks.withheld_results import NOTE
from conftest import audit_records, end_supervisors
from interfaces import hook_double, prepared_program
from interfaces.hook_double import ASKED
from interfaces.test_cli_process import PROGRAM
from interfaces.test_supervisor import until

# Forked from an interpreter that has imported Cellwall: only the start differs, and tests about the
# start, about descriptors and about an installation start the real program.
DOUBLE = f"""
import sys
sys.path.insert(0, {str(Path(hook_double.__file__).parent.parent)!r})
from interfaces import hook_double
sys.exit(hook_double.main())
"""
DEADLINE_S = 60


def question(command: str = "ls #allow", **changes: Any) -> bytes:
    return json.dumps({**ASKED, "tool_input": {"command": command}, **changes}).encode()


def run(words: list[str], data: bytes, **changes: str) -> subprocess.CompletedProcess:
    environ = {**os.environ, **changes}
    return subprocess.run(
        words, input=data, capture_output=True, timeout=DEADLINE_S, env=environ, check=False
    )


def run_prepared(
    words: list[str], data: bytes, code: str | None = None, **changes: str
) -> subprocess.CompletedProcess:
    environ = {**os.environ, **changes}
    return prepared_program.run(words, stdin=data, code=code, env=environ, timeout_s=DEADLINE_S)


# Most of these are about verdicts, and /tmp is no directory that a sandbox can be given.
OUTSIDE = "--dangerously-outside"


def hook(
    data: bytes, *words: str, inside: bool = False, **changes: str
) -> subprocess.CompletedProcess:
    where = [] if inside else [OUTSIDE]
    return run_prepared(["hook", *where, *words], data, **changes)


def doubled_hook(data: bytes, *words: str, **changes: str) -> subprocess.CompletedProcess:
    return run_prepared(["hook", OUTSIDE, *words], data, DOUBLE, **changes)


def hurried_hook(within_s: float) -> subprocess.Popen[bytes]:
    """One that is asked over pipes and has less time to answer than a real one."""
    return prepared_program.Popen(
        ["hook", OUTSIDE],
        code=DOUBLE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "DOUBLE_WITHIN_S": str(within_s)},
    )


def verdict(done: subprocess.CompletedProcess) -> str:
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]


def is_blocked(done: subprocess.CompletedProcess) -> bool:
    """In one of the two ways that every host understands."""
    if done.returncode == 2:
        return done.stderr.startswith(b"cellwall: ")
    return done.returncode == 0 and verdict(done) == "deny"


@dataclass
class Served:
    """A supervisor with the tests' own policy in it."""

    home: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def begin(cls, home: Path) -> Served:
        home.chmod(0o700)
        environ = {**os.environ, "CELLWALL_HOME": str(home), "CELLWALL_PATH": "cold"}
        process = prepared_program.Popen(["supervisor"], code=DOUBLE, env=environ)
        served = cls(home, process)
        until(lambda: (home / "supervisor.sock").exists())
        until(lambda: hook(b'{"hook_event_name":"Stop"}', **served.environment).returncode == 0)
        return served

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CELLWALL_HOME": str(self.home),
            "CELLWALL_SUPERVISOR": "on",
            "CELLWALL_PATH": "cold",
        }

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        end_supervisors(self.home)  # the one that a hook has had started in its place


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served.begin(tmp_path_factory.mktemp("cellwall-hooks"))
    yield served
    served.end()


@pytest.fixture
def served(shared: Served, state_home: str, monkeypatch: pytest.MonkeyPatch) -> Served:
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    return shared


# The same answers both ways


@pytest.mark.parametrize("command", ["ls #allow", "ls #deny", "ls #ask", "ls"])
def test_the_supervisor_says_what_is_said_without_it(served, command):
    with_it = hook(question(command))
    alone = doubled_hook(question(command), CELLWALL_SUPERVISOR="off")
    assert (with_it.returncode, with_it.stdout, with_it.stderr) == (
        alone.returncode,
        alone.stdout,
        alone.stderr,
    )


@pytest.mark.requirement("ISO-2", "ISO-4")
def test_an_allowed_command_runs_inside_and_cannot_see_the_host(served, tmp_path):
    (tmp_path / "here").write_text("content")
    secret = tmp_path.parent / "secret"
    secret.write_text("host")
    command = f"cat here; cat {secret} || echo hidden; pwd; echo made > new #allow"
    data = question(command, cwd=str(tmp_path))
    assert "updatedInput" not in json.loads(hook(data).stdout)["hookSpecificOutput"]  # the control
    done = hook(data, inside=True)
    assert verdict(done) == "allow"
    line = json.loads(done.stdout)["hookSpecificOutput"]["updatedInput"]["command"]
    ran = run(["bash", "-c", line], b"", CELLWALL_SUPERVISOR="off")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.decode().splitlines() == ["contenthidden", str(tmp_path)]
    assert (tmp_path / "new").read_text() == "made\n"


def test_a_result_is_redacted_by_the_guard(served):
    told = {**ASKED, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "a SECRET"}}
    done = hook(json.dumps(told).encode())
    updated = json.loads(done.stdout)["hookSpecificOutput"]["updatedToolOutput"]
    assert (done.returncode, updated) == (0, {"stdout": "a [redacted]"})


@pytest.mark.requirement("AUD-1")
def test_every_answer_of_the_supervisor_is_on_record(served):
    before = len(audit_records())
    verdicts = ("allow", "deny", "ask")
    for word in verdicts:
        hook(question(f"ls #{word}", tool_use_id=f"toolu_{word}"))
    records = audit_records()[before:]
    told = {r["body"]["call"] for r in records if r["interface"] == "hook"}
    assert told == {f"toolu_{word}" for word in verdicts}


# Bad input

BAD: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n ",
    "binary": os.urandom(4096),
    "no JSON": b'{"hook_event_name": "PreToolUse"',
    "deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "twice": question().replace(b'"cwd"', b'"tool_name": "Read", "cwd"'),
    "NaN": question().replace(b'"ls #allow"', b"NaN"),
    "huge": question("ls #allow" + "x" * (9 << 20)),
    "lone surrogate": question("ls \ud800 #allow"),
    "tool of no type": question(tool_name=5),
    "input of no type": question(tool_input="ls #allow"),
    "unknown event": question(hook_event_name="BeforeToolUse"),
    "no event": b"{}",
    "relative": question(cwd="."),
}


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("way", ["on", "off"])
@pytest.mark.parametrize("name", BAD)
@pytest.mark.sample(10)
def test_bad_input_is_blocked(served, name, way):
    done = hook(BAD[name], CELLWALL_SUPERVISOR=way)
    assert is_blocked(done), done
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--agent"], ["--agent="], ["--config"], ["--agent", "--after"]])
def test_options_without_their_value_block(words):
    done = hook(question(), *words)
    assert done.returncode == 2 or b"withheld" in done.stdout  # of `--after`
    assert f"{words[0].rstrip('=')}` needs a value".encode() in done.stderr


@pytest.mark.parametrize("words", [["--bad"], ["x"], ["--run-inside=1"], ["--json"]])
def test_options_that_are_not_known_block(words):
    done = hook(question(), *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"does not know" in done.stderr


@pytest.mark.parametrize("way", ["on", "off"])
def test_a_configuration_that_cannot_be_read_denies(served, tmp_path, way):
    broken = tmp_path / "cellwall.toml"
    broken.write_text("[hook]\nquestions = 'sideways'\n")
    done = hook(question(), "--config", str(broken), CELLWALL_SUPERVISOR=way)
    assert verdict(done) == "deny"
    assert b"questions" in done.stdout


def test_a_policy_file_that_is_not_there_denies(state_home):
    assert verdict(hook(question("ls"), "--policy", "/nowhere.toml")) == "deny"


@pytest.mark.requirement("POL-1")
def test_without_any_rule_everything_is_denied(state_home, tmp_path):
    assert verdict(hook(question("ls", cwd=str(tmp_path)))) == "deny"


@pytest.mark.parametrize("event", ["Stop", "UserPromptSubmit", "SessionStart", "Notification"])
def test_other_events_are_answered_with_nothing(served, event):
    done = hook(json.dumps({"hook_event_name": event}).encode())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")


# After a tool has run: 2 would block nothing


TOLD = {**ASKED, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "a SECRET"}}


def is_withheld(done: subprocess.CompletedProcess) -> bool:
    told = json.loads(done.stdout)
    updated = told["hookSpecificOutput"]["updatedToolOutput"]
    return (done.returncode, told["decision"], updated["stdout"]) == (0, "block", NOTE)


FAILURES: dict[str, tuple[dict[str, Any], list[str], dict[str, str]]] = {
    "large": ({"tool_response": "x" * (9 << 20)}, [], {}),
    "deep": ({"tool_response": json.loads("[" * 600 + "]" * 600)}, [], {}),
    "an option that is not known": ({}, ["--bad"], {}),
    "a configuration that is not there": ({}, ["--config", "/nowhere.toml"], {}),
    "no home": ({}, [], {"CELLWALL_HOME": "/dev/null"}),
    "no name": ({"tool_name": 5}, [], {}),
}


@pytest.mark.requirement("GRD-4")
@pytest.mark.parametrize("name", FAILURES)
def test_a_result_that_cannot_be_looked_at_is_taken_away(state_home, name):
    changes, words, environ = FAILURES[name]
    data = json.dumps({**TOLD, **changes}).encode()
    done = doubled_hook(data, *words, **{"CELLWALL_SUPERVISOR": "off", **environ})
    if name == "no name":  # then it is not known of what shape it has to be
        assert json.loads(done.stdout)["hookSpecificOutput"]["updatedToolOutput"] == {
            "stdout": NOTE
        }
    else:
        assert is_withheld(done)
    assert b"SECRET" not in done.stdout


def test_a_result_that_is_not_looked_at_in_time_is_taken_away(served):
    with hurried_hook(0.5) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(TOLD).encode()[:-1])
        process.stdin.flush()
        code = process.wait(30)
        done = subprocess.CompletedProcess([], code, process.stdout.read())
    assert is_withheld(done)
    assert b"within 0.5 seconds" in done.stdout


# What the process meets


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_descriptors_block(served, closed):
    line = f"{PROGRAM} hook {closed}"
    done = subprocess.run(["bash", "-c", line], input=question(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_standard_error_does_not_hinder_an_answer(served):
    done = subprocess.run(
        ["bash", "-c", f"{PROGRAM} hook {OUTSIDE} 2>&-"],
        input=question(),
        capture_output=True,
        check=False,
    )
    assert verdict(done) == "allow"


def test_an_answer_that_nobody_can_read_is_none(served):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PROGRAM, "hook"], input=question(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2


def test_a_question_that_never_ends_is_blocked_in_time(served):
    with hurried_hook(0.5) as process:
        assert process.stdin is not None
        process.stdin.write(b"{")
        process.stdin.flush()
        assert process.wait(30) == 2
        assert process.stderr is not None
        assert b"within 0.5 seconds" in process.stderr.read()


def test_a_judge_that_is_too_slow_is_not_waited_for(state_home):
    done = doubled_hook(
        question("ls #slow #allow"), CELLWALL_SUPERVISOR="off", DOUBLE_WITHIN_S="0.5"
    )
    assert done.returncode == 2
    assert b"within 0.5 seconds" in done.stderr


@pytest.mark.parametrize("way", ["on", "off"])
def test_a_bug_blocks_and_shows_no_trace(served, way):
    done = doubled_hook(question("ls #bug #allow"), CELLWALL_SUPERVISOR=way)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"a bug" not in done.stderr


HOMES = {
    "missing": lambda tmp: str(tmp / "new" / "home"),
    "not a folder": lambda tmp: "/dev/null",
    "not makeable": lambda tmp: "/proc/none",
    "empty name": lambda tmp: "",
}


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("name", HOMES)
def test_a_home_that_cannot_be_used_is_a_denial(name, tmp_path, state_home):
    home = HOMES[name](tmp_path)
    environ = {
        "CELLWALL_HOME": home,
        "HOME": str(tmp_path / "nobody"),
        "CELLWALL_SUPERVISOR": "off",
    }
    done = doubled_hook(question("ls #allow"), **environ)
    expected = "allow" if name in {"missing", "empty name"} else "deny"
    assert verdict(done) == expected


@pytest.mark.requirement("AUD-1")
def test_a_home_that_cannot_be_written_to_is_a_denial(tmp_path, state_home):
    """A file in place of the folder of records: also root cannot write there."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "audit").write_text("")
    done = doubled_hook(question("ls #allow"), CELLWALL_HOME=str(home), CELLWALL_SUPERVISOR="off")
    assert verdict(done) == "deny"


def test_a_home_that_others_may_write_to_is_a_denial(tmp_path, state_home):
    tmp_path.chmod(0o777)
    done = doubled_hook(
        question("ls #allow"), CELLWALL_HOME=str(tmp_path), CELLWALL_SUPERVISOR="on"
    )
    assert verdict(done) == "deny"


# The supervisor


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_its_supervisor_the_answer_is_the_same(tmp_path, state_home, how):
    served = Served.begin(tmp_path)
    # The time is that of a busy machine: two waits for a supervisor and a start of the program.
    environment = {**served.environment, "DOUBLE_WITHIN_S": "50"}
    try:
        done = doubled_hook(question("ls #allow"), **environment)
        assert verdict(done) == "allow", done  # it is idle by now
        number = signal.SIGKILL if how == "killed" else signal.SIGSTOP
        served.process.send_signal(number)
        # It accepts, or does not; in no case does an agent wait for it.
        done = doubled_hook(question("ls #allow"), **environment)
        assert verdict(done) == "allow", done
        done = doubled_hook(question("ls #deny"), **environment)
        assert verdict(done) == "deny"
    finally:
        served.end()


def fake(home: Path, answer: bytes) -> threading.Thread:
    """Somebody of the same user who answers anything."""
    home.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(home / "supervisor.sock"))
    listener.listen(8)

    def serve() -> None:
        with closing(listener):
            line, _ = listener.accept()
            with closing(line):
                line.recv(1 << 20)
                line.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def frame(text: bytes, blob: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + len(blob).to_bytes(4, "big") + text + blob


ANSWERS = {
    "nothing": b"",
    "half a head": b"\0\0\0",
    "half a frame": frame(b'{"hook":true}', b"\0" * 5)[:-3],
    "too large": b"\xff" * 8,
    "stale": frame(b'{"stale":"0.0.1"}', b""),
    "error": frame(b'{"error":{}}', b""),
    "no blob": frame(b'{"hook":true}', b""),
    "exit 0 without an answer": frame(b'{"hook":true}', b"\0\0\0\0\0"),
    "exit 1": frame(b'{"hook":true}', b"\1\0\0\0\0"),
    "noise": os.urandom(64),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_is_not_passed_on(tmp_path, state_home, name):
    fake(tmp_path, ANSWERS[name])
    done = doubled_hook(question("ls #deny"), CELLWALL_HOME=str(tmp_path), CELLWALL_SUPERVISOR="on")
    assert verdict(done) == "deny"


def test_the_first_hook_starts_a_supervisor_and_the_next_one_finds_it(tmp_path, state_home):
    tmp_path.chmod(0o700)
    environ = {"CELLWALL_HOME": str(tmp_path), "CELLWALL_SUPERVISOR": "on"}
    try:
        assert verdict(hook(question("ls"), **environ)) == "deny"
        until(lambda: (tmp_path / "supervisor.sock").exists())
        assert "anyio" not in used_modules(question("ls"), **environ)
    finally:
        run_prepared(["supervisor", "stop"], b"", **environ)


def test_fifty_hooks_a_few_at_a_time_are_all_answered(served):
    words = ["#allow", "#deny", "#ask"]
    commands = [f"ls {number} {words[number % 3]}" for number in range(50)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda command: verdict(hook(question(command))), commands))
    assert found == [words[number % 3][1:] for number in range(50)]


def test_more_hooks_at_once_than_a_busy_host_can_answer_let_nothing_through(served):
    """Whether each is answered in time is the host's affair; that none is let through is ours."""
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda n: hook(question(f"ls {n} #deny")), range(24)))
    assert all(is_blocked(done) or verdict(done) == "deny" for done in found)


def test_many_hooks_at_once_with_a_supervisor_that_dies_are_never_let_through(tmp_path, state_home):
    served = Served.begin(tmp_path)
    try:
        with ThreadPoolExecutor(6) as pool:
            asked = [
                pool.submit(doubled_hook, question(f"{n} #deny"), **served.environment)
                for n in range(12)
            ]
            until(lambda: any(one.done() for one in asked))
            served.process.kill()
            assert all(is_blocked(one.result()) for one in asked)
    finally:
        served.end()


# Quick


def used_modules(data: bytes, **changes: str) -> set[str]:
    script = (
        "import sys\nsys.argv = ['cellwall', 'hook']\n"
        "from cellwall.interfaces.entry import main\n"
        "code = main()\nprint('\\n'.join(sys.modules), file=sys.stderr)\nsys.exit(code)"
    )
    done = run([sys.executable, "-c", script], data, **changes)
    assert done.returncode == 0
    return set(done.stderr.decode().split())


def test_a_hook_imports_almost_nothing(served):
    slow = {"click", "pydantic", "anyio", "asyncio", "json", "socket", "typing", "re", "subprocess"}
    assert not slow & used_modules(question())


def test_a_broken_installation_blocks(state_home):
    script = (
        "import sys\nsys.argv = ['cellwall', 'hook']\n"
        "sys.modules['cellwall.interfaces.hooks.client'] = None\n"
        "from cellwall.interfaces.entry import main\nsys.exit(main())"
    )
    assert is_blocked(run([sys.executable, "-c", script], question()))


def test_help_and_install_go_the_usual_way():
    done = run([PROGRAM, "hook", "--help"], b"")
    assert done.returncode == 0
    assert b"onFailure" in run_prepared(["hook", "install", "--dry-run"], b"").stdout
    assert b"Never 1" in done.stdout


# Other agents


AGENT_QUESTIONS = {
    "codex": {"hook_event_name": "PreToolUse", "session_id": "s", "cwd": "/tmp", "tool_name": "Bash", "tool_input": {"command": "ls #deny"}},
    "cursor": {"hook_event_name": "preToolUse", "conversation_id": "s", "cwd": "/tmp", "tool_name": "Shell", "tool_input": {"command": "ls #deny"}},
    "gemini-cli": {"hook_event_name": "BeforeTool", "session_id": "s", "cwd": "/tmp", "tool_name": "run_shell_command", "tool_input": {"command": "ls #deny"}},
    "copilot": {"sessionId": "s", "cwd": "/tmp", "toolName": "bash", "toolArgs": {"command": "ls #deny"}},
}  # fmt: skip


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("agent", AGENT_QUESTIONS)
def test_each_agent_is_answered_in_its_own_protocol_with_and_without_a_supervisor(served, agent):
    data = json.dumps(AGENT_QUESTIONS[agent]).encode()
    with_it = hook(data, "--agent", agent)
    alone = doubled_hook(data, "--agent", agent, CELLWALL_SUPERVISOR="off")
    assert (with_it.returncode, with_it.stdout) == (alone.returncode, alone.stdout)
    assert (with_it.returncode, b"deny" in with_it.stdout) == (0, True)
    wrong = hook(data, "--agent", "claude-code" if agent == "copilot" else "copilot")
    assert is_blocked(wrong)  # another agent's protocol is never guessed
    assert hook(b"\xff", "--agent", agent).returncode == 2


def test_an_agent_that_is_not_known_is_blocked(served):
    done = hook(question(), "--agent", "aider")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.requirement("GRD-4")
@pytest.mark.parametrize("words", [["--bad"], ["--config", "/nowhere.toml"]])
def test_a_result_for_copilot_is_withheld_by_an_answer(state_home, words):
    """There exit code 2 is a warning after a tool, and the result is shown."""
    told = {**AGENT_QUESTIONS["copilot"], "toolResult": {"resultType": "success", "textResultForLlm": "SECRET"}}  # fmt: skip
    done = hook(json.dumps(told).encode(), "--agent", "copilot", "--after", *words)
    shown = json.loads(done.stdout)["modifiedResult"]["textResultForLlm"]
    assert (done.returncode, shown.startswith(NOTE), "SECRET" in shown) == (0, True, False)
