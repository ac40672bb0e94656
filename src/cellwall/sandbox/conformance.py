"""The conformance suite: the properties that every backend must prove from inside its walls.

Each check is data: the property, the code, and the fields that its outcome must have. Checks
of walls and limits are in conformance.toml; checks of outcomes and of live sandboxes are here.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from cellwall.core.errors import CellwallError
from cellwall.core.ids import new_id
from cellwall.core.limits import Limits
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, Json, Principal, RunCode, RunCommand

RunAction = Callable[[Action], Awaitable[Outcome]]
"""Runs one action on the backend under test; a refusal is an outcome or a CellwallError."""

_BAIT = "CELLWALL_SELFCHECK_BAIT"
_GIVEN = "SELFCHECK"
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_LONG_BYTES = 1_000_000
_EVERY_BYTE = bytes(range(256)) * 1000

_PRELUDE = f"""
import json, os, socket
given, found = json.loads(os.environ["{_GIVEN}"]), []
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
# Another kernel than the host's (gVisor) need not show all that Linux does.
has_own_kernel = os.uname().release != given["kernel"]
missing = "0" if has_own_kernel else "1"
def tries(name, deed):
    try: deed()
    except (OSError, StopIteration): return
    found.append(name)
def makes(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCheck:
    """One property that every backend must have."""

    name: str
    requirement: str
    proves: str
    operation: RunCode | RunCommand
    expected: Mapping[str, object]
    """Fields of the outcome, and their required values."""
    before: RunCode | None = None
    """Run first, and must succeed: in another cell, or in the same one of a live sandbox."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    stdin: bytes | None = None
    lives_on: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredLack:
    """What one backend does not give, and what its check finds instead."""

    backend: str
    check: str
    expected: Mapping[str, object]
    words: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; `found` describes the failure. With `lack` it passed because it
    found what the backend declares not to give."""

    name: str
    requirement: str
    proves: str
    passed: bool
    found: str = ""
    lack: str = ""


async def run_conformance(
    run: RunAction,
    *,
    principal: Principal,
    session_id: str,
    limits: Limits | None = None,
    backend: str = "native",
) -> list[CheckResult]:
    """Run every check in order. `session_id` names a live sandbox that the checks may use up."""
    declared = {lack.check: lack for lack in lacks_of(backend)}
    with _bait() as given:
        env = {_GIVEN: json.dumps(given)}
        results = []
        for check in checks():
            action = Action(
                principal=principal,
                operation=check.operation,
                env=env,
                stdin=check.stdin,
                limits=replace(limits or Limits(), **check.limits),
                session_id=session_id if check.lives_on else None,
            )
            lack = declared.get(check.name)
            expected = check.expected if lack is None else lack.expected
            result = await _carry_out(run, replace(check, expected=expected), action)
            results.append(result if lack is None else replace(result, lack=lack.words))
        return results


async def _carry_out(run: RunAction, check: ConformanceCheck, action: Action) -> CheckResult:
    header = (check.name, check.requirement, check.proves)
    try:
        if check.before is not None:
            # If the first run failed, a missing leftover would prove nothing.
            first = replace(action, id=new_id("act"), operation=check.before, stdin=None)
            wrong = differences({"status": "ok"}, await run(first))
            if wrong:
                return CheckResult(*header, False, f"what runs before it: {'; '.join(wrong)}")
        wrong = differences(check.expected, await run(action))
    except CellwallError as error:
        wrong = [str(error)]
    return CheckResult(*header, not wrong, "; ".join(wrong))


def differences(expected: Mapping[str, object], outcome: Outcome) -> list[str]:
    """The differences from the expected outcome. An error of the sandbox is always one."""
    wrong = [] if outcome.error is None else [f"{outcome.error.message} [{outcome.error.code}]"]
    for name, value in expected.items():
        actual = getattr(outcome, name)
        if actual != value or isinstance(actual, bool) != isinstance(value, bool):  # 1 is no True
            wrong.append(f"{name} is {actual!r:.300}, not {value!r:.100}")
    return wrong


@contextmanager
def _bait() -> Iterator[dict[str, Json]]:
    """Files, sockets and variables of the host that no cell may find, though the host can."""
    token = secrets.token_hex(12)
    with ExitStack() as stack:
        files: list[Json] = []
        for folder in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~")):
            with suppress(OSError):
                name = f".selfcheck-{token}-"
                bait_file = stack.enter_context(
                    tempfile.NamedTemporaryFile(prefix=name, dir=folder)
                )
                files.append(bait_file.name)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"\0{token}")
        unix.listen()
        os.environ[_BAIT] = token
        stack.callback(os.environ.pop, _BAIT, None)
        yield {
            "token": token,
            "bait": _BAIT,
            "files": files,
            "port": tcp.getsockname()[1],
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
            "hostname": os.uname().nodename,
            "kernel": os.uname().release,
        }


