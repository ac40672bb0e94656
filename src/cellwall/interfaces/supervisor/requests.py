"""The operations of requests for one run, as clients send them. Light, as `client`."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

WORKSPACE = "/workspace"


def command_message(
    command: Sequence[str], cwd: str = WORKSPACE, user: str = "sandbox"
) -> dict[str, Any]:
    """A command, as `codec.decode_operation` reads it."""
    return {
        "kind": "command",
        "argv": list(command),
        "cwd": cwd,
        "background": False,
        "terminal": None,
        "user": user,
    }


def code_message(language: str) -> dict[str, Any]:
    """Code, whose text follows as data."""
    return {"kind": "code", "language": language}
