"""An agent with a shell answers its own question, trusts its own rules, grants itself a secret.

The agent is a process of its own that runs as the same user, has used the hook once, and may make
terminals, leave its session and clear its environment. The control is the same script without the
agent above it: there the same words do what they say (POL-13).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from cellwall.core.approvals import Answer, Question
from cellwall.runtime.approval_queue import ApprovalQueue, OpenQuestion
from cellwall.runtime.approver_key import ApproverKey
from interfaces.conftest import start_supervisor, stop_supervisor
from interfaces.test_cli_process import DEADLINE_S, PROGRAM, in_process, person
from terminals import in_thread
from unit.runtime.questions_for_tests import question_for

pytestmark = [
    pytest.mark.requirement("POL-13"),
    pytest.mark.only_on("cold", reason="nothing here runs in a cell"),
]

# What `expect` would do: starts a program on a terminal of its own, types the word that it shows.
EXPECT = """
import os, pty, re, sys
pid, ours = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
while True:
    try:
        part = os.read(ours, 65536)
    except OSError:
        break
    if not part:
        break
    seen += part
    os.write(2, part)
    for word in re.findall(rb"Type ([a-z]{5}) to do so", seen):
        os.write(ours, word + b"\\n")
        seen = b""
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# Our own code, with the checks of the side that answers left out.
FORGE = """
import sys
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.core.approvals import Answer, AnswerKind
from cellwall.core.types import Principal
queue = ApprovalQueue(sys.argv[1])
answer = Answer(kind=AnswerKind.ONCE, by=Principal("person", "cli"), via="terminal")
queue.answer(queue.read(sys.argv[2]), answer).until_taken()
"""
# As a tmux server, cron or D-Bus does: starts what any process of the user asks for.
DAEMON = """
import json, socket, subprocess, sys
asked = socket.socket(socket.AF_UNIX)
asked.bind(sys.argv[1])
asked.listen()
while True:
    client, _ = asked.accept()
    with client, client.makefile() as lines:
        subprocess.Popen(json.loads(lines.readline()), start_new_session=True)
"""
ASK_DAEMON = """
import json, socket, sys
daemon = socket.socket(socket.AF_UNIX)
daemon.connect(sys.argv[1])
daemon.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
daemon.recv(1)  # until the daemon has started the program
"""
# The same typist for many commands: Cellwall is imported once, and forked for each of them.
EXPECT_EACH = """
import atexit, gc, json, os, pty, re, sys
from cellwall.admin import policy_init, policy_trust, skills, vault
from cellwall.interfaces import entry
from cellwall.interfaces.cli import hook, policy_writing, vault_grants
from cellwall.runtime import wiring
gc.freeze()
codes = []
for words in json.loads(sys.argv[1]):
    pid, ours = pty.fork()
    if pid == 0:
        sys.argv = ["cellwall", *words]
        code = entry.main()
        atexit._run_exitfuncs()
        os._exit(code)  # an interpreter that frees all it has would copy every page of the fork
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        seen += part
        for word in re.findall(rb"Type ([a-z]{5}) to do so", seen):
            os.write(ours, word + b"\\n")
            seen = b""
    os.close(ours)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(codes))
"""
# It does not know the passphrase, and types what it guesses.
GUESS_EACH = EXPECT_EACH.replace(
    "        seen += part\n",
    """        seen += part
        if b"Passphrase of the approver" in seen:
            os.write(ours, b"a guess of the agent\\n")
            seen = b""
""",
)
TWICE = """
import os, sys
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
AGENT = """
import subprocess, sys
told = b'{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/","tool_name":"Bash",'
told += b'"tool_input":{"command":"true"}}'
if sys.argv[1] == "hook":
    done = subprocess.run([sys.argv[2], "hook"], input=told, stdout=subprocess.DEVNULL)
    assert done.returncode in (0, 2), done
if sys.argv[1] == "installed":  # as the settings of the agent say it
    done = subprocess.run(sys.argv[2], shell=True, input=told, stdout=subprocess.DEVNULL)
    assert done.returncode in (0, 2), done
