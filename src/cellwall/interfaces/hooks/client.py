"""`cellwall hook`: takes the agent's question to the supervisor and brings its answer back.

Every way out of here that is no answer is exit code 2, which blocks: 1, a signal, or an empty
answer with 0 would let the tool through. After a tool has run, 2 blocks nothing: there it is an
answer that takes the result away. Light on purpose: no `json`, no `socket`, no `typing`; the
question is passed on unread and the answer comes ready to be written.
"""

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
"""Of a question; more is no tool call that anybody meant."""
_ANSWER_WITHIN_S = 10.0
"""Alone it takes under a second of processor, which a busy machine may be long in giving."""
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
"""Of older installations; what they ask for is the default now."""
_WRITTEN_WITHIN_S = 2.0
_question_parts: list[bytes] = []
"""The question, as far as it was read, for whoever has to refuse it."""
_words: list[str] = []
"""What the hook was started with, for the same."""
_turn = _thread.allocate_lock()
"""Of the thread that answers; never given back, since one answer is all there may be."""


class Blocked(Exception):
    """Why there is no answer; a sentence for the agent."""


def answer(words: list[str]) -> int:
    """The exit code: 0 with an answer on standard output, else 2 with a reason."""
    _words[:] = words
    try:
        _check_descriptors()
        _thread.start_new_thread(_watch, ())
        question = _read_question()  # first: it says what a refusal of the rest has to look like
        options = _parse_options(words)
        code, out, err = _get_answer(options, question)
        _turn.acquire()
        _write(2, err)
        _write(1, out)
        return code
    except Blocked as reason:
        return _block(str(reason))
    except BaseException:  # noqa: BLE001  # whatever it is, the tool must not be used
        return _block("Cellwall failed; see `cellwall doctor`")


def _block(reason: str) -> int:
    if os.environ.get("CELLWALL_DEBUG") == "1":
        import traceback  # noqa: PLC0415  # for whoever asks

        from cellwall.config.debugging import shows_traces  # noqa: PLC0415  # as above

        if shows_traces():
            traceback.print_exc()
    is_first = _turn.acquire(True, _WRITTEN_WITHIN_S)
    try:
        _write(2, f"cellwall: {reason}\n".encode())
        return _withhold_result(reason) if is_first else BLOCK
    except BaseException:  # noqa: BLE001  # the exit code says it, too
        return BLOCK


def _withhold_result(reason: str) -> int:
    """Takes away what a tool has brought back; 2 if the question is about anything else."""
    question = b"".join(_question_parts)
    if "--after" in _words:
        from cellwall.interfaces.hooks.withheld_results import NOTE, TEXT_ONLY  # noqa: PLC0415

        _write(1, TEXT_ONLY.format(note=NOTE).encode() + b"\n")
        return 0
    if b"PostToolUse" not in question or not _is_claude(_words):
        return BLOCK  # which withholds a result of the other agents, as far as anything does
    from cellwall.interfaces.hooks.withheld_results import answer_to  # noqa: PLC0415  # seldom needed

    out = answer_to(question, reason)
    if out is None:
        return BLOCK
    _write(1, out)
    return 0


def _watch() -> None:
    """In a thread: whatever the other one waits for, the agent gets an end, and it is a no."""
    time.sleep(_ANSWER_WITHIN_S)
    os._exit(_block(f"no answer within {_ANSWER_WITHIN_S:g} seconds, so it is refused"))


def _check_descriptors() -> None:
    """Where 1 is closed, the next file opened would get the answer, and the agent nothing."""
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
    """Whether the question is in Claude Code's protocol, as far as the command line tells."""
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
    # Read to its end all the same: a host that cannot write all of it may take that for no answer.
    if size > MAX_BYTES:
        raise Blocked(f"the question is larger than {MAX_BYTES} bytes, so it is refused")
    return b"".join(_question_parts)


def _get_answer(options: dict[str, str | bool | None], question: bytes) -> tuple[int, bytes, bytes]:
    """By the supervisor, or by this process; exit code, output, errors."""
    is_first = False
    if os.environ.get("CELLWALL_SUPERVISOR") != "off":
        folder, head = open_private(os.environ), _request(options)
        is_first = folder is None
        if folder is not None and head is not None:
            line = _connect(folder)
            if line is None and not (is_first := _is_first(folder)):
                line = _wait_for_supervisor(folder)
            told = None if line is None else _ask_supervisor(line, head, question)
            if told is not None:
                return told
    from cellwall.interfaces.hooks.answer import answer_alone  # noqa: PLC0415  # heavy

    return answer_alone(options, question, starts_supervisor=is_first)


def _connect(folder: int) -> _socket.socket | None:
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line.settimeout(_SUPERVISOR_WITHIN_S)
    try:
        # By descriptor: a socket's name may have 107 bytes only, a folder's more.
        line.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
    except OSError:
        line.close()
        return None
    return line


def _is_first(folder: int) -> bool:
    """Whether nobody has begun to start a supervisor: agents use many tools at once."""
    import fcntl  # noqa: PLC0415  # seldom needed

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
    """Cheaper for all than to judge in many processes what one is about to judge for them."""
    deadline = time.monotonic() + _STARTS_WITHIN_S
    line = None
    while line is None and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        line = _connect(folder)
    return line


def _ask_supervisor(
    line: _socket.socket, head: bytes, question: bytes
) -> tuple[int, bytes, bytes] | None:
    """The supervisor's answer; None if there is none, or none that can be understood."""
    try:
        sizes = len(head).to_bytes(4, "big") + len(question).to_bytes(4, "big")
        line.sendall(sizes + head + question)
        return _read_answer(line)
    except OSError:  # a time-out is one, too
        return None
    finally:
        line.close()


def _request(options: dict[str, str | bool | None]) -> bytes | None:
    """One JSON object, written by hand; None if it holds what is no text and no frame carries."""
    shapes = ",".join(f"{quoted(k)}:{quoted(v)}" for k, v in shaping(os.environ).items())
    words = {True: "true", False: "false", None: "null"}
    typed = ",".join(
        f"{quoted(name)}:{quoted(value) if isinstance(value, str) else words[value]}"
        for name, value in options.items()
    )
    head = f'"do":"hook","version":{quoted(__version__)}'
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
    """A frame: two lengths, JSON that only says what it is, and `code out-length out err`."""
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
