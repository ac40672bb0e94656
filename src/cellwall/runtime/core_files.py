"""Secret values stay out of core files and debuggers once a vault is open (ISO-13)."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from cellwall.core.errors import VaultError
from cellwall.sandbox.linux._syscalls import set_not_dumpable

_kept_out_by: int | None = None


def keep_out_of_core_files() -> None:
    """For the rest of this process's life, and of what it forks; programs it starts have a memory
    of their own, and only the limit goes on to them. Before the first key is read.

    (1) the limit: no core file is written, and none is handed to a program behind `|` in
    core_pattern. For that it is 1: at 0 the kernel starts it, core(5), also for a crash in a cell,
    which could not raise the limit again;
    (2) not dumpable: no program either way, and nobody without CAP_SYS_PTRACE can look in;
    (3) the filter: were somebody to make it dumpable again, no memory would be in the file.
    """
    global _kept_out_by  # of the process, as what it stands for
    if _kept_out_by == os.getpid():
        return
    try:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0) if hard == 0 else (1, 1))
        # Before (2), after which the files of /proc/self belong to root.
        with suppress(OSError), open("/proc/self/coredump_filter", "w", encoding="ascii") as file:
            file.write("0")
        set_not_dumpable()
    except (OSError, ValueError) as error:
        raise VaultError(
            "the memory of this process cannot be kept out of core files",
            hint="Let it lower its own limit of core files, and call prctl(PR_SET_DUMPABLE).",
            code="CW-VAULT-MEMORY",
            detail=str(error),
        ) from error
    _kept_out_by = os.getpid()