@functools.cache
def _table() -> Mapping[str, Any]:
    table = resources.files("cellwall.sandbox").joinpath("conformance.toml").read_text("utf-8")
    return tomllib.loads(table)


def lacks_of(backend: str) -> tuple[DeclaredLack, ...]:
    """What this backend declares not to give."""
    declared = (DeclaredLack(**entry) for entry in _table()["lack"])
    return tuple(lack for lack in declared if lack.backend == backend)


@functools.cache
def checks() -> tuple[ConformanceCheck, ...]:
    """All checks, in order."""
    known = _table()
    return (
        *map(_wall, known["wall"]),
        *map(_limit, known["limit"]),
        *_OUTCOME_CHECKS,
        *_LIVE_CHECKS,
    )


def _wall(entry: Mapping[str, str]) -> ConformanceCheck:
    return ConformanceCheck(
        name=entry["name"],
        requirement=entry["requirement"],
        proves=entry["proves"],
        operation=_python(f"{_PRELUDE}{entry['code']}\nfound"),
        expected={"status": "ok", "value": []},
        before=_python(entry["before"]) if "before" in entry else None,
    )


def _limit(entry: Mapping[str, Any]) -> ConformanceCheck:
    name = entry["name"]
    return ConformanceCheck(
        name=f"limit {name}",
        requirement="LIM-2",
        proves=f"code that exceeds its {name} limit is ended, and the outcome names the limit",
        operation=_python(entry["code"]) if "code" in entry else _shell(entry["command"]),
        expected={"status": "limit", "limit": name},
        limits=entry["limits"],
    )


def _python(code: str) -> RunCode:
    return RunCode("python", code.encode())


def _shell(command: str) -> RunCommand:
    return RunCommand(("/bin/sh", "-c", command))


_OUTCOME_CHECKS = (
    ConformanceCheck(
        name="output and exit code",
        requirement="ERR-2",
        proves="every byte and the exit code are the program's own",
        operation=_shell(r"printf 'a\000b\377'; printf err >&2; exit 7"),
        expected={
            "status": "failed",
            "exit_code": 7,
            "stdout_bytes": b"a\0b\xff",
            "stderr_bytes": b"err",
        },
    ),
    ConformanceCheck(
        name="death by a signal",
        requirement="ERR-2",
        proves="a signal is reported as 128 and its number, and is no limit",
        operation=_shell("kill -SEGV $$"),
        expected={"status": "failed", "exit_code": 139, "limit": None},
    ),
    ConformanceCheck(
        name="standard input",
        requirement="LANG-1",
        proves="input arrives complete, and ends",
        operation=RunCommand(("/bin/cat",)),
        stdin=_EVERY_BYTE,
        expected={"status": "ok", "exit_code": 0, "stdout_bytes": _EVERY_BYTE},
    ),
    ConformanceCheck(
        name="long script",
        requirement="LANG-1",
        proves="a script that is longer than an argument of exec runs with its arguments and input",
        operation=RunCommand(
            ("/bin/sh", "-c", f"# {'x' * _LONG_BYTES}\necho $0 $1; cat", "zero", "one")
        ),
        stdin=b"in",
        expected={"status": "ok", "exit_code": 0, "stdout_bytes": b"zero one\nin"},
    ),
    ConformanceCheck(
        name="value",
        requirement="LANG-2",
        proves="the last expression is returned as plain data, and code can read its input",
        operation=_python("import sys\n[1, 2.5, None, True, {'é': sys.stdin.read()}]"),
        stdin=b"in",
        expected={"status": "ok", "exit_code": 0, "value": [1, 2.5, None, True, {"é": "in"}]},
    ),
    ConformanceCheck(
        name="failure of the code",
        requirement="ERR-2",
        proves="code that fails is an outcome, not an error of the sandbox",
        operation=_python("1 / 0"),
        expected={"status": "failed", "exit_code": 1, "value": None, "limit": None},
    ),
)
_LIVE_CHECKS = (
    ConformanceCheck(
        name="state is kept",
        requirement="LANG-2",
        proves="the variables of a live sandbox are kept",
        before=_python("x = 41"),
        operation=_python("x + 1"),
        lives_on=True,
        expected={"status": "ok", "value": 42, "state": "kept"},
    ),
    ConformanceCheck(
        name="a loss is reported",
        requirement="LANG-2",
        proves="the outcome reports that the variables of a live sandbox were lost",
        before=_python("x = 41"),
        operation=_python("import os; os._exit(3)"),
        lives_on=True,
        expected={"status": "failed", "exit_code": 3, "state": "lost"},
    ),
    ConformanceCheck(
        name="after a loss",
        requirement="LANG-2",
        proves="a live sandbox goes on after the loss, without the earlier variables",
        operation=_python("'x' in globals()"),
        lives_on=True,
        expected={"status": "ok", "value": False, "state": "kept"},
    ),
)
