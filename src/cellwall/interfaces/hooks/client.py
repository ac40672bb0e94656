"""`cellwall hook`: sends the agent's request to the supervisor and writes its answer.

Every failure is exit code 2, which blocks: exit code 1, a signal, or an empty answer with 0 would
let the tool through. After a tool has run, 2 blocks nothing: there an answer withholds the result.
Light on purpose: no `json`, no `socket`, no `typing`; the request is forwarded unparsed and the
answer arrives ready to be written.
"""

# ruff: noqa: PLC0415  # late imports: a hook answers in less time than these modules take to import

from __future__ import annotations

import _socket
import _thread
import os
import time
from _json import encode_basestring_ascii as quoted

from cellwall import __version__
from cellwall.core.home import SUPERVISOR_SOCKET, open_private, shaping

BLOCK = 2
MAX_BYTES = 8 * 1024 * 1024
"""Limit of a hook request."""
_ANSWER_WITHIN_S = 10.0
"""A local answer needs under a second of CPU time; a busy machine may take longer."""
_SUPERVISOR_WITHIN_S = 1.5
_STARTS_WITHIN_S = 1.5
_LOOK_EVERY_S = 0.02
_STARTED_LATELY_S = 10.0
_CHUNK_BYTES = 1 << 18
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MARK = b'{"hook":'
_WITH_VALUE = ("--agent", "--config", "--profile", "--policy")
_FLAGS = {"--dangerously-outside": "dangerously_outside", "--after": "after"}
_CLAUDE = frozenset({"claude-code", "claude"})
_PAST_FLAGS = frozenset({"--run-inside"})
"""Options of older installations whose behaviour is the default now."""
_WRITTEN_WITHIN_S = 2.0
_question_parts: list[bytes] = []
"""The request as far as it was read; a refusal needs it."""
_words: list[str] = []
"""The hook's arguments, for the same purpose."""
_turn = _thread.allocate_lock()
"""Held by the thread that answers and never released: there is only one answer."""


class Blocked(Exception):
    """The reason why there is no answer, for the agent."""


def answer(words: list[str]) -> int:
    """The exit code: 0 with an answer on standard output, else 2 with a reason."""
    began_ns = time.monotonic_ns()  # the supervisor measures how long the agent waits (OBS-1)
    _words[:] = words
    try:
        _check_descriptors()
        _thread.start_new_thread(_watch, ())
        question = _read_question()  # first: its event decides the form of a refusal
        options = _parse_options(words)
        code, out, err = _get_answer(options, question, began_ns)
        _turn.acquire()
        _write(2, err)
        _write(1, out)
        return code
    except Blocked as reason:
        return _block(str(reason))
    except BaseException:  # noqa: BLE001  # any failure must block the tool
        return _block("Cellwall failed; see `cellwall doctor`")


def _block(reason: str) -> int:
    if os.environ.get("CELLWALL_DEBUG") == "1":
        import traceback

        from cellwall.config.debugging import shows_traces

        if shows_traces():
            traceback.print_exc()
    is_first = _turn.acquire(True, _WRITTEN_WITHIN_S)
    try:
        _write(2, f"cellwall: {reason}\n".encode())
        return _withhold_result(reason) if is_first else BLOCK
    except BaseException:  # noqa: BLE001  # the exit code blocks by itself
        return BLOCK


def _withhold_result(reason: str) -> int:
    """Withhold a tool's result; 2 if the request is not about a result."""
    question = b"".join(_question_parts)
    if "--after" in _words:
        from cellwall.interfaces.hooks.withheld_results import NOTE, TEXT_ONLY

        _write(1, TEXT_ONLY.format(note=NOTE).encode() + b"\n")
        return 0
    if b"PostToolUse" not in question or not _is_claude(_words):
        return BLOCK  # for other agents exit code 2 withholds a result where that is possible
    from cellwall.interfaces.hooks.withheld_results import answer_to

    out = answer_to(question, reason)
    if out is None:
        return BLOCK
    _write(1, out)
    return 0


def _watch() -> None:
    """Deadline, in a thread: the agent gets a denial even if the main thread blocks."""
    time.sleep(_ANSWER_WITHIN_S)
    os._exit(_block(f"no answer within {_ANSWER_WITHIN_S:g} seconds, so the call is refused"))


def _check_descriptors() -> None:
    """With descriptor 1 closed, the next opened file would receive the answer."""
    try:
        os.fstat(0)
        os.fstat(1)
    except OSError:
        raise Blocked("standard input or output is closed") from None
    try:
        os.fstat(2)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != 2:
            os.dup2(nowhere, 2)


def _parse_options(words: list[str]) -> dict[str, str | bool | None]:
    options: dict[str, str | bool | None] = dict.fromkeys(_FLAGS.values(), False)
    options |= {name[2:]: None for name in _WITH_VALUE}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _FLAGS and not equals:
            options[_FLAGS[name]] = True
        elif name in _PAST_FLAGS and not equals:
            continue
        elif name in _WITH_VALUE:
            options[name[2:]] = value = value if equals else rest.pop(0) if rest else ""
            if not value or (not equals and value.startswith("-")):
                raise Blocked(f"`hook {name}` needs a value; see `cellwall hook --help`")
        else:
            raise Blocked(f"`hook` does not know {name[:40]!a}; see `cellwall hook --help`")
    for name in ("config", "policy"):
        place = options[name]
        if isinstance(place, str):
            options[name] = os.path.abspath(place)
    options["project"] = None
    if _is_claude(words):
        options["project"] = os.environ.get("CLAUDE_PROJECT_DIR") or None
    return options