sys.exit(subprocess.run(sys.argv[3:], stdin=subprocess.DEVNULL).returncode)
"""


@pytest.fixture(autouse=True)
def no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook would start one for the next hook; the process of the agent is marked before that."""
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "off")


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """An interpreter's script by the name of an agent, as most agents are."""
    script = tmp_path / "bin" / "claude"
    script.parent.mkdir()
    script.write_text(AGENT)
    return [sys.executable, str(script), "hook", PROGRAM]


@pytest.fixture
def queue(state_home: str) -> ApprovalQueue:
    return ApprovalQueue(state_home)


def run(words: Sequence[str], **changes: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=4 * DEADLINE_S,
        check=False,
        env={**os.environ, **changes},
    )


def codes_of(words: Sequence[str], attacks: Sequence[Sequence[str]], place: Path) -> list[int]:
    """How each of them ends; all are started by the same agent, or without one."""
    script = place / "attacks.sh"
    lines = [f"{shlex.join(attack)}; echo $? >>{place}/codes" for attack in attacks]
    script.write_text("".join(f"{line}\n" for line in lines))
    (place / "codes").unlink(missing_ok=True)
    done = run([*words, "sh", str(script)])
    codes = [int(line) for line in (place / "codes").read_text().split()]
    assert len(codes) == len(attacks), done
    return codes


def answer_to(waiting: OpenQuestion) -> Answer:
    return anyio.run(waiting.answered)


@contextmanager
def asked(queue: ApprovalQueue, question: Question) -> Iterator[list[Answer]]:
    """Somebody waits for an answer meanwhile; at the end the list holds it."""

    def ask() -> Answer:
        with queue.waiting(question) as waiting:
            return answer_to(waiting)

    with in_thread(ask) as heard:
        while not queue.list_waiting():
            time.sleep(0.01)
        yield heard


def spellings(question: Question, place: Path) -> list[list[str]]:
    """The program in other words, each on a terminal that the agent makes."""
    link, copy = place / "harmless", place / "copied"
    link.symlink_to(PROGRAM)
    shutil.copy(PROGRAM, copy)
    allow = ["approvals", "allow", question.id]
    module = [sys.executable, "-I", "-m", "cellwall.interfaces.entry", *allow]
    code = f"from cellwall.interfaces.cli.main import main; raise SystemExit(main({allow!r}))"
    home = f"CELLWALL_HOME={os.environ['CELLWALL_HOME']}"
    started = [
        [PROGRAM, *allow],
        [str(link), *allow],
        [str(copy), *allow],
        module,
        [sys.executable, "-c", code],
        ["sh", "-c", shlex.join([PROGRAM, *allow])],
        ["env", "-i", home, *module],
        ["setsid", "--wait", PROGRAM, *allow],
    ]
    return [[sys.executable, "-c", EXPECT, *words] for words in started]


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.long)])
def test_no_spelling_of_the_program_lets_an_agent_answer(agent, queue, tmp_path, every):
    question = question_for(timeout_s=600)
    with asked(queue, question) as heard:
        attacks = spellings(question, tmp_path)[::every]
        # The first one on its own, too: without a terminal, and with one of script(1).
        attacks += [[PROGRAM, "approvals", "allow", question.id]]
        if shutil.which("script"):
            line = shlex.join([PROGRAM, "approvals", "allow", question.id])
            attacks += [["script", "-qec", line, "/dev/null"], ["sh", "-c", f"yes | {line}"]]
        codes = codes_of(agent, attacks, tmp_path)
        assert all(code in {1, 125} for code in codes), codes
        assert queue.list_waiting() == [question]
        # The control: the same script where no agent stands above it.
        assert codes_of([], attacks[:1], tmp_path) == [0]
    assert heard[0].allows


