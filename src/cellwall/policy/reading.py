"""Reads a policy file, and tells why one is not read."""

from __future__ import annotations

from cellwall.core.errors import ConfigError
from cellwall.core.settings_file import UNSAFE, Fault, FileRefused, read_settings
from cellwall.policy.rules import Layer

_MENDS = {
    Fault.ABSENT: "Name a file that exists.",
    Fault.LONG_NAME: "Name a file that exists.",
    Fault.FORBIDDEN: "Let the user who runs Cellwall read it.",
    Fault.LOOP: "Name the file itself.",
    Fault.UNREADABLE: "Name a regular file.",
    Fault.IRREGULAR: "Name a regular file.",
    Fault.FOLDER: "Name the policy file in it.",
    Fault.TOO_LARGE: "Name the policy file.",
    Fault.STRANGER: "Check what it says, then make it your own with chown.",
    Fault.WRITABLE: "Check what it says, then take that right away with chmod go-w.",
    Fault.NOT_TEXT: "Save the file as UTF-8.",
}


def read_text(path: str, *, shown: str, layer: Layer) -> str:
    """The file's text. Raises `ConfigError` for a file that cannot or must not be trusted."""
    try:
        # Those of a project's group can change its code, and the project's rules can only tighten.
        return read_settings(path, may_group_write=layer >= Layer.PROJECT)
    except FileRefused as refused:
        place = f"{shown}:{refused.line}" if refused.line else shown
        is_unsafe = refused.fault in UNSAFE
        harm = ", who could loosen the rules" if is_unsafe else ""
        raise ConfigError(
            f"{place}: {refused.fault.value}{harm}",
            hint=_MENDS[refused.fault],
            code="CW-POLICY-UNSAFE" if is_unsafe else "CW-POLICY-FILE",
        ) from None
