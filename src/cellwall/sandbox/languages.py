"""The program that runs each language, and how it receives the code (LANG-1)."""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import re
import sys
from dataclasses import dataclass
from importlib import resources

from cellwall.core.errors import BadInput
from cellwall.core.host_programs import ProgramRefused, host_program, wheel_program
from cellwall.core.languages import canonical
from cellwall.core.types import RunCode
from cellwall.sandbox.linux.programs import version_of
from cellwall.sandbox.toolchains import TOOLCHAINS, command_of, compiler_of

DENO_INSIDE = "/opt/deno/deno"
_SCRIPTS = frozenset({"javascript", "typescript"})
STATEFUL = frozenset({"python", *_SCRIPTS})
"""Languages whose interpreter lives on in a sandbox, with its variables (LANG-2)."""
_SCRIPT_RUNNER = "/.cellwall/runner.mjs"


@dataclass(frozen=True, slots=True)
class Program:
    """How to run a language: the command, the path of the code, an extra mount, variables."""

    argv: tuple[str, ...]
    code_path: str
    is_interpreter: bool = False
    """The code is sent over the channel, which returns the value of its last expression."""
    is_forked: bool = False
    """A warm template holds this interpreter, and cells fork it instead of starting the command."""
    extra_bind: tuple[str, str] | None = None
    """A program of the host, and its path inside."""
    env: tuple[tuple[str, str], ...] = ()


def program_for(
    operation: RunCode, *, has_network: bool = False, only_deno: bool = False
) -> Program:
    """The program that runs this code on this host; an error if there is none.

    `only_deno`: JavaScript and TypeScript run with Deno's permissions, or not at all.
    """
    language = canonical(operation.language)
    if only_deno and language in _SCRIPTS:
        if (deno := _deno_program(has_network=has_network)) is not None:
            return deno
        raise BadInput(
            f"{operation.language:.40} runs only in Deno here, and Deno is not installed",
            hint="It comes with Cellwall: pip install cellwall; or remove "
            'sandbox.javascript = "deno" from the configuration.',
            code="CW-LANGUAGE-MISSING",
        )
    program = _found_program(language, has_network=has_network)
    if program is None:
        raise BadInput(
            f"no interpreter or compiler for {operation.language!r:.40} on this host",
            hint=f"Install it: {INSTALL_HINTS[language]}.",
            code="CW-LANGUAGE-MISSING",
        )
    return program


def _found_program(language: str, *, has_network: bool) -> Program | None:
    match language:
        case "python":
            return Program(interpreter(), "", is_interpreter=True, is_forked=True)
        case "shell":
            if (shell := _inside("bash") or _inside("sh")) is not None:
                return Program((shell, "/code/main.sh"), "/code/main.sh")
        case "javascript" | "typescript":
            if (deno := _deno_program(has_network=has_network)) is not None:
                return deno
            # Where there is no wheel of Deno.
            node = _node()
            if node is not None and (language == "javascript" or _strips_types(node)):
                return Program((node, "--no-warnings", _SCRIPT_RUNNER), "", is_interpreter=True)
        case _:
            return _compiled_program(language)
    return None


INSTALL_HINTS = {
    "python": "apt-get install python3",
    "shell": "apt-get install bash",
    "javascript": "pip install cellwall, which brings Deno, or apt-get install nodejs",
    "typescript": "pip install cellwall, which brings Deno, or node 22.13 or newer",
    **{name: f"apt-get install {each.package}" for name, each in TOOLCHAINS.items()},
}


def _compiled_program(language: str) -> Program | None:
    toolchain = TOOLCHAINS[language]
    compiler = compiler_of(toolchain, _inside)
    if compiler is None:
        return None
    return Program(command_of(toolchain, compiler), toolchain.code_path, env=toolchain.env)


def deno_bind() -> tuple[str, str] | None:
    """The path of Deno on the host, which is seldom in /usr, and its path inside."""
    deno = _deno()
    return None if deno is None else (deno, DENO_INSIDE)


# The last layer, behind those of the kernel: only the permissions that code needs. No programs and
# no native libraries (--allow-run, --allow-ffi), which ignore these limits. The environment holds
# only variables that the caller named (ISO-3).
_DENO_PERMISSIONS = (
    "--allow-read=/workspace,/tmp,/dev/shm,/code,/skills",
    "--allow-write=/workspace,/tmp,/dev/shm",
    "--allow-env",
)
# A cache of compiled code in a new /tmp is never used again, and costs a fifth of the start.
_DENO_OPTIONS = ("--quiet", "--no-prompt", "--no-config", "--no-code-cache")
# The runner connects to the inspector of its own process and gives the permission up before any
# code runs (inside/runner.mjs).
_FOR_RUNNER = "--allow-sys=inspector"