def test_an_agent_that_leaves_session_parents_and_environment_is_known_all_the_same(
    agent, queue, tmp_path
):
    """Nothing but the mark tells: the parent is the first process, the environment is empty."""
    home = f"CELLWALL_HOME={os.environ['CELLWALL_HOME']}"
    question = question_for(timeout_s=600)
    words = ["env", home, PROGRAM, "approvals", "allow", question.id]
    attack = [sys.executable, "-c", EXPECT, *words]
    ways = (
        ["setsid", "-f", "env", "-i"],
        ["env", "-i", "setsid", "-f", "setsid", "-f"],
        ["env", "-i", sys.executable, "-c", TWICE],
        # The limit that is the mark can be lowered by everybody, and stays a mark.
        ["prlimit", "--rttime=1000000:1000000", "setsid", "-f", "env", "-i"],
    )
    with asked(queue, question) as heard:
        assert detached(agent, ways, attack, tmp_path / "attacks") == [125] * len(ways)
        assert queue.list_waiting() == [question]
        # The control: an agent that was never marked is believed. All else is gone by then.
        unmarked = [*agent[:2], "no-hook", PROGRAM]
        assert detached(unmarked, ways[1:2], attack, tmp_path / "control") == [0]
    assert heard[0].allows


@pytest.mark.parametrize("name", ["claude-code", "codex", "cursor", "gemini-cli", "copilot"])
@pytest.mark.sample(2)
def test_the_command_that_is_installed_marks_the_agent(name, agent, tmp_path, monkeypatch):
    """Shells and `timeout` stand between the agent and the hook there."""
    monkeypatch.chdir(tmp_path)
    told = in_process("hook", "install", "--agent", name, "--dry-run", "--json")
    text = json.loads(told.stdout)["text"]
    command = next(each for each in _texts_in(json.loads(text)) if "exit 2" in each)
    assert mark_below([*agent[:2], "installed", command]) != b"unlimited"
    control = mark_below([*agent[:2], "no-hook", ""])
    assert control == b"unlimited", "an agent that never calls a hook has no mark"


def test_a_hook_that_a_supervisor_answers_marks_the_agent(agent, monkeypatch):
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "on")
    process = start_supervisor({})
    try:
        assert mark_below(agent) != b"unlimited"
        assert mark_below([*agent[:2], "no-hook", PROGRAM]) == b"unlimited"  # the control
    finally:
        stop_supervisor(process, {})


def mark_below(agent: Sequence[str]) -> bytes:
    """The limit that is the mark, in a process that the agent starts."""
    look = "grep 'Max realtime timeout' /proc/self/limits"
    return run([*agent, "sh", "-c", look]).stdout.split()[4]


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)


def detached(
    agent: Sequence[str], ways: Sequence[Sequence[str]], attack: Sequence[str], place: Path
) -> list[int]:
    """How processes end that nobody waits for; one agent starts one in each of the ways."""
    place.mkdir()
    ends, lines = [place / f"{number}" for number in range(len(ways))], []
    for away, end in zip(ways, ends, strict=True):
        script = f"{shlex.join(attack)} >{end}.out 2>&1; echo $? >{end}.draft; mv {end}.draft {end}"
        # The next one begins when this one has ended: only one process holds the answer at a time.
        lines += [
            shlex.join([*away, "sh", "-c", script]),
            f"until [ -e {end} ]; do sleep 0.02; done",
        ]
    subprocess.run([*agent, "sh", "-c", "\n".join(lines)], timeout=4 * DEADLINE_S, check=False)
    return [int(end.read_text()) for end in ends]


def test_an_answer_that_an_agent_writes_by_itself_is_no_answer(agent, queue, state_home):
    question = question_for(timeout_s=600)
    forged = [sys.executable, "-c", FORGE, state_home, question.id]
    on_terminal = [sys.executable, "-c", EXPECT, *forged]
    with queue.waiting(question) as waiting:
        with in_thread(lambda: answer_to(waiting)) as heard:
            process = subprocess.Popen([*agent, *on_terminal], stdin=subprocess.DEVNULL)
        assert not heard[0].allows
        assert "was started by an agent" in heard[0].reason
    assert process.wait(DEADLINE_S) == 0  # it had written its file, and believes that it counts


