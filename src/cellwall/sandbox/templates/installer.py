"""Installs pinned wheels into a directory, for the Python that runs inside (LANG-2).

No code of a package is executed: only wheels with a pinned hash are accepted, and installing a
wheel is unpacking it. So any index or mirror of the user's pip settings will do: a malicious one
can refuse to serve a package, but cannot replace it.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob

from cellwall.core.errors import CellwallError
from cellwall.core.host_programs import ProgramRefused, host_program, wheel_program
from cellwall.core.limits import GIB
from cellwall.sandbox.linux.programs import stream_lines

MAX_WHEEL_BYTES = 4 * GIB
INSTALL_WITHIN_S = 1800.0
_COMPILE_WITHIN_S = 600.0
_ANSWER_WITHIN_S = 30.0
_LINES_KEPT = 200
_MAX_DETAIL = 2000

# Runs pip from its wheel, as `ensurepip` does.
_FROM_WHEEL = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)

_COMPILE = (
    "import compileall, resource, sys; "
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    "sys.exit(not compileall.main())"
)

# The variables that locate the user's index or mirror. No others: they may hold secrets, and
# options of pip that change what is installed and where.
_PASSED_ON = frozenset(
    (
        *("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME"),
        *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("https_proxy", "http_proxy", "all_proxy", "no_proxy"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE", "PIP_PROXY"),
        *("PIP_DEFAULT_TIMEOUT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL"),
        *("PIP_NO_INDEX", "PIP_TRUSTED_HOST"),
        *("UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL"),
        *("UV_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "UV_NATIVE_TLS", "UV_NO_INDEX"),
    )
)


def install(
    requirements: str,
    target: str,
    *,
    candidates: Iterable[tuple[list[str], tuple[str, ...]]],
    temporary: str,
    environ: Mapping[str, str],
    on_progress: Callable[[str], None],
    limits: Mapping[int, int],
    held_fds: Sequence[int] = (),
) -> None:
    """Unpack every wheel of the requirements file into `target`, by the first working candidate."""
    env = installer_environment(environ, temporary=temporary)
    installer = find_working_installer(candidates, env)
    words = [*installer, "--only-binary", ":all:", "--require-hashes", "--no-deps"]
    words += ["--target", target, "-r", requirements]
    output: deque[str] = deque(maxlen=_LINES_KEPT)

    def handle_line(line: str) -> None:
        output.append(line)
        progress = progress_of(line)
        if progress:
            on_progress(progress)

    try:
        code = stream_lines(
            words,
            env=env,
            on_line=handle_line,
            within_s=INSTALL_WITHIN_S,
            held_fds=held_fds,
            limits=limits,
        )
    except TimeoutError:
        raise failure_of([*output, "timed out"]) from None
    if code != 0:
        raise failure_of(list(output))


def free_bytes(folder: str) -> int:
    """The free space on the disk of a folder."""
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize


def file_limit(folder: str) -> dict[int, int]:
    """The limit for a downloaded file: the index decides how much it sends."""
    return {resource.RLIMIT_FSIZE: min(MAX_WHEEL_BYTES, free_bytes(folder) // 4)}


def precompile(target: str, *, python: str) -> None:
    """Write bytecode: the directory is read-only inside, and every run would compile it anew.

    compileall parses and does not execute. Paths in the bytecode are relative to `target`, so that
    they reveal nothing about the host. A file that does not compile stays source. RLIMIT_AS bounds
    a file that makes the compiler use much memory.
    """
    words = [python, "-I", "-W", "ignore", "-c", _COMPILE, "-qq", "-j", "0"]
    words += ["-x", "/tests/", "-s", target, target]
    try:
        env = {"LC_ALL": "C.UTF-8"}
        stream_lines(words, env=env, on_line=_ignore, within_s=_COMPILE_WITHIN_S)
    except TimeoutError:
        return  # imports are slower, nothing else


def installer_environment(environ: Mapping[str, str], *, temporary: str) -> dict[str, str]:
    """The environment variables of an installer."""
    env = {name: value for name, value in environ.items() if name in _PASSED_ON}
    # Not /tmp: it may be full, and an interrupted build would leave files there.
    env |= {"TMPDIR": temporary, "LC_ALL": "C.UTF-8", "PATH": os.defpath}
    env |= {"PIP_ROOT_USER_ACTION": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
    return env


def find_working_installer(
    candidates: Iterable[tuple[list[str], tuple[str, ...]]], env: Mapping[str, str]
) -> list[str]:
    """The command line of the first installer that works here."""
    for program, words in candidates:
        found = [*program, *words]
        # Not `--version`: a pip that is too old for these options answers that, too.
        asked = [*found, "--help"]
        try:
            code = stream_lines(asked, env=env, on_line=_ignore, within_s=_ANSWER_WITHIN_S)
        except (OSError, TimeoutError):
            continue
        if code == 0:
            return found
    raise CellwallError(
        "there is no pip for the Python that runs inside, and no uv",
        hint="Install one, for example with `apt-get install python3-pip`.",
        code="CW-TEMPLATE-NO-PIP",
    )


def _ignore(_: str) -> None:
    return


PIP_WORDS = (
    *("install", "--no-compile", "--no-input", "--progress-bar", "off", "--retries", "2"),
    *("--disable-pip-version-check", "--no-warn-script-location"),
)
_UV_WORDS = ("pip", "install", "--no-progress", "--link-mode", "copy", "--python")


def installer_candidates(python: str) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Every installer that may exist, the best first.

    The first three run pip on the interpreter that is used inside, which alone knows which wheels
    fit it (version, ABI, libc); `--platform` would be a guess. Its own pip is often missing (Debian
    packages it separately), so next comes the pip wheel of venv or ensurepip, then the pip beside
    Cellwall (`--python` restarts pip on the other interpreter), then uv, which queries the
    interpreter as well.
    """
    yield [python, "-I", "-m", "pip"], PIP_WORDS
    for wheel in pip_wheels(python):
        yield [python, "-I", "-c", _FROM_WHEEL, wheel], PIP_WORDS
    yield [sys.executable, "-I", "-m", "pip", "--python", python], PIP_WORDS
    with suppress(ProgramRefused):
        yield [_uv()], (*_UV_WORDS, python)


