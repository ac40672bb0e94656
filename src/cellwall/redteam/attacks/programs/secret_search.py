"""Searching a cell for the value of a leased secret (SEC-5).

The prefix of the value is known, as that of a real token would be. Whatever looks like the value is
returned as a hash, so that redaction of output cannot hide a find. `planted` is the control: an open
value in each of the places.
"""

# a part of a program: stage.py stands before it

import os
import re
import subprocess
import sys

PREFIX = GIVEN.get("prefix", "no-prefix-")
PLANTED = GIVEN.get("planted", "")
# Joined here, so that the pattern itself is nowhere in the memory that is searched.
PATTERN = re.compile(re.escape(PREFIX).encode() + rb"[a-z]{6}-[a-z-]{10,60}[a-z]")
MAX_FILE_BYTES = 1 << 20
MAX_REGION_BYTES = 64 << 20


def tell(texts):
    found = sorted({match for text in texts for match in PATTERN.findall(text)})
    if not found:
        raise Stopped("nothing looks like the value")
    return ",".join(hashlib.sha256(each).hexdigest()[:16] for each in found[:12])


def read(path, size=MAX_FILE_BYTES):
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def sleeper():
    """A process with the planted value on its command line and in its environment."""
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, PLANTED],
        env={"PLANTED": PLANTED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    return child


def of_processes(name):
    child = sleeper() if PLANTED else None
    try:
        own = str(os.getpid())
        others = [each for each in os.listdir("/proc") if each.isdigit() and each != own]
        return tell([read(f"/proc/{each}/{name}") for each in others])
    finally:
        if child is not None:
            child.kill()
            child.wait()


@attack("environment")
def _():
    return tell([os.fsencode(value) for value in os.environ.values()])


@attack("processes")
def _():
    return of_processes("environ")


@attack("command_lines")
def _():
    return of_processes("cmdline")


@attack("files")
def _():
    if PLANTED:
        with open("/tmp/planted", "w") as file:
            file.write(PLANTED)
    texts = []
    for top in ("/tmp", "/workspace", "/dev/shm", "/etc", "/code", "/skills", "/.cellwall"):
        for place, _, names in os.walk(top):
            for name in names:
                path = os.path.join(place, name)
                if os.path.isfile(path):
                    texts.append(read(path))
    return tell(texts)


@attack("memory")
def _():
    texts = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            first, last = (int(word, 16) for word in span.split("-"))
            if rights.startswith("rw") and last - first <= MAX_REGION_BYTES:
                try:
                    memory.seek(first)
                    texts.append(memory.read(last - first))
                except (OSError, ValueError, OverflowError):
                    continue
    return tell(texts)
