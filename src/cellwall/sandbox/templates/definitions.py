"""The templates: shipped with Cellwall, or defined by users who name packages or give a lock.

$CELLWALL_HOME/templates/NAME.json    the requested packages, or the pins of a lock; written with
                                      the build

A request without a name is a template as well: its name is a hash of its content, so that the same
request finds the environment that was built before.
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
from dataclasses import dataclass
from importlib import resources

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.packages import Package, parse_request

PYTHON = "python"
"""The template of the bare interpreter, which needs no build."""
UV = "uv"
"""The template of the build cells, with uv alone; it needs no build."""
SHIPPED = {"python-data": "Python with numpy, pandas and matplotlib"}
"""The templates shipped with Cellwall, and their descriptions."""
REQUEST_PREFIX = "packages-"
"""The prefix of templates that are named after a request."""

# For these the requirements of our own templates hold hashes of wheels; others are refused before
# anything is loaded.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[a-z][a-z0-9]{0,39}(?:-[a-z0-9]{1,40}){0,4}")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_ENDING = ".json"
_MAX_BYTES = 8 * 1024 * 1024
_MAX_NAMES_LISTED = 12


def name_of(request: Sequence[str]) -> str:
    """The template name of a request without a name."""
    return REQUEST_PREFIX + hashlib.sha256("\n".join(request).encode()).hexdigest()[:16]


def names(home: str) -> list[str]:
    """All templates that can be built, the shipped ones first."""
    try:
        files = os.listdir(os.path.join(home, "templates"))
    except OSError:
        files = []
    ends = len(_ENDING)
    defined = [file[:-ends] for file in files if file.endswith(_ENDING)]
    return [*SHIPPED, *sorted(name for name in defined if _is_user_name(name))]


def is_defined(home: str, name: str) -> bool:
    """Whether there is a template of this name, built or not."""
    return name in SHIPPED or (_is_user_name(name) and os.path.isfile(_file(home, name)))


def check_name(home: str, name: str) -> str:
    """Refuse the name of a template that does not exist; the name becomes a path."""
    if is_defined(home, name):
        return name
    known = [PYTHON, *names(home)]
    similar = difflib.get_close_matches(name[:80], known, n=3)
    first = f"Did you mean {' or '.join(similar)}? " if similar else ""
    listed = ", ".join(known[:_MAX_NAMES_LISTED]) + (
        ", …" if len(known) > _MAX_NAMES_LISTED else ""
    )
    raise BadInput(
        f"there is no template {name[:40]!r}",
        hint=f"{first}There are: {listed}. Build one with: cellwall template build NAME --with "
        "PACKAGE",
        code="CW-NO-TEMPLATE",
    )


def check_new_name(name: str, definition: TemplateDefinition) -> str:
    """Refuse a name that a user may not give to a template."""
    if name in SHIPPED or name in {PYTHON, UV}:
        raise BadInput(
            f"{name} is a template of Cellwall itself, and its packages are fixed",
            hint="Choose another name, for example: cellwall template build web --with requests",
            code="CW-TEMPLATE-NAME",
        )
    is_ours = name.startswith(REQUEST_PREFIX)
    if not _is_user_name(name) or (is_ours and name != definition.name):
        raise BadInput(
            f"{name[:40]!r} cannot be the name of a template",
            hint="Use lower-case letters, digits and hyphens, not beginning with "
            f"{REQUEST_PREFIX!r}.",
            code="CW-TEMPLATE-NAME",
        )
    return name


@dataclass(frozen=True, slots=True)
class TemplateDefinition:
    """The packages of a template: requirements, and the exact files if they are locked."""

    request: tuple[str, ...]
    pins: bytes = b""
    """Requirements with hashes; empty for a request that each build resolves."""

    @property
    def text(self) -> bytes:
        """The requirements file: pinned with hashes if locked, else as requested."""
        return self.pins or as_text(self.request)

    @property
    def name(self) -> str:
        """The name of the template for a definition without a name."""
        return name_of(self.request or (self.pins.decode(),))


@functools.cache
def shipped_requirements(name: str) -> bytes:
    """The pinned packages of a shipped template, with their hashes."""
    folder = resources.files("cellwall.sandbox").joinpath("templates")
    return folder.joinpath(f"{name}.txt").read_bytes()


@functools.cache
def shipped_hashes() -> frozenset[str]:
    """The SHA-256 of every wheel in the locks of the shipped templates."""
    texts = [shipped_requirements(name).decode() for name in SHIPPED]
    return frozenset(found for text in texts for found in _HASH.findall(text))


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


def pinned_packages(requirements: bytes) -> list[Package]:
    """The packages of requirements with hashes."""
    return [Package(*found) for found in _PINNED.findall(requirements.decode())]


def as_text(request: Sequence[str]) -> bytes:
    """A request as a requirements file."""
    return "".join(f"{each}\n" for each in request).encode()


def read(home: str, name: str) -> TemplateDefinition:
    """The definition of a template; a shipped one has pins and no request."""
    check_name(home, name)
    if name in SHIPPED:
        return TemplateDefinition((), shipped_requirements(name))
    try:
        with open(_file(home, name), "rb") as file:
            note = json.loads(file.read(_MAX_BYTES))
        return TemplateDefinition(parse_request(note["packages"]), note.get("pins", "").encode())
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        BadInput,
    ) as error:
        raise CellwallError(
            f"the definition of the template {name} is damaged",
            hint=f"Define it again: cellwall template build {name} --with PACKAGE",
            code="CW-TEMPLATE-DAMAGED",
            detail=str(error),
        ) from error


def write(home: str, name: str, definition: TemplateDefinition) -> None:
    """Write a definition atomically; the caller holds the template's lock."""
    path = _file(home, name)
    beside = f"{path}.{secrets.token_hex(4)}"
    note = {"packages": list(definition.request)}
    locked = {"pins": definition.pins.decode()} if definition.pins else {}
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump({**note, **locked}, file)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def forget(home: str, name: str) -> None:
    """Remove the definition of a template; shipped ones have none."""
    if name not in SHIPPED:
        with suppress(FileNotFoundError):
            os.unlink(_file(home, name))


def _is_user_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in {PYTHON, UV, *SHIPPED}


def _file(home: str, name: str) -> str:
    return os.path.join(home, "templates", f"{name}{_ENDING}")
