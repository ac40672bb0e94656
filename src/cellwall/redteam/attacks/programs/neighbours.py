"""Finding what another sandbox, or an earlier run, has or left (ISO-7)."""

# a part of a program: stage.py stands before it

import os
import socket

MARK = GIVEN.get("mark", "")
PORT = GIVEN.get("port", 0)
IPC_KEY = GIVEN.get("ipc_key", 0)


for _name, _place in {
    "tmp": "/tmp",
    "dev-shm": "/dev/shm",
    "workspace": GIVEN.get("workspace", "/workspace"),
}.items():

    @attack(f"file-in-{_name}")
    def _(path=f"{_place}/{MARK}"):
        with open(path) as file:
            return file.read()


@attack("process")
def _():
    own = (os.getpid(), os.getppid())
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if (MARK + "-process").encode() in file.read():
                        return name
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
    raise Stopped("not in /proc")


@attack("environment")
def _():
    last = Stopped("no other process")
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if (MARK + "-variable").encode() in file.read():
                        return name
                last = Stopped("not there")
            except OSError as error:
                last = error
    raise last


@attack("port")
def _():
    with socket.create_connection(("127.0.0.1", PORT), 3) as line:
        return line.getpeername()


@attack("abstract-socket")
def _():
    with socket.socket(socket.AF_UNIX) as line:
        line.connect("\0" + MARK)
        return "connected"


@attack("socket-in-tmp")
def _():
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"/tmp/{MARK}.sock")
        return "connected"


@attack("system-v-memory")
def _():
    return called(LIBC.shmget(IPC_KEY, 1, 0))


@attack("system-v-semaphore")
def _():
    return called(LIBC.semget(IPC_KEY, 1, 0))


@attack("system-v-queue")
def _():
    return called(LIBC.msgget(IPC_KEY, 0))


@attack("posix-queue")
def _():
    return syscall("mq_open", ctypes.c_char_p(MARK.encode()), os.O_RDONLY, 0, 0)
