"""`cellwall.run_code` and `run_command`: in the user's supervisor where one runs, else here.

The supervisor has the modules, the compiled rules and a warm template; a fresh process needs most
of a second for them. Only what is the same there is sent, see `_request`. Once this process has a
runtime of its own, it uses that one.
"""

# ruff: noqa: PLC0415  # late imports: a run in a warm supervisor takes less time than these modules

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cellwall.core.errors import SandboxFailed
from cellwall.core.forks import call_in_child
from cellwall.core.languages import canonical
from cellwall.interfaces.sdk.execution import Execution, argv_of, text_sink
from cellwall.interfaces.sdk.options import OneShot
from cellwall.interfaces.sdk.plain_options import plain_options
from cellwall.interfaces.supervisor.client import (
    SupervisorConnection,
    connect,
    is_switched_off,
    is_text,
    raise_for_error,
)
from cellwall.interfaces.supervisor.outcome_frames import decode_outcome
from cellwall.interfaces.supervisor.requests import (
    code_message,
    command_message,
    single_message,
)
from cellwall.interfaces.supervisor.surroundings import (
    may_inspect,
    named_places,
    surroundings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from cellwall.core.types import OutputSink

_MAX_DATA_BYTES = 64 * 1024 * 1024
_LISTS_HERE = ("packages", "registries", "secrets")
"""Builds with progress on standard error, and what depends on variables of this process or asks at
its terminal: the proxy for registries, the passphrase of the vault."""
_OBJECTS_HERE = ("tools", "on_question")
_CALLBACKS_HERE = ("on_stdout", "on_stderr")
_open: set[SupervisorConnection] = set()


def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """Run code once in a fresh sandbox; nothing is kept."""
    if _may_use_supervisor(options):
        text = _data(code, what="the code")
        done = _run_in_supervisor(code_message(canonical(language)), text, options)
        if done is not None:
            return done
    from cellwall.interfaces.sdk import one_shot
    from cellwall.interfaces.sdk.thread_loop import thread_loop

    one_shot.build_packages(options)
    return thread_loop.call(lambda: one_shot.run_code(code, language=language, **options))


def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """Run a command once in a fresh sandbox: a string by the shell, a list directly."""
    if _may_use_supervisor(options):
        words = argv_of(command)
        if all(isinstance(word, str) for word in words):
            done = _run_in_supervisor(command_message(words), b"", options)
            if done is not None:
                return done
    from cellwall.interfaces.sdk import one_shot
    from cellwall.interfaces.sdk.thread_loop import thread_loop

    one_shot.build_packages(options)
    return thread_loop.call(lambda: one_shot.run_command(command, **options))


def _may_use_supervisor(options: OneShot) -> bool:
    if _has_runtime() or _has_open_vault():
        return False
    lists = (options.get(name, ()) for name in _LISTS_HERE)
    is_plain = all(isinstance(each, list | tuple) and not each for each in lists)
    is_plain = is_plain and not any(map(options.get, _OBJECTS_HERE))
    return is_plain and not is_switched_off(os.environ)


def _has_runtime() -> bool:
    wiring = sys.modules.get("cellwall.runtime.wiring")
    # Another thread may be in the middle of the import.
    return wiring is not None and getattr(wiring, "has_shared", bool)()


def _has_open_vault() -> bool:
    """Whether this process knows values that output and records of its runs must not show."""
    leases = sys.modules.get("cellwall.runtime.secret_leases")
    return leases is not None and getattr(leases, "has_open_vault", bool)()


def _run_in_supervisor(
    operation: Mapping[str, Any], data: bytes, options: OneShot
) -> Execution | None:
    """None: the supervisor could not take the run, and nothing was run."""
    request = _request(operation, data, options)
    connection = None if request is None else connect(os.environ)
    if request is None or connection is None:
        return None
    sink = text_sink(options.get("on_stdout"), options.get("on_stderr"))
    _open.add(connection)
    try:
        # The service serves the socket in its own process: it would wait for itself.
        if connection.pid == os.getpid() or not may_inspect(connection.pid):
            return None
        if not connection.begin(*request):
            return None
        return _follow(connection, sink)
    except BaseException:  # Ctrl-C, or an error of a callback: the run ends before the caller knows
        connection.end()
        raise
    finally:
        _open.discard(connection)
        connection.close()


def _request(
    operation: Mapping[str, Any], data: bytes, options: OneShot
) -> tuple[dict[str, Any], bytes] | None:
    """The request and its data; None for what is not the same in the supervisor, or is no valid
    call: this process says so best."""
    began_ns = time.monotonic_ns()
    local = {"stdin", *_CALLBACKS_HERE, *_LISTS_HERE, *_OBJECTS_HERE}
    choices = plain_options({name: each for name, each in options.items() if name not in local})
    stdin = options.get("stdin")
    given = b"" if stdin is None else _data(stdin, what="standard input")
    if choices is None or len(given) + len(data) > _MAX_DATA_BYTES:
        return None
    # Errors show the name of the configuration file as the caller has written it.
    is_relative = any(
        not os.path.isabs(name)
        for name in (choices.get("config"), os.environ.get("CELLWALL_CONFIG"))
        if name
    )
    message, around = single_message(operation, began_ns=began_ns), surroundings(os.environ)
    if message is None or is_relative or not around:
        return None
    if "policy" in choices:
        choices["policy"] = os.path.join(message["cwd"], choices["policy"])
    message |= {
        "choices": choices,
        "surroundings": around,
        "places": named_places("", choices, message["shaping"]),
        "streams": any(options.get(name) is not None for name in _CALLBACKS_HERE),
        "stdin": None if stdin is None else len(given),
    }
    if not is_text(message):
        return None
    return message, given + data


def _data(value: bytes | str, *, what: str) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is str and value.isascii():
        return value.encode("ascii")
    from cellwall.core.text import to_bytes

    return to_bytes(value, what=what)


def _follow(connection: SupervisorConnection, sink: OutputSink | None) -> Execution:
    while (frame := connection.read()) is not None:
        answer, data = frame
        if "out" not in answer:
            raise_for_error(answer)
            return Execution.of(decode_outcome(answer["outcome"], data))
        if sink is not None:
            sink(answer["out"], data)
    raise SandboxFailed(
        "the supervisor ended during the run, and the run ended with it",
        hint="Run it again; without a supervisor it runs in this process.",
        code="CW-SUPERVISOR-GONE",
    )


def _forget_parent() -> None:
    """In a forked child: a copy of a connection would keep the parent's run alive."""
    for connection in _open:
        with suppress(OSError):
            connection.close()
    _open.clear()


call_in_child(_forget_parent)