def _uv() -> str:
    """uv, never from PATH: it runs outside, with the rights of this user."""
    try:
        return wheel_program("uv", "uv")
    except ProgramRefused as refused:
        if not refused.is_missing:
            raise
    return host_program("uv")


def pip_wheels(python: str) -> list[str]:
    """The pip wheels of venv and ensurepip."""
    found = importlib.util.find_spec("ensurepip")
    places = (found.submodule_search_locations or ()) if found else ()
    folders = [os.path.join(place, "_bundled") for place in places]
    if python.startswith("/usr/bin/"):
        # Debian's wheel fits Debian's Python; an old pip fails on a newer interpreter.
        folders.insert(0, "/usr/share/python-wheels")
    return [path for folder in folders for path in sorted(glob(f"{folder}/pip-*.whl"))]


# The index chooses the names in these lines, which are printed to a terminal.
_SIZE = r"[0-9.]{1,12} ?[kKMG]?i?(?:B|bytes)"
_WHEEL = re.compile(
    r"(?:Downloading|Using cached|Processing) (?:\S*/)?(?P<name>[A-Za-z0-9._]+)-"
    rf"(?P<version>[A-Za-z0-9.!+_]+)-[^\s/]*\.whl(?: \((?P<size>{_SIZE})\))?"
)
_UV_WHEEL = re.compile(rf"Downloading (?P<name>[A-Za-z0-9_-]+) \((?P<size>{_SIZE})\)")


def progress_of(line: str) -> str:
    """The progress that a line of pip or uv reports; empty for other lines."""
    words = line.strip()
    found = _WHEEL.fullmatch(words) or _UV_WHEEL.fullmatch(words)
    if found is not None:
        parts = found.groupdict()
        size = f" ({parts['size']})" if parts["size"] else ""
        return " ".join(filter(None, (parts["name"], parts.get("version")))) + size
    return "unpacking" if words.startswith(("Installing collected", "Prepared ")) else ""


_NO_SPACE = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))