def test_an_answer_from_a_process_without_a_terminal_is_no_answer(queue, state_home):
    question = question_for(timeout_s=600)
    with queue.waiting(question) as waiting:
        with in_thread(lambda: answer_to(waiting)) as heard:
            words = [sys.executable, "-c", FORGE, state_home, question.id]
            process = subprocess.Popen(words, start_new_session=True)
        assert "has no terminal" in heard[0].reason
    assert process.wait(DEADLINE_S) == 0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[list[str]]:
    """How a process asks a daemon that runs already to start a program."""
    place = tmp_path / "daemon"
    process = subprocess.Popen([sys.executable, "-c", DAEMON, str(place)])
    while not place.exists():
        time.sleep(0.01)
    try:
        yield [sys.executable, "-c", ASK_DAEMON, str(place)]
    finally:
        process.kill()
        process.wait()


def test_with_a_key_a_process_that_another_daemon_starts_cannot_answer(agent, daemon, state_home):
    """Such a process has a terminal, no mark of an agent, and the daemon as its parent."""

    def answer_by_daemon(queue: ApprovalQueue) -> Answer:
        question = question_for(timeout_s=600)
        forged = [sys.executable, "-c", FORGE, state_home, question.id]
        with queue.waiting(question) as waiting, in_thread(lambda: answer_to(waiting)) as heard:
            asked = run([*agent, *daemon, sys.executable, "-c", EXPECT, *forged])
            assert asked.returncode == 0, asked
        return heard[0]

    key = ApproverKey.make(bytearray(b"known to the person alone"))
    refused = answer_by_daemon(ApprovalQueue(state_home, key=key))
    assert not refused.allows
    assert "the approver's signature is missing or wrong" in refused.reason
    # The control: without a key the same answer counts, as docs/limitations.md says.
    assert answer_by_daemon(ApprovalQueue(state_home)).allows


def test_a_file_that_nobody_stands_behind_is_no_answer(queue, state_home):
    """Written by any process of the user, which is gone: the kernel names nobody."""
    question = question_for(timeout_s=600)
    said = {"answer": "once", "by": "me", "interface": "cli", "via": "terminal", "rule": "",
            "reason": "", "question": question.id, "shown_sha256": question.shown_sha256,
            "at_s": time.time()}  # fmt: skip
    with queue.waiting(question) as waiting:
        draft = Path(state_home, "approvals", ".draft")
        draft.touch(0o600)
        draft.write_text(json.dumps(said))
        os.link(draft, Path(state_home, "approvals", f"{question.id}.answer"))
        assert "no process holds the answer" in answer_to(waiting).reason
        # The control: the very same file is a yes for who asks nobody about it.
    trusting = ApprovalQueue(state_home, check_process=lambda _: None)
    with trusting.waiting(question) as waiting:
        assert answer_to(waiting).allows


