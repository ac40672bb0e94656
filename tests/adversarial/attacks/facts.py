"""Not an attack: what a process can tell about its own walls (ISO-1, ISO-10)."""

import os
import signal


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
        "uid_map": open("/proc/self/uid_map").read().split(),
        "gid_map": open("/proc/self/gid_map").read().split(),
        "hostname": os.uname().nodename,
        "cgroup": sorted(
            {line.rstrip("\n").split(":", 2)[2] for line in open("/proc/self/cgroup")}
        ),
    }
    print(json.dumps(facts), flush=True)
    if GIVEN.get("stay"):
        signal.sigtimedwait([signal.SIGTERM], GIVEN["stay"])
