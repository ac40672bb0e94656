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
    called(LIBC.shmget(GIVEN["ipc_key"], 4096, 0o1666))
    called(LIBC.semget(GIVEN["ipc_key"], 1, 0o1666))
    called(LIBC.msgget(GIVEN["ipc_key"], 0o1666))
    try:
        syscall("mq_open", ctypes.c_char_p(mark.encode()), os.O_CREAT | os.O_RDWR, 0o666, 0)
    except PermissionError:  # Landlock leaves a cell no queue of its own; the control must have one
        if place != "/workspace":
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
