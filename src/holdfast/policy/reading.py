"""Opens a policy file without waiting, judges the open file, and reads it within bounds."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.core.errors import ConfigError
from holdfast.core.limits import MIB
from holdfast.policy.rules import Layer

FILE_MOST_BYTES = MIB


def read_text(path: str, *, shown: str, layer: Layer) -> str:
    """The file's text. Raises `ConfigError` for a file that cannot or must not be trusted."""
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer for ever.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _cannot_open(shown, error) from None
    try:
        _judge(os.fstat(opened), shown=shown, layer=layer)
        raw = _read_bounded(opened, shown=shown)
    except OSError as error:
        raise _cannot_open(shown, error) from None
    finally:
        os.close(opened)
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _refused(f"{shown}:{line}", "not UTF-8 text", "Save the file as UTF-8.") from None


def _refused(place: str, problem: str, mend: str, *, code: str = "HF-POLICY-FILE") -> ConfigError:
    return ConfigError(f"{place}: {problem}", mend=mend, code=code)


_OPEN_PROBLEMS = {
    errno.ENOENT: ("no such file", "Name a file that exists."),
    errno.ENOTDIR: ("no such file", "Name a file that exists."),
    errno.EACCES: ("may not be read", "Let the user who runs Holdfast read it."),
    errno.ELOOP: ("its symbolic links form a loop", "Name the file itself."),
    errno.ENAMETOOLONG: ("the name is too long", "Name a file that exists."),
}


def _cannot_open(shown: str, error: OSError | ValueError) -> ConfigError:
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    problem, mend = _OPEN_PROBLEMS.get(number, ("cannot be read", "Name a regular file."))
    return _refused(shown, problem, mend)


def _judge(found: os.stat_result, *, shown: str, layer: Layer) -> None:
    """Looks at the open file, not at its path, which may change in between."""
    if stat.S_ISDIR(found.st_mode):
        raise _refused(shown, "is a directory", "Name the policy file in it.")
    if not stat.S_ISREG(found.st_mode):
        raise _refused(shown, "is not a regular file", "Name a regular file.")
    # Attack: another user writes rules that allow. Those of a project's group can change its code,
    # and the project's rules can only tighten, so there the group may write.
    if found.st_uid not in {0, os.geteuid()}:
        raise _refused(
            shown,
            "belongs to another user, who could loosen the rules",
            "Check what it says, then make it your own with chown.",
            code="HF-POLICY-UNSAFE",
        )
    writers = stat.S_IWOTH if layer >= Layer.PROJECT else stat.S_IWGRP | stat.S_IWOTH
    if found.st_mode & writers:
        raise _refused(
            shown,
            "can be written by other users, who could loosen the rules",
            "Check what it says, then take that right away with chmod go-w.",
            code="HF-POLICY-UNSAFE",
        )


def _read_bounded(opened: int, *, shown: str) -> bytes:
    raw = bytearray()
    while block := os.read(opened, FILE_MOST_BYTES + 1 - len(raw)):
        raw += block
        if len(raw) > FILE_MOST_BYTES:
            raise _refused(shown, "is larger than 1 MiB", "Name the policy file.")
    return bytes(raw)
