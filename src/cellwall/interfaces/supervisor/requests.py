"""Requests for one run, as clients send them. Light, as `client`."""

from __future__ import annotations

import os

from cellwall import __version__
from cellwall.core.home import shaping

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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


def single_message(operation: Mapping[str, Any], *, began_ns: int) -> dict[str, Any] | None:
    """A request for one run, without its options and with no standard input.

    None where this process has no working directory any more."""
    try:
        here = os.getcwd()
    except OSError:  # removed
        return None
    return {
        "do": "single",
        "began_ns": began_ns,
        "version": __version__,
        "cwd": here,
        "operation": operation,
        "shaping": shaping(os.environ),
        "stdin": None,
    }