def _deno_program(*, has_network: bool) -> Program | None:
    bind = deno_bind()
    if bind is None:
        return None
    # The egress proxy decides which hosts.
    network = ("--allow-net",) if has_network else ()
    permissions = (*_DENO_PERMISSIONS, *network, _FOR_RUNNER)
    return Program(
        (DENO_INSIDE, "run", *_DENO_OPTIONS, *permissions, _SCRIPT_RUNNER),
        "",
        is_interpreter=True,
        extra_bind=bind,
        env=(("DENO_DIR", "/tmp/.deno"), ("DENO_NO_UPDATE_CHECK", "1"), ("NO_COLOR", "1")),
    )


def _node() -> str | None:
    return _inside("node") or _inside("nodejs")


@functools.cache
def _strips_types(node: str) -> bool:
    """Node removes types from 23.2 on, and 22.13 of the long-term line."""
    match = re.match(r"v(\d+)\.(\d+)", version_of(node))
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    return version >= (23, 2) or (22, 13) <= version < (23, 0)


def interpreter() -> tuple[str, ...]:
    """The command of a Python that receives code over the channel."""
    return (python_inside(), "-I", "-c", _RUN_RUNNER)


def available() -> dict[str, bool]:
    """Which languages can run on this host, for the host check."""
    node = _node()
    try:
        has_deno = _deno() is not None
    except BadInput:
        has_deno = False
    return {
        "python": True,
        "shell": (_inside("bash") or _inside("sh")) is not None,
        "javascript": node is not None or has_deno,
        "typescript": has_deno or (node is not None and _strips_types(node)),
        **{name: compiler_of(each, _inside) is not None for name, each in TOOLCHAINS.items()},
    }


def python_inside() -> str:
    """The system's Python if there is one, else the Python of Cellwall, mounted at /opt."""
    system_python = _inside("python3")
    if system_python is not None:
        return system_python
    return f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def python_outside() -> str:
    """The path of the same Python on the host."""
    path = python_inside()
    if path.startswith("/opt/python/"):
        return os.path.join(os.path.realpath(sys.base_prefix), "bin", os.path.basename(path))
    return path


@functools.cache
def python_version() -> str:
    """Its version, such as `3.11`; read from the file name where possible, which is quicker."""
    path = python_outside()
    match = re.search(r"/python(3\.\d+)$", os.path.realpath(path))
    version = match or re.match(r"Python (3\.\d+)", version_of(path))
    return version[1] if version else "unknown"


@functools.cache
def _inside(name: str) -> str | None:
    """A program in the host's /usr, which is mounted inside. Some are started on the host for their
    version, so only root may be able to write them."""
    try:
        return host_program(name)
    except ProgramRefused:
        return None


@functools.cache
def _deno() -> str | None:
    """Deno from its wheel, checked by the hash of the wheel's RECORD, or from the system."""
    try:
        return wheel_program("deno", "deno")
    except ProgramRefused as refused:
        if not refused.is_missing:
            raise BadInput(
                refused.why, hint=refused.hint, code="CW-LANGUAGE-PROGRAM", detail=refused.detail
            ) from None
    deno = _inside("deno")
    return os.path.realpath(deno) if deno else None


# Imported as modules, so that an interpreter of our version need not compile them at each start.
_RUN_RUNNER = (
    'import sys; sys.path.append("/.cellwall"); import _cellwall_runner; sys.path.pop(); '
    "_cellwall_runner.main()"
)


_HASHED = 1  # PEP 552: by the hash of its source, which is not compared


@functools.cache
def inside_files() -> dict[str, bytes]:
    """The modules of Cellwall that interpreters find inside: path -> content."""
    names = ("runner", "channel", "show", "charts", "tools")
    python = {path: content for name in names for path, content in module_files(name).items()}
    return python | script_files()


@functools.cache
def script_files() -> dict[str, bytes]:
    """The modules for JavaScript and TypeScript alone."""
    names = ("runner", "channel", "show", "source", "tools")
    folder = resources.files("cellwall.sandbox.inside")
    return {f"/.cellwall/{name}.mjs": (folder / f"{name}.mjs").read_bytes() for name in names}


def module_files(name: str) -> dict[str, bytes]:
    """One module and its bytecode, which another version of Python ignores."""
    source = (resources.files("cellwall.sandbox.inside") / f"{name}.py").read_bytes()
    # The file name in tracebacks, by which the runner separates its frames from the code's.
    code = compile(source, "<cellwall>", "exec", dont_inherit=True)
    flags = _HASHED.to_bytes(4, "little")
    header = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source)
    tag = sys.implementation.cache_tag
    return {
        f"/.cellwall/_cellwall_{name}.py": source,
        f"/.cellwall/__pycache__/_cellwall_{name}.{tag}.pyc": header + marshal.dumps(code),
    }
