"""Runs inside the cell: gives each text to a shell, and notes what that starts and opens.

`python3 driver.py TEXTS RESULTS SHELL`; the files are JSON. No program can be found on PATH, so bash
hands each command to `command_not_found_handle`, and zsh to `command_not_found_handler`, which write
its words down; dash finds a few scripts that do so, and no other program. inotify tells which files of the
two folders are opened, by redirections or by the commands that read and write their arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import sys

ROOT = "/tmp/cw"
HOME, WORK = f"{ROOT}/h", f"{ROOT}/w"
FILES = [
    *(f"{HOME}/.ssh/id_rsa", f"{HOME}/.bashrc", f"{HOME}/n.txt", f"{WORK}/.env", f"{WORK}/a.txt"),
    *(f"{WORK}/b.txt", f"{WORK}/src/app.py", f"{WORK}/secrets/key", f"{WORK}/~/.env", f"{WORK}/-x"),
]
ENVIRONMENT = {"HOME": HOME, "PATH": "/nowhere", "U1": "a b", "U2": "-x", "U3": "*", "U4": ""}
_OPEN, _CLOSE_WRITE, _CLOSE_READ, _IS_FOLDER = 0x20, 0x08, 0x10, 0x40000000
_EVENTS = {_OPEN: "opened", _CLOSE_WRITE: "written", _CLOSE_READ: "read"}
_TIMEOUT_S = 3.0
_BACKGROUND_S = 0.5
SHELLS = {
    "bash": ("/bin/bash", "--norc", "--noprofile", "-c"),
    "zsh": ("/usr/bin/zsh", "-f", "-c"),
    "dash": ("/bin/dash", "-c"),
}
PROGRAMS = (
    "p0",
    "p1",
    "p2",
    "cat",
    "cp",
    "dd",
    "time",
    "[[",
    "((",
    "function",
    "declare",
    "coproc",
)
_PROGRAM = """#!/bin/bash
printf '%s\\0' $(($# + 1)) "${0##*/}" "$@" >&9
"""
_PRELUDE = r"""
command_not_found_handle() {
  builtin printf '%s\0' $# "$@" >&9
  case $1 in
    cat) for f in "${@:2}"; do [[ -f $f ]] && : < "$f"; done ;;
    cp) [[ -f $2 ]] && : < "$2"; [[ $# -lt 3 || -d ${@: -1} ]] || : >> "${@: -1}" ;;
    dd) for f in "${@:2}"; do
      case $f in if=*) : < "${f#if=}" ;; of=*) : >> "${f#of=}" ;; esac
    done ;;
  esac 2> /dev/null
  builtin return 0
}
# In zsh `command let` looks for a program of that name, which nobody can put there.
command_not_found_handler() { (( $+builtins[$1] )) || command_not_found_handle "$@"; }
echo() { builtin printf '%s\0' $(($# + 1)) echo "$@" >&9; builtin echo "$@"; }
"""


class Watch:
    """Opened files, by inotify."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK)
        self._folders = {}
        for folder in sorted({ROOT, *map(os.path.dirname, FILES)}):
            watch = self._libc.inotify_add_watch(self._fd, folder.encode(), sum(_EVENTS))
            if watch < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
            self._folders[watch] = folder

    def take(self) -> dict[str, set[str]]:
        """What was opened since, and what was closed again after writing or reading."""
        found: dict[str, set[str]] = {name: set() for name in _EVENTS.values()}
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode(errors="replace")
                at += 16 + length
                if not mask & _IS_FOLDER and name:
                    found[_EVENTS[mask & sum(_EVENTS)]].add(f"{self._folders[watch]}/{name}")


def restore() -> None:
    """The folders as they were; bash alone can make files but take none away."""
    for path in FILES:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    for folder in sorted({ROOT, *map(os.path.dirname, FILES)}):
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if os.path.isfile(path) and path not in FILES:
                os.unlink(path)
    for path in FILES:
        with open(path, "w") as file:
            file.write(f"content of {path}\n")


def observe(text: str, watch: Watch, calls_path: str, shell: str) -> dict[str, object]:
    """One text in one shell."""
    with open(calls_path, "wb"):
        pass
    descriptor = os.open(calls_path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 9)
    ended, alive = os.pipe()
    os.dup2(alive, 8)
    os.close(alive)
    is_dash = shell == "dash"
    process = subprocess.Popen(
        [*SHELLS[shell], text if is_dash else _PRELUDE + text],
        env=ENVIRONMENT | ({"PATH": f"{ROOT}/bin"} if is_dash else {}),
        cwd=WORK,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(8, 9),
        start_new_session=True,
    )
    os.close(8)
    is_late = False
    try:
        process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        is_late = True
    # What runs in the background holds the other end of the pipe until it ends.
    select.select([ended], [], [], 0 if is_late else _BACKGROUND_S)
    os.close(ended)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    os.close(descriptor)
    with open(calls_path, "rb") as file:
        said = file.read(1 << 20).decode("utf-8", "replace")
    files = watch.take()
    if files["opened"] - files["read"] or files["written"] or files["opened"] - set(FILES):
        restore()
        watch.take()
    return {
        "calls": split_calls(said),
        "late": is_late,
        **{name: sorted(files[name]) for name in files},
    }


def split_calls(said: str) -> list[list[str]]:
    """Each call is the number of its words, and then the words; the last may be cut off."""
    parts, calls, at = said.split("\0"), [], 0
    while at < len(parts) and parts[at].isdigit():
        end = at + 1 + int(parts[at])
        if end < len(parts):
            calls.append(parts[at + 1 : end])
        at = end
    return calls


def main() -> None:
    with open(sys.argv[1]) as file:
        texts = json.load(file)
    restore()
    os.makedirs(f"{ROOT}/bin", exist_ok=True)
    for name in PROGRAMS:
        with open(f"{ROOT}/bin/{name}", "w") as file:
            file.write(_PROGRAM)
        os.chmod(f"{ROOT}/bin/{name}", 0o755)
    watch = Watch()
    results = [observe(text, watch, f"{os.getcwd()}/calls", sys.argv[3]) for text in texts]
    with open(sys.argv[2], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
