"""Writing outside the workspace (ISO-2, ISO-6). The control writes to a throwaway copy of the host."""

# a part of a program: stage.py stands before it

import os

only_in_throwaway_namespaces()

# Opened, never written: opening is already what a write-deny has to refuse.
for _name in ("sys/kernel/core_pattern", "sys/kernel/hostname", "sys/vm/overcommit_memory",
              "sys/kernel/randomize_va_space", "sys/fs/protected_symlinks", "sys/net/ipv4/ip_forward",
              "sysrq-trigger", "irq/default_smp_affinity"):  # fmt: skip

    @attack(f"open-to-write-proc-{_name.replace('/', '-')}")
    def _(path=f"/proc/{_name}"):
        if GIVEN.get("disposable") and not os.path.exists(path):
            raise Lacking(path)
        return os.open(path, os.O_WRONLY)


# File modes and mounts allow these (the process's own, /proc is mounted writable): only Landlock
# stands before them.
for _name, _text in {"comm": "renamed", "coredump_filter": "0x33", "oom_score_adj": "500"}.items():

    @attack(f"landlock-write-own-{_name}")
    def _(path=f"/proc/self/{_name}", text=_text):
        with open(path, "w") as file:
            file.write(text)
        return "written"


@attack("landlock-write-own-memory-by-proc-self-mem")
def _():
    place = ctypes.create_string_buffer(b"before")
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(ctypes.addressof(place))
        memory.write(b"AFTER!")
    return place.value


for _name, _act in {
    "make-a-directory-in-the-root": lambda: os.mkdir("/planted"),
    "write-into-usr": lambda: os.open("/usr/planted", os.O_CREAT | os.O_WRONLY),
    "write-into-etc": lambda: os.open("/etc/planted", os.O_CREAT | os.O_WRONLY),
    "replace-a-program": lambda: os.open("/usr/bin/env", os.O_WRONLY),
    "change-the-mode-of-a-program": lambda: os.chmod("/usr/bin/env", 0o755),
    "touch-a-program": lambda: os.utime("/usr/bin/env"),
    "touch-dev-null": lambda: os.utime("/dev/null"),
    "remove-dev-null": lambda: os.remove("/dev/null"),
}.items():
    attack(_name)(_act)