def test_what_only_a_person_may_do_an_agent_cannot(agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cellwall").mkdir()
    (tmp_path / ".cellwall" / "policy.toml").write_text('[permissions]\nallow = ["Bash(*)"]\n')
    for name in ("skill", "signed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text("Say hello.\n")
    assert in_process("skills", "sign", "signed").returncode == 0
    assert in_process("hook", "install").returncode == 0
    assert in_process("vault", "init", "--key", "file").returncode == 0
    assert in_process("vault", "set", "TOKEN", stdin=b"value").returncode == 0
    proposal = json.loads(in_process("skills", "propose", "skill", "--json").stdout)["id"]
    commands = [
        ["policy", "trust"],
        ["vault", "grant", "TOKEN", "--host", "example.com"],
        ["skills", "sign", "skill"],
        ["skills", "add", "signed"],
        ["skills", "approve", proposal],
        ["hook", "uninstall"],
        ["policy", "init", "--force"],
    ]
    on_terminals = [sys.executable, "-c", EXPECT_EACH, json.dumps(commands)]
    for above, code in ((agent, 125), ([], 0)):
        assert json.loads(run([*above, *on_terminals]).stdout) == [code] * len(commands)


def test_with_a_key_what_only_a_person_may_do_needs_the_passphrase(tmp_path, monkeypatch):
    """A process with a terminal and no mark of an agent: one that another daemon starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cellwall").mkdir()
    (tmp_path / ".cellwall" / "policy.toml").write_text('[permissions]\nallow = ["Bash(*)"]\n')
    for name in ("skill", "signed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text("Say hello.\n")
    (tmp_path / "CLAUDE.md").write_text("Be kind.\n")
    assert in_process("skills", "sign", "signed").returncode == 0
    assert in_process("hook", "install").returncode == 0
    assert in_process("vault", "init", "--key", "file").returncode == 0
    assert in_process("vault", "set", "TOKEN", stdin=b"value").returncode == 0
    proposal = json.loads(in_process("skills", "propose", "skill", "--json").stdout)["id"]
    commands = [
        ["policy", "trust"],
        ["vault", "grant", "TOKEN", "--host", "example.com"],
        ["skills", "sign", "skill"],
        ["skills", "sign", "--instructions", "."],
        ["skills", "approve", proposal],
        ["hook", "install", "--dangerously-outside"],
        ["hook", "uninstall"],
        ["policy", "init", "--force"],
    ]
    config = tmp_path / "config.toml"
    key = ApproverKey.make(bytearray(b"known to the person alone"))
    config.write_text(f'[approvals]\nkey = "{key}"\n[vault]\nkey = "file"\n')
    guesses = [sys.executable, "-c", GUESS_EACH, json.dumps([*commands, ["approvals", "sign"]])]
    refused = run(guesses, CELLWALL_CONFIG=str(config))
    assert json.loads(refused.stdout) == [125] * len(commands) + [0], refused
    without = [sys.executable, "-c", GUESS_EACH, json.dumps(commands)]
    assert json.loads(run(without).stdout) == [0] * len(commands)  # the control
    # What was granted without the key does not count with it, until the person signs it.
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    waiting = json.loads(in_process("approvals", "grants", "--json").stdout)
    assert waiting["signed"] == []
    assert [each["kind"] for each in waiting["waiting"]] == ["policy", "skill", "secret"]
    signs = [sys.executable, "-c", GUESS_EACH, json.dumps([["approvals", "sign"]])]
    assert json.loads(run(signs).stdout) == [125]
    known = GUESS_EACH.replace("a guess of the agent", "known to the person alone")
    signs = [sys.executable, "-c", known, json.dumps([["approvals", "sign"]])]
    assert json.loads(run(signs).stdout) == [0]
    done = json.loads(in_process("approvals", "grants", "--json").stdout)
    kinds = sorted(each["kind"] for each in done["signed"])
    assert (kinds, done["waiting"]) == (["policy", "project", "secret", "skill"], [])


def test_a_shell_with_the_variables_of_an_agent_is_no_persons(queue):
    question = question_for(timeout_s=600)
    with queue.waiting(question):
        for variable in ("CLAUDECODE", "GEMINI_CLI", "CURSOR_AGENT", "CODEX_SANDBOX"):
            refused = person("approvals", "allow", question.id, **{variable: "1"})
            assert (refused.returncode, b"[CW-AGENT-SHELL]" in refused.stderr) == (125, True)
        # Taken out of its own environment, it is in that of the shell above.
        line = (
            f"env -u CLAUDECODE {shlex.join([PROGRAM, 'approvals', 'allow', question.id])}; exit $?"
        )
        words = [sys.executable, "-c", EXPECT, "sh", "-c", line]
        assert run(words, CLAUDECODE="1").returncode == 125


def test_the_prompt_of_a_run_is_not_answered_by_an_agent(agent, tmp_path):
    """`cellwall run` asks at its own terminal: one that the agent has made is none."""
    policy, config = tmp_path / "rules.toml", tmp_path / "cellwall.toml"
    policy.write_text('[permissions]\nallow = ["Bash(ls *)"]\nask = ["Bash(echo *)"]\n')
    config.write_text("[approvals]\ntimeout_s = 2\n")
    words = ["run", "--config", str(config), "--policy", str(policy), "--", "echo", "it-ran"]
    typist = EXPECT.replace("Type ([a-z]{5}) to do so", r"N\]: ").replace("word + b", 'b"y" + b')
    assert typist != EXPECT
    on_terminal = [sys.executable, "-c", typist, PROGRAM, *words]
    assert run([*agent, *on_terminal]).returncode == 125
    config.write_text("[approvals]\ntimeout_s = 60\n")
    assert run(on_terminal).returncode == 0
