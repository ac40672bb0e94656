"""Which program runs which language, and how the code is handed to it (LANG-1)."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from dataclasses import dataclass
from importlib import resources

from holdfast.core.errors import BadInput
from holdfast.core.languages import canonical
from holdfast.core.types import RunCode

DENO_INSIDE = "/opt/deno/deno"


@dataclass(frozen=True, slots=True)
class Program:
    """A language made concrete: what to start, where its code lies, what else it must see."""

    argv: tuple[str, ...]
    code_path: str
    is_interpreter: bool = False
    """The code goes over the channel, and the value of its last expression comes back."""
    extra_bind: tuple[str, str] | None = None
    env: tuple[tuple[str, str], ...] = ()


def program_for(want: RunCode) -> Program:
    """The program that runs this code on this host, or the reason why there is none."""
    match canonical(want.language):
        case "python":
            return Program(interpreter(), "", is_interpreter=True)
        case "shell":
            shell = _inside("bash") or _inside("sh")
            if shell is not None:
                return Program((shell, "/code/main.sh"), "/code/main.sh")
        case "javascript":
            node = _inside("node") or _inside("nodejs")
            if node is not None:
                return Program((node, "/code/main.js"), "/code/main.js")
            deno = _deno()
            if deno is not None:
                # Deno's own permissions are not our wall; the kernel's are, so it may do all.
                words = (DENO_INSIDE, "run", "--quiet", "--no-prompt", "-A", "/code/main.js")
                env = (("DENO_DIR", "/tmp/.deno"),)
                return Program(words, "/code/main.js", extra_bind=(deno, DENO_INSIDE), env=env)
    raise BadInput(
        f"no interpreter for {want.language!r:.40} on this host",
        mend="Install it, for example `apt-get install nodejs` for JavaScript.",
        code="HF-LANGUAGE-MISSING",
    )


def interpreter() -> tuple[str, ...]:
    """How a Python is started that takes code over the channel."""
    return (python_inside(), "-I", "-c", _RUN_RUNNER)


def available() -> dict[str, bool]:
    """Which languages run here, for the host check."""
    return {
        "python": True,
        "shell": (_inside("bash") or _inside("sh")) is not None,
        "javascript": (_inside("node") or _inside("nodejs") or _deno()) is not None,
    }


def python_inside() -> str:
    """The system's Python where there is one, else the one Holdfast runs on, shown at /opt."""
    found = _inside("python3")
    if found is not None:
        return found
    return f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _inside(name: str) -> str | None:
    return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")


def _deno() -> str | None:
    beside_python = os.path.join(os.path.dirname(sys.executable), "deno")
    found = beside_python if os.access(beside_python, os.X_OK) else shutil.which("deno")
    return os.path.realpath(found) if found else None


# Named so that the frames of the runner can be told from the code's own.
_RUN_RUNNER = (
    'exec(compile(open("/.holdfast/runner.py", "rb").read(), "<holdfast>", "exec")); main()'
)


@functools.cache
def inside_files() -> dict[str, bytes]:
    """What of ours a Python interpreter finds inside: path -> content."""
    folder = resources.files("holdfast.sandbox.inside")
    return {
        f"/.holdfast/{name}.py": folder.joinpath(f"{name}.py").read_bytes()
        for name in ("runner", "show")
    }