# Messages of installers by precedence: pip ends with "No matching distribution" also when it could
# not reach the index. (signs, code, message, hint)
_FAILURES = (
    (
        ("DO NOT MATCH THE HASHES", "Hash mismatch", "hash mismatch"),
        "CW-TEMPLATE-HASH",
        "a package is not the one that was pinned, so nothing was installed",
        "Try again; if the error persists, the index or a proxy changes packages.",
    ),
    (
        _NO_SPACE,
        "CW-TEMPLATE-NO-SPACE",
        "there is not enough space for the environment",
        "Free about 600 MB where the Cellwall state folder is, or set CELLWALL_HOME elsewhere.",
    ),
    (
        (
            *("Retrying (", "connection broken", "Connection", "timed out", "Name or service"),
            *("name resolution", "Failed to fetch", "dns error", "SSLError", "ProxyError"),
            *("HTTP error", "error sending request", "Could not connect", "certificate"),
        ),
        "CW-TEMPLATE-NETWORK",
        "the package index cannot be reached",
        "Check the network; name a mirror with PIP_INDEX_URL, a proxy with HTTPS_PROXY.",
    ),
    (
        ("No matching distribution", "not find a version", "no wheels", "No solution found"),
        "CW-TEMPLATE-NO-WHEELS",
        "the package index has no wheels of the pinned versions for this Python",
        "Use a glibc system with Python 3.11 to 3.14, or an index that has these versions.",
    ),
)


def failure_of(lines: Sequence[str]) -> CellwallError:
    """The error for a failed installer, from its output."""
    text = "\n".join(lines)
    detail = text[-_MAX_DETAIL:]
    for signs, code, message, hint in _FAILURES:
        if any(sign in text for sign in signs):
            return CellwallError(message, hint=hint, code=code, detail=detail)
    return CellwallError(
        "the packages could not be installed",
        hint="See the installer's last output: `cellwall audit tail --json`.",
        code="CW-TEMPLATE-FAILED",
        detail=detail,
    )


def no_space() -> CellwallError:
    """The same error for a disk that is full before or after the installer runs."""
    return failure_of([_NO_SPACE[0]])


PROGRAM_REFUSED = "cellwall: no program may be started"
WRITE_REFUSED = "cellwall: nothing may be written there"
_GUARDED_PIP = f"""
import os, signal, sys
signal.alarm({int(INSTALL_WITHIN_S)})  # even if its parent has died: pip holds a lock
place, only_in = sys.argv.pop(1), sys.argv.pop(1)
STARTS = {{"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork",
          "os.forkpty", "pty.spawn"}}
CHANGES = {{"os.rename", "os.link", "os.symlink", "os.mkdir", "os.chmod", "os.chown", "os.remove",
           "os.rmdir", "os.truncate"}}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def is_outside(path):
    if not isinstance(path, (str, bytes)):
        return False  # a descriptor
    real = os.path.realpath(os.fsdecode(path))
    return real != os.devnull and not (real + "/").startswith(only_in + "/")
def refuse(event, given):
    if event in STARTS:
        raise PermissionError({PROGRAM_REFUSED!r})
    if only_in and (
        (event == "open" and given[2] & WRITES and is_outside(given[0]))
        # A name that is not absolute is one in a directory that was opened.
        or (event in CHANGES and any(map(is_outside, filter(os.path.isabs, names(given)))))
    ):
        raise PermissionError({WRITE_REFUSED!r})
def names(given):
    return [each for each in given if isinstance(each, (str, bytes))]
sys.addaudithook(refuse)
if place:
    sys.path.insert(0, place)
import runpy
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def guarded_pips(
    python: str, words: tuple[str, ...], *, only_in: str = ""
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """pip under audit hooks, by which it can start no program and, with `only_in`, write in one
    directory alone. Audit hooks work in Python only, so uv is no candidate, and they cannot be
    removed. No code of a package runs in pip, so nothing inside can bypass them; they stop pip
    itself, misled by the data that it reads."""
    beside = importlib.util.find_spec("pip")
    folders = [
        os.path.dirname(place) for place in (beside and beside.submodule_search_locations) or ()
    ]
    kept = os.path.realpath(only_in) if only_in else ""
    for place in ("", *pip_wheels(python), *folders):
        yield [python, "-I", "-c", _GUARDED_PIP, place, kept], words
