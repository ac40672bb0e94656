"""Which templates there are: ours, and those that somebody has defined by naming packages.

$CELLWALL_HOME/templates/NAME.json    the packages that were asked for; written with the build

A request without a name of its own is a template as well: its name is made from its content, so
that the same request finds what was built for it before.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import platform
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.packages import Package, parse_request

PYTHON = "python"
"""The template of the bare interpreter; there is nothing to build for it."""
SHIPPED = {"python-data": "Python with numpy, pandas and matplotlib"}
"""The templates whose packages we have chosen, and what they are."""
REQUEST_PREFIX = "packages-"
"""How the names of requests begin."""

# For these the requirements of our own templates hold hashes of wheels; others are told so before
# anything is loaded.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

_NAME = re.compile(r"[a-z][a-z0-9]{0,39}(?:-[a-z0-9]{1,40}){0,4}")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_ENDING = ".json"
_MAX_BYTES = 64 * 1024
_MAX_NAMES_TOLD = 12


def name_of(request: Sequence[str]) -> str:
    """The name of the template that a request without a name belongs to."""
    return REQUEST_PREFIX + hashlib.sha256("\n".join(request).encode()).hexdigest()[:16]


def names(home: str) -> list[str]:
    """All that can be asked for and built, ours first."""
    try:
        files = os.listdir(os.path.join(home, "templates"))
    except OSError:
        files = []
    ends = len(_ENDING)
    defined = [file[:-ends] for file in files if file.endswith(_ENDING)]
    return [*SHIPPED, *sorted(name for name in defined if _is_user_name(name))]


def check_name(home: str, name: str) -> str:
    """The name of a template that there is, or what to say about another one; it becomes a path."""
    if name in SHIPPED or (_is_user_name(name) and os.path.isfile(_file(home, name))):
        return name
    known = [PYTHON, *names(home)]
    similar = difflib.get_close_matches(name[:80], known, n=3)
    first = f"Did you mean {' or '.join(similar)}? " if similar else ""
    told = ", ".join(known[:_MAX_NAMES_TOLD]) + (", …" if len(known) > _MAX_NAMES_TOLD else "")
    raise BadInput(
        f"there is no template {name[:40]!r}",
        hint=f"{first}There are: {told}. Build one with: cellwall template build NAME --with "
        "PACKAGE",
        code="CW-NO-TEMPLATE",
    )


def check_new_name(name: str, request: Sequence[str]) -> str:
    """The name under which a request may be kept."""
    if name in SHIPPED or name == PYTHON:
        raise BadInput(
            f"{name} is a template of Cellwall's own, and its packages are fixed",
            hint="Choose another name, for example: cellwall template build web --with requests",
            code="CW-TEMPLATE-NAME",
        )
    is_ours = name.startswith(REQUEST_PREFIX)
    if not _is_user_name(name) or (is_ours and name != name_of(request)):
        raise BadInput(
            f"{name[:40]!r} cannot be the name of a template",
            hint="Use lower-case letters, digits and hyphens, not beginning with "
            f"{REQUEST_PREFIX!r}.",
            code="CW-TEMPLATE-NAME",
        )
    return name


def requirements(home: str, name: str) -> bytes:
    """What a template is made of, as pip reads it: pinned with hashes for ours, else as asked."""
    if name in SHIPPED:
        return shipped_requirements(name)
    return as_text(read(home, name))


@functools.cache
def shipped_requirements(name: str) -> bytes:
    """The pinned packages with their hashes."""
    folder = resources.files("cellwall.sandbox").joinpath("templates")
    return folder.joinpath(f"{name}.txt").read_bytes()


def check_wheels(version: str) -> None:
    """Refuse a Python or a machine for which the shipped templates pin no wheels."""
    machine = platform.machine()
    if version not in PYTHONS or machine not in MACHINES:
        raise CellwallError(
            f"there are no packages for Python {version} on {machine}",
            hint=f"Install one of Python {', '.join(PYTHONS)} as /usr/bin/python3, on "
            f"{' or '.join(MACHINES)}.",
            code="CW-TEMPLATE-NO-WHEELS",
        )


def pinned(requirements: bytes) -> list[Package]:
    """The packages of requirements with hashes."""
    return [Package(*found) for found in _PINNED.findall(requirements.decode())]


def as_text(request: Sequence[str]) -> bytes:
    """A request as pip reads it."""
    return "".join(f"{each}\n" for each in request).encode()


def read(home: str, name: str) -> tuple[str, ...]:
    """The packages that were asked for; none for ours."""
    check_name(home, name)
    if name in SHIPPED:
        return ()
    try:
        with open(_file(home, name), "rb") as file:
            return parse_request(json.loads(file.read(_MAX_BYTES))["packages"])
    except (OSError, ValueError, KeyError, TypeError, BadInput) as error:
        raise CellwallError(
            f"the definition of the template {name} is damaged",
            hint=f"Define it again: cellwall template build {name} --with PACKAGE",
            code="CW-TEMPLATE-DAMAGED",
            detail=str(error),
        ) from error


def write(home: str, name: str, request: Sequence[str]) -> None:
    """Whole or not at all; only by whoever holds the template's lock."""
    path = _file(home, name)
    beside = f"{path}.{secrets.token_hex(4)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump({"packages": list(request)}, file)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def forget(home: str, name: str) -> None:
    """It was removed; ours stay known."""
    if name not in SHIPPED:
        with suppress(FileNotFoundError):
            os.unlink(_file(home, name))


def _is_user_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name != PYTHON and name not in SHIPPED


def _file(home: str, name: str) -> str:
    return os.path.join(home, "templates", f"{name}{_ENDING}")
