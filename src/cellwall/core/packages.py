"""Package requests as plain data. Pure.

A requirement here is a name, extras and versions. Everything else that pip takes in its place names
a file, an address, another index or code to build, and is refused: the index of the configuration
is the only source of packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cellwall.core.errors import BadInput
from cellwall.core.verdict import Decision

RegistryName: TypeAlias = Literal["pypi", "npm"]
REGISTRIES: tuple[RegistryName, ...] = get_args(RegistryName)
"""The package registries that actions can name."""

PACKAGES_IN_WORKSPACE = ".cellwall-packages"
"""In a user's directory: Python packages that were installed for it in cells, as a user base."""

MAX_PACKAGES = 100
MAX_REQUIREMENT_CHARS = 200
MAX_FILE_BYTES = 256 * 1024

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
# PEP 440, without dots in a local version: pip takes `a==1.zip` for the name of a file. No `===`:
# that compares texts, and so takes any.
_VERSION = (
    r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?\d*)?(?:[-_.]?dev[-_.]?\d*)?(?:\+[A-Za-z0-9]+)?(?:\.\*)?"
)
_CLAUSE = rf"(?:==|!=|<=|>=|~=|<|>) *{_VERSION}"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME}) *(?:\[ *(?P<extras>{_NAME}(?: *, *{_NAME})*) *\])? *"
    rf"(?P<versions>{_CLAUSE}(?: *, *{_CLAUSE})*)?",
    re.ASCII,
)
# npm: a name with a scope or without, then a version, a range of versions or a tag. A colon, slash
# or hash there names a file, an address, a repository or another package (an alias).
_NPM_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NPM_RANGE = r"[0-9A-Za-z*^~<>=|.+ -]+"
_NPM_SPEC = re.compile(
    rf"(?P<name>(?:@{_NPM_PART}/)?{_NPM_PART})(?:@(?P<versions>{_NPM_RANGE}))?", re.ASCII
)
_NPM_FILE = re.compile(r"\.(?:tgz|tar|tar\.gz) *\Z", re.IGNORECASE)
"""npm takes such a name, or such a version, for a file."""
_PINS: dict[RegistryName, re.Pattern[str]] = {
    "pypi": re.compile(r"\A[^,<>!~=]*==(?P<version>[^,*]+)\Z"),
    "npm": re.compile(r".@=?(?P<version>\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)\Z"),
}
"""Requirements that name exactly one version."""
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*")

# A sign in the text, and its meaning; the message names the first match.
_REASONS = (
    ("-", "an option of pip"),
    ("@", "an address or a path"),
    ("/", "an address or a path"),
    (";", "an environment marker"),
)


@dataclass(frozen=True, slots=True)
class InstallPackages:
    """Install packages by name into the workspace of a session (PKG-1), in a cell."""

    ecosystem: RegistryName
    requirements: tuple[str, ...]
    """As `parse_install` writes them."""
    only_build: bool = False
    """Build the sources that these packages need, and install nothing (PKG-3); for templates and
    locks, whose own cells then find the wheels in the index."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was requested, or that an index resolved."""

    name: str
    version: str | None = None
    """None: not resolved yet."""


@dataclass(frozen=True, slots=True)
class InstallRuling:
    """What the rules, or a person, say about a package or one version of it."""

    decision: Decision | None = None
    """None: no rule names the package."""
    lifts: frozenset[str] = frozenset()
    """The limits that do not hold for the package: `age`, `license`, `source`."""
    approved_by: str = ""
    """The person who allowed the package for this session."""


