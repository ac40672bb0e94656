"""nono-py (PyPI): Landlock by capabilities, with a child process for each command."""

from __future__ import annotations

import sys

from peers.resident import ResidentPeer
from peers.resident_server import Reply, Request, reply, serve

_LIMITS = {
    "processes": "max_processes",
    "cpu_s": "max_cpu_seconds",
    "file_size_bytes": "max_file_size_bytes",
    "open_files": "max_open_files",
}


class Nono(ResidentPeer):
    name = "nono-py"
    product = "nono-py"
    module = "nono"
    limits = frozenset({*_LIMITS, "wall_s"})
    settings = (
        "sandboxed_exec with the groups system_read_linux and system_write_linux of the policy it "
        "brings, the workspace to read and write, block_network()"
    )


class NonoStrict(Nono):
    name = "nono-py-strict"
    choice = "strict"
    settings = 'only /usr, /lib, /etc/ld.so.cache and the workspace, enforcement_mode="seccomp"'


def _run(request: Request) -> Reply:
    # Only in the environment it is installed into.
    from nono_py import (  # noqa: PLC0415  # in its own environment
        AccessMode,
        CapabilitySet,
        load_embedded_policy,
        sandboxed_exec,
    )

    caps = CapabilitySet()
    if _IS_STRICT:
        for path in ("/usr", "/lib", "/bin"):
            caps.allow_path(path, AccessMode.READ)
        for path, mode in (
            ("/etc/ld.so.cache", AccessMode.READ),
            ("/dev/null", AccessMode.READ_WRITE),
        ):
            caps.allow_file(path, mode)
    else:
        groups = ["system_read_linux", "system_write_linux"]
        load_embedded_policy().resolve_groups(groups, caps)
    caps.allow_path(request["workspace"], AccessMode.READ_WRITE)
    caps.block_network()
    limits = request["limits"]
    try:
        done = sandboxed_exec(
            caps,
            request["argv"],
            cwd=request["workspace"],
            timeout_secs=limits.get("wall_s", request["timeout_s"]),
            enforcement_mode="seccomp" if _IS_STRICT else "auto",
            **{_LIMITS[name]: int(value) for name, value in limits.items() if name in _LIMITS},
        )
    except TimeoutError:
        return reply(1, b"", b"", "wall") if "wall_s" in limits else reply(None, b"", b"")
    return reply(done.exit_code, done.stdout, done.stderr)


if __name__ == "__main__":
    _IS_STRICT = sys.argv[2] == "strict"
    serve(sys.argv[1], _run)
