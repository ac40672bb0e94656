"""Not an attack: has one of everything on the host that a cell must not find, until told to end.

The first line of output names what was made; the end of standard input removes it.
"""

# a part of a program: stage.py stands before it

import contextlib
import os
import socket
import subprocess
import sys

CREATE = 0o1000
USER_KEYRING = -4


def make_files(mark):
    places = (f"/tmp/{mark}", f"/dev/shm/{mark}", f"{GIVEN['workspace']}/{mark}")
    for path in places:
        with open(path, "w") as file:
            file.write("held" * 1024)
    return (*places, f"/tmp/{mark}.sock")


def make_sockets(mark):
    server = socket.create_server(("127.0.0.1", 0))
    abstract, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + mark)
    named.bind(f"/tmp/{mark}.sock")
    abstract.listen()
    named.listen()
    return server, abstract, named


def make_key(mark):
    """None where the host has no keyring for its users."""
    words = [ctypes.c_char_p(word) for word in (b"user", mark.encode(), b"secret")]
    try:
        return syscall("add_key", *words, 6, USER_KEYRING)
    except (OSError, Lacking):
        return 0


def remove(mark, files, numbers, key):
    memory, semaphore, queue = numbers
    LIBC.shmctl(memory, 0, None)
    LIBC.semctl(semaphore, 0, 0)
    LIBC.msgctl(queue, 0, None)
    with contextlib.suppress(OSError, Lacking):
        syscall("mq_unlink", ctypes.c_char_p(mark.encode()))
    if key:
        with contextlib.suppress(OSError, Lacking):
            syscall("keyctl", 9, key, USER_KEYRING)  # KEYCTL_UNLINK
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def play():
    mark, ipc_key = GIVEN["mark"], GIVEN["ipc_key"]
    sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
    sleeper += [f"{mark}-victim", f"{mark}-process"]
    victim = subprocess.Popen(sleeper, env={"TOKEN": mark, "HELD": f"{mark}-variable"})
    files = make_files(mark)
    sockets = make_sockets(mark)
    numbers = (
        LIBC.shmget(ipc_key, 4096, CREATE | 0o666),
        LIBC.semget(ipc_key, 1, CREATE | 0o666),
        LIBC.msgget(ipc_key, CREATE | 0o666),
    )
    key = make_key(mark)
    with contextlib.suppress(OSError, Lacking):
        syscall("mq_open", ctypes.c_char_p(mark.encode()), os.O_CREAT | os.O_RDWR, 0o666, 0)
    facts = {"victim": victim.pid, "port": sockets[0].getsockname()[1], "key": key}
    try:
        print(json.dumps(facts), flush=True)
        sys.stdin.buffer.read()
    finally:
        victim.kill()
        victim.wait()
        remove(mark, files, numbers, key)
