"""Distinguishes an agent's processes from a person's (POL-13) by facts of the kernel.

An agent's shell runs as the same user as the person, can open pseudo-terminals and can clear its
environment. Three facts are checked, of a process, its ancestors, its session leader and the
process at the other side of its terminal:

   (1) the mark: a hard resource limit that `mark_agent` lowers on the agent's own process. Every
       child inherits it, whatever `setsid`, `env -i`, a double fork or a new terminal do, and only
       CAP_SYS_RESOURCE can raise it again (setrlimit(2)). Any limit below that of PID 1 counts, so
       lowering it further does not remove the mark.
   (2) the name of an agent's program
   (3) variables that agents set for their shells

Not covered: a process that another daemon of the user starts on the agent's behalf (systemd-run,
tmux, cron) is no descendant of the agent. docs/limitations.md names them, and the built-in rules
deny or ask about them.
"""

from __future__ import annotations

import os
import resource
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.core.errors import Denied

_RTTIME = 15
"""RLIMIT_RTTIME, which Python does not name: CPU microseconds that a process of a real-time class
may use without blocking. Unlimited by default, and no tool sets it."""
_MAX_MARKED_LIMIT = 1 << 62
"""The marked limit where there was none: no real-time process ever reaches it."""
_MAX_ANCESTORS = 64
_MAX_ENVIRONMENT_BYTES = 1 << 20
_INTERPRETERS = ("node", "bun", "deno", "python", "ruby")
_PSEUDO_TERMINALS = range(136, 144)
_MASTERS = frozenset(("/dev/ptmx", "/dev/pts/ptmx"))


@dataclass(frozen=True, slots=True)
class KnownAgents:
    """agents.toml."""

    programs: frozenset[str]
    packages: tuple[str, ...]
    variables: frozenset[str]


@cache
def known_agents() -> KnownAgents:
    """The parsed agents.toml."""
    text = resources.files("cellwall.runtime").joinpath("agents.toml").read_text("utf-8")
    known = tomllib.loads(text)
    return KnownAgents(
        frozenset(known["programs"]), tuple(known["packages"]), frozenset(known["variables"])
    )


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One line of /proc/PID/stat, and the command line."""

    pid: int
    name: str
    parent: int
    session: int
    terminal: int
    """The device number of the controlling terminal; 0: none."""
    words: tuple[str, ...]


def read_process(pid: int) -> HostProcess | None:
    """None: no such process, or /proc hides it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(1 << 16)
    except (OSError, ValueError):
        return None
    fields = rest.split()
    words = tuple(word.decode("utf-8", "replace") for word in line.split(b"\0")[:-1])
    name = head.partition("(")[2]
    return HostProcess(pid, name, int(fields[1]), int(fields[3]), int(fields[4]), words)


def ancestors(pid: int) -> Iterator[HostProcess]:
    """The process itself first, PID 1 last."""
    for _ in range(_MAX_ANCESTORS):
        process = read_process(pid)
        if process is None:
            return
        yield process
        if process.parent <= 0:
            return
        pid = process.parent


def mark_agent(pid: int) -> bool:
    """Mark the agent that has started this process; False if there is none.

    The nearest ancestor that is an agent by its name: all processes between it and this one, such
    as the shell and the `timeout` of the hook's command, are the agent's own.
    """
    for process in list(ancestors(pid))[1:]:
        if _is_agent(process):
            return _mark(process.pid)
    return False


def _mark(pid: int) -> bool:
    try:
        soft, hard = resource.prlimit(pid, _RTTIME)
        if _is_mark(hard):
            return True
        lowered = _MAX_MARKED_LIMIT if hard == resource.RLIM_INFINITY else max(0, hard - 1)
        unlimited = soft == resource.RLIM_INFINITY
        resource.prlimit(pid, _RTTIME, (lowered if unlimited else min(soft, lowered), lowered))
    except (OSError, ValueError):
        return False
    return True


