"""The stage on which every attack program plays; its text is put before the program's own.

The same text runs inside a cell and, as the positive control, outside of one. Each attack is a
function in a process of its own. What it returns is what it got; an OSError or `Stopped` means that
it was refused; `Lacking` means that this host has no such thing to attack. Anything else is a
broken attack, which must never pass for a refused one.

The control succeeds, with all the rights of the user who runs it. So an attack names one target,
made by its run or lying in throwaway namespaces; never "all", a user, a group or the host's own.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
import time
import zlib

ATTACKS = {}
GIVEN = json.loads(os.environ.get("ATTACK", "{}"))
LIBC = ctypes.CDLL(None, use_errno=True)
NOWHERE = os.open("/dev/null", os.O_RDWR)  # now: an attack of a control may remove the name
_PATIENCE_S = 10
_GROUP = 24


class Stopped(Exception):
    """The attack did not get what it wanted, though no call failed."""


class Lacking(Exception):
    """There is nothing to attack: the kernel or the host lacks it."""


def attack(name):
    def register(function):
        assert name not in ATTACKS, name
        ATTACKS[name] = function
        return function

    return register


def called(result):
    """The result of a libc call, or its OSError."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name, *arguments):
    """A raw system call by name; all six registers are set, so that none holds chance."""
    number = GIVEN["calls"].get(name)
    if number is None:
        raise Lacking(f"the system call {name}")
    padded = (*arguments, *[0] * (6 - len(arguments)))
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in padded]
    LIBC.syscall.restype = ctypes.c_long
    return called(LIBC.syscall(ctypes.c_long(number), *words))


def reach(name, *arguments):
    """Whether the kernel's own code is reached: an error about the arguments comes from there."""
    try:
        return f"{name} gave {syscall(name, *arguments)}"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"{name} was judged by its arguments: {errno.errorcode[error.errno]}"


def start(function, name="", gate=None):
    """Begin it in a process that may be ruined; its word comes back over a pipe."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    signal.alarm(_PATIENCE_S)
    if gate is not None:
        os.close(gate[1])
    if GIVEN.get("sealed"):  # an attack cannot print a report, nor read the key of one
        for number in (0, 1, 2):
            os.dup2(NOWHERE, number)
    if GIVEN.get("disposable"):  # the control's attacks succeed: none may spoil the next
        LIBC.unshare(0x20000)
    try:
        word = ("through", str(function()))
    except OSError as error:
        word = ("refused", errno.errorcode.get(error.errno, str(error)))
    except Stopped as stopped:
        word = ("refused", str(stopped))
    except Lacking as lacking:
        word = ("lacks", str(lacking))
    except BaseException as error:
        word = ("broken", repr(error))
    try:
        if gate is not None:
            shown = f"{GIVEN['watched']}.{zlib.crc32(name.encode()):08x}"
            LIBC.prctl(15, shown.encode(), 0, 0, 0)  # PR_SET_NAME
        os.write(writing, json.dumps(word).encode()[:60_000])
        os.close(writing)
        if gate is not None:  # as the attack has left this process, until the host has seen it
            signal.alarm(4 * _PATIENCE_S)
            os.read(gate[0], 1)
    finally:
        os._exit(0)


def read_word(reading):
    text = b""
    while chunk := os.read(reading, 65_536):
        text += chunk
    os.close(reading)
    return text


def end(child, text):
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return ["refused", "SIGSYS"]
    return ["broken", f"ended with {status}"]


def in_child(function):
    """Run it in a process of its own, to its end."""
    child, reading = start(function)
    return end(child, read_word(reading))


def in_watched_groups(chosen):
    """The same, but the processes of a group stay until the host has looked at all of them."""
    found, names = {}, list(chosen)
    for first in range(0, len(names), _GROUP):
        gate, begun = os.pipe(), {}
        for name in names[first : first + _GROUP]:
            child, reading = start(chosen[name], name, gate)
            begun[name] = child, read_word(reading)
        print(f"look {first}", flush=True)
        deadline = time.monotonic() + 2 * _PATIENCE_S
        while not os.path.exists(f"/workspace/seen-{first}") and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(gate[1])
        os.close(gate[0])
        found |= {name: end(child, text) for name, (child, text) in begun.items()}
    return found


def only_in_throwaway_namespaces():
    """For programs whose control would ruin the host it succeeds on."""
    if __name__ == "__main__" and not (GIVEN.get("disposable") or GIVEN.get("cell")):
        raise SystemExit("this control must not run on the host itself")


def sentinel():
    """What every program may do, inside as well: if this fails, no refusal proves anything."""
    if syscall("getpid") != os.getpid():
        raise Stopped("raw system calls do not work")
    with open("/dev/null", "rb") as file:
        file.read()
    for path in ("/etc/passwd", "/proc/self/stat"):
        with open(path, "rb") as file:
            if not file.read():
                raise Stopped("files cannot be read")
    child = os.fork()
    if child == 0:
        os._exit(7)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        raise Stopped("processes cannot be started")
    if not GIVEN.get("disposable"):  # a new network namespace has its loopback device down
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 3).close()
    return "works"


def play():
    """Every attack, and one line of JSON with what came of each."""
    wanted = GIVEN.get("only")
    chosen = {name: each for name, each in ATTACKS.items() if wanted is None or name in wanted}
    if not GIVEN.get("sealed"):
        print(json.dumps({name: in_child(function) for name, function in chosen.items()}))
        return
    chosen = {"sentinel": sentinel, **chosen}
    if GIVEN.get("watched"):
        found = in_watched_groups(chosen)
    else:
        found = {name: in_child(function) for name, function in chosen.items()}
    text = json.dumps(found)
    key = sys.stdin.buffer.read(256)  # only now: no attack was forked from a process that knew it
    seal = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    print(json.dumps({"report": text, "seal": seal}))
