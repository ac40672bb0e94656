"""The users inside a sandbox: `sandbox`, and `root` where the sandbox has a second one.

Both are unprivileged uids of the host, with the same walls around them. File modes keep them apart.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from cellwall.core.errors import BadInput

UserInside: TypeAlias = Literal["sandbox", "root"]
SANDBOX_USER: UserInside = "sandbox"
SECOND_USER: UserInside = "root"
"""It has the uid 0 inside and no power of root: no capability, no file of the host."""

NO_USER = "CW-NO-USER"
"""Code of the refusal of a user whom a sandbox does not have."""
NO_SECOND_USER = frozenset({"CW-SECOND-USER-OFF", "CW-SECOND-USER-HOST"})
"""Codes of the refusal where no sandbox of this configuration, or of this host, has one."""

_NAMES: dict[str, UserInside] = {
    "": SANDBOX_USER,
    "sandbox": SANDBOX_USER,
    "1000": SANDBOX_USER,
    "root": SECOND_USER,
    "0": SECOND_USER,
}


def parse_user(name: object) -> UserInside:
    """The user of this name or uid; raises for one that no sandbox has."""
    if name is None:
        return SANDBOX_USER
    user = _NAMES.get(name) if isinstance(name, str) else None
    if user is None:
        raise BadInput(
            f"there is no user {name!r:.60} inside: there are sandbox, and root where the sandbox "
            "has a second user",
            hint="Leave the user out, or name one of the two; no user can be added inside.",
            code=NO_USER,
        )
    return user


def no_second_user() -> BadInput:
    """The error for a program as `root` in a sandbox of one user."""
    return BadInput(
        "there is no user 'root', of uid 0, inside: programs run as sandbox, without root",
        hint="Leave the user out, or create the sandbox with second_user, which gives it an "
        "unprivileged root. Install system packages on the host, and Python packages by a "
        "template.",
        code=NO_USER,
    )
