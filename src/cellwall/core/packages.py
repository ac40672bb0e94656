"""Package requests as plain data. Pure.

A requirement here is a name, extras and versions. Everything else that pip takes in its place names
a file, an address, another index or code to build, and is refused: words of users, programs and
files end in an installer that runs on the host.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from cellwall.core.errors import BadInput

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
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*")

# (what is in the text, what that means); the first that is found is told.
_REASONS = (
    ("-", "an option of pip"),
    ("@", "an address or a path"),
    ("/", "an address or a path"),
    (";", "an environment marker"),
)


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was requested, or that an index resolved."""

    name: str
    version: str | None = None
    """None: not resolved yet."""


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


def parse_request(texts: object) -> tuple[str, ...]:
    """All requirements, deduplicated and sorted: equal requests are equal values."""
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
    return tuple(sorted({parse_requirement(text) for text in texts}))


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
    return next((f", but {told}" for sign, told in _REASONS[1:] if sign in text), "")
