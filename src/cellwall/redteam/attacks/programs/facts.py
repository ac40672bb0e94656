"""Not an attack: what a process can tell about its own walls (ISO-1, ISO-10)."""

# a part of a program: stage.py stands before it

import os
import signal


def read(path):
    with open(path) as file:
        return file.read()


def play():
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    names = (
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Groups",
        "Uid",
        "Gid",
    )
    facts = {
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in GIVEN["namespaces"]},
        "status": {name: status[name].split() for name in names},
        "uid_map": read("/proc/self/uid_map").split(),
        "gid_map": read("/proc/self/gid_map").split(),
        "hostname": os.uname().nodename,
        "cgroup": sorted(
            {line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines()}
        ),
    }
    print(json.dumps(facts), flush=True)
    if GIVEN.get("stay"):
        signal.sigtimedwait([signal.SIGTERM], GIVEN["stay"])