def _is_claude(words: list[str]) -> bool:
    """Whether the command line selects Claude Code's protocol."""
    return not any(
        word.startswith("--agent") and (word.partition("=")[2] or following) not in _CLAUDE
        for word, following in zip(words, [*words[1:], ""], strict=False)
    )


def _read_question() -> bytes:
    size = 0
    while part := os.read(0, _CHUNK_BYTES):
        size += len(part)
        if size <= MAX_BYTES:
            _question_parts.append(part)
    # Read to the end anyway: a host whose write fails may treat that as no answer.
    if size > MAX_BYTES:
        raise Blocked(f"the hook request is larger than {MAX_BYTES} bytes, so it is refused")
    return b"".join(_question_parts)


def _get_answer(
    options: dict[str, str | bool | None], question: bytes, began_ns: int
) -> tuple[int, bytes, bytes]:
    """Exit code, output and errors, from the supervisor or from this process."""
    is_first = False
    if os.environ.get("CELLWALL_SUPERVISOR") != "off":
        folder, head = open_private(os.environ), _request(options, began_ns)
        is_first = folder is None
        if folder is not None and head is not None:
            line = _connect(folder)
            if line is None and not (is_first := _is_first(folder)):
                line = _wait_for_supervisor(folder)
            reply = None if line is None else _ask_supervisor(line, head, question)
            if reply is not None:
                return reply
    from cellwall.interfaces.hooks.answer import answer_alone

    return answer_alone(options, question, starts_supervisor=is_first)


def _connect(folder: int) -> _socket.socket | None:
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line.settimeout(_SUPERVISOR_WITHIN_S)
    try:
        # By descriptor: the path of a socket is limited to 107 bytes.
        line.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
    except OSError:
        line.close()
        return None
    return line


def _is_first(folder: int) -> bool:
    """Whether this process starts the supervisor: agents call many hooks at once."""
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        stamp = os.open("hook-start", flags, 0o600, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        info = os.fstat(stamp)
        if info.st_size and abs(time.time() - info.st_mtime) < _STARTED_LATELY_S:
            return False
        os.pwrite(stamp, b"1", 0)
    except OSError:
        return False
    finally:
        os.close(stamp)
    return True


def _wait_for_supervisor(folder: int) -> _socket.socket | None:
    """Wait for a supervisor that is starting: cheaper than a local answer in each process."""
    deadline = time.monotonic() + _STARTS_WITHIN_S
    line = None
    while line is None and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        line = _connect(folder)
    return line


def _ask_supervisor(
    line: _socket.socket, head: bytes, question: bytes
) -> tuple[int, bytes, bytes] | None:
    """The supervisor's answer; None if there is none or it is malformed."""
    try:
        sizes = len(head).to_bytes(4, "big") + len(question).to_bytes(4, "big")
        line.sendall(sizes + head + question)
        return _read_answer(line)
    except OSError:  # includes time-outs
        return None
    finally:
        line.close()


def _request(options: dict[str, str | bool | None], began_ns: int) -> bytes | None:
    """One JSON object, written without `json`; None if a value is not valid UTF-8."""
    shapes = ",".join(f"{quoted(k)}:{quoted(v)}" for k, v in shaping(os.environ).items())
    words = {True: "true", False: "false", None: "null"}
    typed = ",".join(
        f"{quoted(name)}:{quoted(value) if isinstance(value, str) else words[value]}"
        for name, value in options.items()
    )
    head = f'"do":"hook","version":{quoted(__version__)},"began_ns":{began_ns}'
    text = f'{{{head},"shaping":{{{shapes}}},"options":{{{typed}}}}}'
    return None if "\\ud" in text and _has_surrogate(options) else text.encode("ascii")


def _has_surrogate(options: dict[str, str | bool | None]) -> bool:
    try:
        for value in (*options.values(), *shaping(os.environ).values()):
            str(value).encode()
    except UnicodeEncodeError:
        return True
    return False


def _read_answer(line: _socket.socket) -> tuple[int, bytes, bytes] | None:
    """Read a frame: two lengths, a JSON marker, and `code out-length out err`."""
    deadline = time.monotonic() + _SUPERVISOR_WITHIN_S
    buffer = bytearray()
    needed = 8
    while len(buffer) < needed:
        line.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = line.recv(_CHUNK_BYTES)
        if not chunk:
            return None
        buffer += chunk
        if len(buffer) >= 8:
            needed = 8 + int.from_bytes(buffer[:4], "big") + int.from_bytes(buffer[4:8], "big")
            if needed > _MAX_ANSWER_BYTES:
                return None
    start = 8 + int.from_bytes(buffer[:4], "big")
    blob = bytes(buffer[start:])
    if not buffer.startswith(_MARK, 8) or len(blob) < 5 or blob[0] not in {0, BLOCK}:
        return None
    end = 5 + int.from_bytes(blob[1:5], "big")
    out = blob[5:end]
    if blob[0] == 0 and not (out.startswith(b"{") and out.endswith(b"}\n")):
        return None
    return blob[0], out, blob[end:]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
