"""Not an attack: has one of everything that another sandbox must not find, until told to end."""

# a part of a program: stage.py stands before it

import os
import socket
import subprocess
import sys
import time


def hold():
    mark, place = GIVEN["mark"], GIVEN.get("workspace", "/workspace")
    for path in (f"/tmp/{mark}", f"/dev/shm/{mark}", f"{place}/{mark}"):
        with open(path, "w") as file:
            file.write("held")
    server = socket.create_server(("127.0.0.1", GIVEN["port"]))
    abstract, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + mark)
    named.bind(f"/tmp/{mark}.sock")
    abstract.listen()
    named.listen()
    key, name = GIVEN["ipc_key"], ctypes.c_char_p(mark.encode())
    for make in (
        lambda: called(LIBC.shmget(key, 4096, 0o1666)),
        lambda: called(LIBC.semget(key, 1, 0o1666)),
        lambda: called(LIBC.msgget(key, 0o1666)),
        lambda: syscall("mq_open", name, os.O_CREAT | os.O_RDWR, 0o666, 0),
    ):
        try:
            make()
        except OSError as error:
            # A cell has no System V memory without a cgroup that counts it (ENOSYS), and Landlock
            # leaves it no queue of its own; the control must have one of each.
            is_cell = place == "/workspace"
            if not is_cell or error.errno not in (errno.ENOSYS, errno.EACCES, errno.EPERM):
                raise
    sleeper = [sys.executable, "-c", "import signal; signal.pause()", f"{mark}-process"]
    child = subprocess.Popen(sleeper, env={"HELD": f"{mark}-variable"})
    print("ready", flush=True)
    while not os.path.exists(f"{place}/end"):  # the one thing both sides share is the workspace
        time.sleep(0.02)
    child.kill()
    child.wait()
    server.close()


def play():
    hold()
