"""Python packages by uv in a cell: resolved to a lock, installed from a lock (PKG-3, PKG-4, PKG-5).

(1) `resolve`: requirements -> `pylock.toml`, by the index that the registry proxy shows;
(2) `install_pins`: the files of the lock by their hashes, from the same index, wheels only.
    Where policy allows, Cellwall builds a missing wheel from its source, without network;
(3) `compile_tree`: bytecode, by the Python of the cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from cellwall.admin.package_cells import PackageCell
from cellwall.core.errors import CellwallError
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.packages import MAX_PACKAGES
from cellwall.packages.locks.installable import installable_pylock, pins_of
from cellwall.packages.locks.model import Lock
from cellwall.runtime.registries import NOT_BUILT_CODE
from cellwall.sandbox.templates import uv_program

Progress = Callable[[str], None]

_LOCK = "pylock.toml"
_WHEELS_ONLY = ("--only-binary", ":all:")

# The names in these lines come from the index, and are printed to a terminal.
_DOWNLOAD = re.compile(
    r"Downloading (?P<name>[A-Za-z0-9_.-]{1,100}) \((?P<size>[0-9.]{1,12} ?[kKMG]?i?B)\)"
)

# In a person's directory the check after a run quarantines the `.git` that marks the cache of uv,
# so the cache goes within the run.
_DROP_CACHE = ("/bin/sh", "-c", '"$@"; code=$?; rm -rf "$UV_CACHE_DIR"; exit $code', "sh")

# compileall parses and does not execute. RLIMIT_AS bounds a file that makes the compiler use much
# memory; such a file stays source, and the build goes on.
_COMPILE = (
    "import compileall, resource, sys; "
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    "sys.exit(not compileall.main())"
)


async def resolve(
    cell: PackageCell, requirements: Sequence[str], *, python: str, on_progress: Progress
) -> tuple[Lock, bytes]:
    """(1) The lock of these requirements, and its file."""
    on_progress("resolving")
    words = ["pip", "compile", "--no-config", "--quiet", "--no-header", "--format", _LOCK]
    words += [*_WHEELS_ONLY, "--python", python, "-", "-o", f"/workspace/{_LOCK}"]
    text = "".join(f"{each}\n" for each in requirements)
    await _run_uv(cell, words, text.encode(), on_progress, needed=requirements)
    content = await cell.read(_LOCK)
    return installable_pylock(content), content


async def install_pins(
    cell: PackageCell, pins: bytes, *, python: str, place: Sequence[str], on_progress: Progress
) -> None:
    """(2) Install the files with these hashes, and no others; `place` are uv's words for where."""
    count = sum(line[:1].isalnum() for line in pins.splitlines())
    on_progress(f"installing {counted(count)}")
    words = ["pip", "install", "--no-config", "--require-hashes", "--no-deps", *_WHEELS_ONLY]
    words += ["--python", python, *place, "-r", "-"]
    await _run_uv(cell, words, pins, on_progress, needed=_names_in(pins))


async def sync_environment(
    cell: PackageCell, lock: Lock, *, python: str, folder: str, on_progress: Progress
) -> None:
    """A new virtual environment with exactly the packages of the lock."""
    words = ["venv", "--no-config", "--quiet", "--relocatable", "--prompt", "workspace"]
    await _run_uv(cell, [*words, "--python", python, folder], b"", on_progress, before=_DROP_CACHE)
    on_progress(f"installing {counted(len(lock.packages))}")
    words = ["pip", "sync", "--no-config", "--require-hashes", *_WHEELS_ONLY]
    words += ["--python", folder, "-"]
    pins = pins_of(lock)
    await _run_uv(cell, words, pins, on_progress, before=_DROP_CACHE, needed=_names_in(pins))


async def compile_tree(cell: PackageCell, path: str, *, python: str, on_progress: Progress) -> None:
    """(3) Write bytecode: the tree is read-only inside, and every run would compile it anew.

    The mode `unchecked-hash` makes it independent of file times. Paths in the bytecode are relative
    to the tree. A failure makes imports slower, nothing else.
    """
    on_progress("compiling")
    words = [python, "-I", "-W", "ignore", "-c", _COMPILE, "-qq", "-j", "0"]
    words += ["--invalidation-mode", "unchecked-hash", "-x", "/tests/", "-s", path, path]
    await cell.run(words, cwd="/tmp", on_line=lambda _line: None)


def counted(number: int) -> str:
    """`1 package`, `2 packages`."""
    return f"{number} package" + ("" if number == 1 else "s")


