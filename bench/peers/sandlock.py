"""sandlock (PyPI): Landlock, seccomp and a supervisor in user space, by its Python interface."""

from __future__ import annotations

import sys

from peers.resident import ResidentPeer
from peers.resident_server import Reply, Request, reply, serve

_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev")
_STRICT_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/proc/self")
_LIMITS = {
    "memory_bytes": "max_memory",
    "processes": "max_processes",
    "open_files": "max_open_files",
}


class Sandlock(ResidentPeer):
    name = "sandlock"
    product = "sandlock"
    module = "sandlock"
    limits = frozenset({*_LIMITS, "wall_s"})
    settings = (
        "as in its README: fs_readable=[/usr, /lib, /lib64, /bin, /etc, /proc, /dev], "
        "fs_writable=[/tmp, /dev/null, WORKSPACE]; no network, since none is allowed"
    )


class SandlockStrict(Sandlock):
    name = "sandlock-strict"
    choice = "strict"
    settings = (
        "the same with /proc/self for /proc, without /etc, /dev and /tmp; clean_env, no_coredump"
    )


def _run(request: Request) -> Reply:
    from sandlock import Sandbox  # noqa: PLC0415  # only in the environment it is installed into

    strict = {"clean_env": True, "no_coredump": True} if _IS_STRICT else {}
    sandbox = Sandbox(
        fs_readable=[*(_STRICT_READABLE if _IS_STRICT else _READABLE)],
        fs_writable=[*(() if _IS_STRICT else ("/tmp",)), "/dev/null", request["workspace"]],
        cwd=request["workspace"],
        **{
            _LIMITS[name]: int(value)
            for name, value in request["limits"].items()
            if name in _LIMITS
        },
        **strict,
    )
    wall_s = request["limits"].get("wall_s", request["timeout_s"])
    done = sandbox.run(request["argv"], timeout=wall_s)
    if done.error and "time" in str(done.error).lower():
        if "wall_s" in request["limits"]:
            return reply(1, b"", b"", "wall")
        return reply(None, b"", b"")
    error = str(done.error or "").encode()
    return reply(done.exit_code, done.stdout or b"", (done.stderr or b"") + error)


if __name__ == "__main__":
    _IS_STRICT = sys.argv[2] == "strict"
    serve(sys.argv[1], _run)