def _is_mark(hard: int) -> bool:
    """A limit below that of PID 1, which an agent cannot change. PID 1 usually has none, so every
    limit is a mark. No tool sets this limit, and PAM has no setting for it."""
    if hard == resource.RLIM_INFINITY:
        return False
    usual = _hard_limit(1)
    return usual is None or usual == resource.RLIM_INFINITY or hard < usual


def _hard_limit(pid: int) -> int | None:
    """The hard limit of a process, readable by all users. None: /proc hides the process."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/limits", encoding="ascii") as file:
        for line in file:
            if line.startswith("Max realtime timeout"):
                hard = line.split()[4]
                return int(hard) if hard.isdigit() else resource.RLIM_INFINITY
    return None


def is_marked(pid: int) -> bool:
    """Whether the process bears the mark of an agent."""
    hard = _hard_limit(pid)
    return hard is not None and _is_mark(hard)


def find_agent(pid: int) -> str | None:
    """Why this process counts as an agent's; None: no sign of one."""
    seen: set[int] = set()
    for start in (pid, *_connected_processes(pid)):
        for process in ancestors(start):
            if process.pid in seen:
                break
            seen.add(process.pid)
            if is_marked(process.pid):
                return f"process {process.pid} ({process.name}) was started by an agent"
            if _is_agent(process):
                return f"process {process.pid} ({process.name}) is an agent"
            variable = _agent_variable(process.pid)
            if variable is not None:
                name = f"process {process.pid} ({process.name})"
                return f"{name} has the variable {variable}, which agents set for their shells"
    return None


def objection_to(pid: int | None) -> str | None:
    """Why an answer of this process is not a person's; None: no objection."""
    process = None if pid is None else read_process(pid)
    if process is None:
        return "no process holds the answer"
    if process.terminal == 0:
        return "the answering process has no terminal"
    return find_agent(process.pid)


def refuse_agents(what: str) -> None:
    """Raise `Denied` if this process is an agent's; for all that only a person may do."""
    why = find_agent(os.getpid())
    if why is not None:
        raise Denied(
            f"{what} needs a person, and this is an agent's shell: {why}",
            hint="Ask a person to do it, in a terminal that no agent has started.",
            code="CW-AGENT-SHELL",
        )


def _is_agent(process: HostProcess) -> bool:
    known = known_agents()
    names = {process.name, *(os.path.basename(word) for word in process.words[:1])}
    program = os.path.basename(process.words[0]) if process.words else process.name
    scripts = [word for word in process.words[1:] if not word.startswith("-")][:1]
    if program.startswith(_INTERPRETERS):
        names |= {os.path.basename(word) for word in scripts}
        if any(part in word for word in scripts for part in known.packages):
            return True
    return not names.isdisjoint(known.programs)


def _agent_variable(pid: int) -> str | None:
    if pid == os.getpid():
        names = set(os.environ)
    else:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                text = file.read(_MAX_ENVIRONMENT_BYTES).decode("utf-8", "replace")
        except OSError:  # another user's process, or not dumpable
            return None
        names = {entry.partition("=")[0] for entry in text.split("\0")}
    return min(names & known_agents().variables, default=None)


def _connected_processes(pid: int) -> Iterator[int]:
    """The session leader, and the processes at the other side of the terminal."""
    process = read_process(pid)
    if process is None:
        return
    if process.session > 0:
        yield process.session
    major = process.terminal >> 8 & 0xFFF
    minor = process.terminal & 0xFF | process.terminal >> 12 & 0xFFF00
    if process.terminal and major in _PSEUDO_TERMINALS:
        yield from _terminal_holders((major - _PSEUDO_TERMINALS.start) * 256 + minor)


def _terminal_holders(index: int) -> Iterator[int]:
    """Processes with the master of this pseudo-terminal open, as far as /proc shows them."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            for number in os.listdir(f"/proc/{entry}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{entry}/fd/{number}") in _MASTERS and _has_index(
                        f"/proc/{entry}/fdinfo/{number}", index
                    ):
                        yield int(entry)
                        break


def _has_index(path: str, index: int) -> bool:
    with open(path, encoding="ascii", errors="replace") as file:
        return any(line.split() == ["tty-index:", str(index)] for line in file)