def count_of(total: int, on_progress: Progress) -> Callable[[int], None] | None:
    """Shows how many of several packages have come."""
    if total < 2:
        return None
    return lambda done: on_progress(f"installing: {min(done, total)} of {counted(total)}")


async def _run_uv(
    cell: PackageCell,
    words: Sequence[str],
    stdin: bytes,
    on_progress: Progress,
    *,
    before: Sequence[str] = (),
    needed: Sequence[str] = (),
) -> None:
    """`needed`: the packages whose sources may be built, where uv finds no wheel of them."""

    def show(line: str) -> None:
        if found := _DOWNLOAD.fullmatch(line.strip()):
            on_progress(f"{found['name']} ({found['size']})")

    argv = [*before, uv_program.INSIDE, *words]
    run = partial(
        cell.run, argv, cwd="/tmp", stdin=stdin, on_line=show,
        on_packages=count_of(len(needed), on_progress),
    )  # fmt: skip
    outcome = await run()
    if outcome.status is not Status.OK and needed and _may_build(cell, outcome):
        on_progress("building from source")
        built = await cell.build(needed)
        if built.status is Status.OK:
            outcome = await run()
        elif any(each.category == "packages" for each in built.findings):
            outcome = built
    if outcome.status is not Status.OK:
        raise failure_of(outcome)


def _may_build(cell: PackageCell, outcome: Outcome) -> bool:
    refused = {each.rule for each in outcome.findings if each.category == "packages"}
    if NOT_BUILT_CODE in refused:
        return True
    # A package with wheels for other machines alone is not refused; the resolver finds nothing.
    return not refused and cell.app.settings.packages.dangerously_build_sources


def _names_in(pins: bytes) -> list[str]:
    """`name==version` of each pin; none of a lock with more packages than a request may name."""
    lines = pins.decode().splitlines()
    found = [line.split()[0] for line in lines if line[:1].isalnum()]
    return found if len(found) <= MAX_PACKAGES else []


_FEED_SIGN = "cellwall packages feed update"
_FEED_HINT = (
    "Run `cellwall packages feed update`; on a host without access to it, `cellwall packages feed "
    'import FILE`; or do without the feed: without_feed = "allow" in [packages].'
)
# Signs in the output of uv and npm, by precedence: (signs, code, message, hint).
_FAILURES = (
    (
        ("Hash mismatch", "hash mismatch", "EINTEGRITY"),
        "CW-TEMPLATE-HASH",
        "a package is not the one in the lock, so nothing was installed",
        "Try again; if the error persists, the index or a proxy changes packages.",
    ),
    (
        ("No space left", "Disk quota exceeded"),
        "CW-TEMPLATE-NO-SPACE",
        "there is not enough space for the packages",
        "Free about 600 MB where the Cellwall state folder is, or set CELLWALL_HOME elsewhere.",
    ),
    (
        ("URL dependencies", "direct URL"),
        "CW-PACKAGE-REFUSED",
        "a package needs another one by its URL, not from the index",
        "Ask for another version or package.",
    ),
    (
        ("Failed to fetch", "error sending request", "Request failed", "502", "timed out"),
        "CW-TEMPLATE-NETWORK",
        "the package index cannot be reached",
        "Check the network; name a mirror with pypi_url in [packages] of the configuration.",
    ),
    (
        ("your requirements are unsatisfiable", "your requirements cannot be"),
        "CW-PACKAGE-NOT-FOUND",
        "the index has no wheels of these packages that fit each other and the Python inside",
        "Check the spelling and the versions; a package without wheels is built if policy allows.",
    ),
)


def failure_of(outcome: Outcome) -> CellwallError:
    """The error for a package manager that failed: what the proxy refused, else its own output."""
    detail = outcome.stderr[-2000:]
    refused = [each.message for each in outcome.findings if each.category == "packages"]
    if refused:
        is_feed = any(_FEED_SIGN in each for each in refused)
        reasons = "; ".join(dict.fromkeys(refused))
        return CellwallError(
            f"a package may not be installed: {reasons[:600]}",
            hint=_FEED_HINT
            if is_feed
            else "Ask for another package or version; `cellwall packages verify NAME` tells why.",
            code="CW-PACKAGE-REFUSED",
            detail=detail,
        )
    if outcome.limit is LimitName.DISK:
        detail = "No space left"
    for signs, code, message, hint in _FAILURES:
        if any(sign in detail for sign in signs):
            return CellwallError(message, hint=hint, code=code, detail=detail)
    return CellwallError(
        "the packages could not be installed",
        hint="See the last output of the package manager: `cellwall audit tail --json`.",
        code="CW-TEMPLATE-FAILED",
        detail=detail,
    )