def normalized(name: str) -> str:
    """The normalised name (PEP 503), as an index knows it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(text: str) -> str:
    """`name[extra]>=1,<2` normalised; raises with the reason of a refusal."""
    found = _REQUIREMENT.fullmatch(text.strip(" ")) if len(text) <= MAX_REQUIREMENT_CHARS else None
    if found is None:
        raise BadInput(
            f"{text[:60]!r} is not the name of a package{_reason(text)}",
            hint="Write a name, with versions or without, such as requests, 'pandas<3' or "
            "'uvicorn[standard]'.",
            code="CW-BAD-PACKAGE",
        )
    extras = sorted(normalized(each.strip()) for each in (found["extras"] or "").split(",") if each)
    clauses = sorted(each.replace(" ", "") for each in (found["versions"] or "").split(",") if each)
    options = f"[{','.join(extras)}]" if extras else ""
    return f"{normalized(found['name'])}{options}{','.join(clauses)}"


def parse_npm_spec(text: str) -> str:
    """`@scope/name@^1.2` as npm reads it; raises with the reason of a refusal."""
    found = _NPM_SPEC.fullmatch(text.strip(" ")) if len(text) <= MAX_REQUIREMENT_CHARS else None
    if found is None or _NPM_FILE.search(text):
        raise BadInput(
            f"{text[:60]!r} is not the name of a package of npm{_npm_reason(text)}",
            hint="Write a name, with versions or without: lodash, 'vite@^7', @types/node.",
            code="CW-BAD-PACKAGE",
        )
    versions = " ".join((found["versions"] or "").split())
    # As it is written: `JSONStream` and `jsonstream` are packages of different authors.
    return found["name"] + (f"@{versions}" if versions else "")


def parse_install(ecosystem: object, texts: object) -> InstallPackages:
    """The operation that installs these packages; raises with the reason of a refusal."""
    match ecosystem:
        case "pypi":
            return _non_empty(InstallPackages("pypi", parse_request(texts)))
        case "npm":
            specs = (parse_npm_spec(text) for text in _listed(texts))
            return _non_empty(InstallPackages("npm", tuple(sorted(set(specs)))))
        case _:
            raise BadInput(
                f"unknown package registry: {str(ecosystem)[:60]!r}",
                hint=f"Use one of: {', '.join(REGISTRIES)}.",
                code="CW-BAD-REGISTRY",
            )


def _non_empty(operation: InstallPackages) -> InstallPackages:
    if not operation.requirements:
        raise BadInput(
            "no package is named", hint="Name one, such as requests.", code="CW-BAD-PACKAGE"
        )
    return operation


def requested_name(ecosystem: RegistryName, requirement: str) -> str:
    """The name in a parsed requirement."""
    if ecosystem == "npm":
        return requirement[: requirement.find("@", 1)] if "@" in requirement[1:] else requirement
    return package_of(requirement).name


def packages_of(operation: InstallPackages) -> tuple[str, ...]:
    """The packages as rules name them: `pypi:requests`, `npm:@types/node==24.1.0`. A version is
    given where the requirement names exactly one."""
    ecosystem, pin = operation.ecosystem, _PINS[operation.ecosystem]
    found = []
    for each in operation.requirements:
        # Rules and checks take names that differ by case for one.
        name, pinned = requested_name(ecosystem, each).lower(), pin.search(each)
        found.append(f"{ecosystem}:{name}" + (f"=={pinned['version']}" if pinned else ""))
    return tuple(found)


def parse_request(texts: object) -> tuple[str, ...]:
    """All requirements, deduplicated and sorted: equal requests are equal values."""
    return tuple(sorted({parse_requirement(text) for text in _listed(texts)}))


def _listed(texts: object) -> Collection[str]:
    if isinstance(texts, str | bytes) or not (
        isinstance(texts, Collection) and all(isinstance(text, str) for text in texts)
    ):
        raise BadInput(
            "packages are given as a list of names",
            hint='Write packages=["requests"].',
            code="CW-BAD-PACKAGE",
        )
    if len(texts) > MAX_PACKAGES:
        raise BadInput(
            f"{len(texts)} packages are more than the {MAX_PACKAGES} that one request may name",
            hint="Name those that the code imports; what they need is found.",
            code="CW-BAD-PACKAGE",
        )
    return texts


def parse_requirements_file(content: bytes) -> tuple[str, ...]:
    """The requirements of a requirements.txt with names and versions alone."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadInput("the requirements file is not UTF-8 text", code="CW-BAD-PACKAGE") from None
    found = []
    for number, line in enumerate(lines, start=1):
        text = _COMMENT.sub("", line).strip()
        if not text:
            continue
        try:
            found.append(parse_requirement(text))
        except BadInput as error:
            raise BadInput(
                f"line {number} of the requirements file: {error.message}",
                hint="Use lines such as `requests` or `pandas<3`; versions are pinned and hashed "
                "when the template is built.",
                code="CW-BAD-PACKAGE",
            ) from None
    return parse_request(found)


def package_of(requirement: str) -> Package:
    """The package of a parsed requirement."""
    return Package(re.split(r"[\[<>=!~]", requirement, maxsplit=1)[0])


def _reason(text: str) -> str:
    if text.strip().startswith(_REASONS[0][0]):
        return f", but {_REASONS[0][1]}"
    return next((f", but {meaning}" for sign, meaning in _REASONS[1:] if sign in text), "")


def _npm_reason(text: str) -> str:
    if text.strip().startswith("-"):
        return ", but an option of npm"
    kinds = ((":", "an address, a file or an alias"), ("#", "a repository"), ("/", "a path"))
    return next((f", but {meaning}" for sign, meaning in kinds if sign in text), "")
