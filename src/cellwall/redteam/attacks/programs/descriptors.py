"""Every descriptor that came along, and every word of the environment anywhere (ISO-3, ISO-9)."""

# a part of a program: stage.py stands before it

import os
import stat

# Written backwards: this text itself, in a file or on a command line, must not hold the mark.
MARK = "tnerap-eht-fo-terces-llawllec"[::-1]
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe",
         stat.S_IFCHR: "device", stat.S_IFBLK: "disk"}  # fmt: skip


def open_descriptors():
    """By asking the kernel for each number, not by a list that could be incomplete."""
    found = {}
    for number in range(4096):
        if number == NOWHERE:  # of this program itself
            continue
        try:
            found[number] = KINDS.get(stat.S_IFMT(os.fstat(number).st_mode), "nameless")
        except OSError:
            continue
    return found


def secrets_in_descriptors():
    """Numbers through which the mark can be read, also by opening them anew."""
    found = []
    for number in open_descriptors():
        if number in (0, 1, 2, 3, 4):
            continue
        for path in (f"/proc/self/fd/{number}", f"/dev/fd/{number}"):
            try:
                # Not to wait: an inherited pipe may have nothing in it.
                again = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                if MARK.encode() in os.read(again, 65_536):
                    found.append(path)
            except OSError:
                continue
    return found


def environments():
    """Every /proc/*/environ, cmdline and mountinfo that can be read and holds the mark."""
    found = []
    for name in os.listdir("/proc"):
        for part in ("environ", "cmdline", "mountinfo", "comm"):
            try:
                with open(f"/proc/{name}/{part}", "rb") as file:
                    if MARK.encode() in file.read():
                        found.append(part)
            except OSError:
                continue
    return sorted(set(found))


def terminal():
    """What there is of a controlling terminal."""
    found = {}
    with open("/proc/self/stat") as file:
        found["number"] = int(file.read().rsplit(")", 1)[1].split()[4])
    for name, act in {
        "open": lambda: os.open("/dev/tty", os.O_RDWR),
        "group": lambda: next(
            os.tcgetpgrp(number) for number in open_descriptors() if os.isatty(number)
        ),
        "name": lambda: os.ttyname(0),
    }.items():
        try:
            act()
            found[name] = True
        except (OSError, StopIteration):
            found[name] = False
    return found


def play():
    text = {
        "descriptors": open_descriptors(),
        "secrets": secrets_in_descriptors(),
        "variables": {name: value for name, value in os.environ.items() if name != "ATTACK"},
        "environments": environments(),
        "terminal": terminal(),
    }
    print(json.dumps(text))
