"""Adds a rule that a person has approved to their policy file; all else in it stays as it is."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import tomllib
from contextlib import suppress

from cellwall.core.errors import CellwallError
from cellwall.policy.files import parse_policy
from cellwall.policy.rules import Layer

_MOST_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def add_rule(path: str, rule: str, *, reason: str, answers: str) -> bool:
    """Append `[[rule]]` that answers one that asks; False if the same rule stands there already.

    A table behind all others changes the meaning of none of them, so nothing that a person wrote
    has to be understood or moved.
    """
    try:
        folder_path, name = os.path.split(os.path.realpath(path))
        os.makedirs(folder_path, mode=0o700, exist_ok=True)
        folder = os.open(folder_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # held for a few system calls only
            return _add(folder, name, rule, reason, answers)
        finally:
            os.close(folder)
    except OSError as error:
        raise _unwritten("it cannot be read or written", detail=str(error)) from error


def _add(folder: int, name: str, rule: str, reason: str, answers: str) -> bool:
    before, mode = _read(folder, name)
    data = _parse(before)
    present = _rules(data)
    table = {"verdict": "allow", "rule": rule, "reason": reason, "answers": answers}
    same = [each for each in present if isinstance(each, dict) and each.get("rule") == rule]
    if any((each.get("verdict"), each.get("answers")) == ("allow", answers) for each in same):
        return False
    lines = "".join(f"{key} = {_quoted(value)}\n" for key, value in table.items())
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    after = f"{before}{gap}[[rule]]\n{lines}"
    # Proof instead of trust: it reads back as what was there, and this one rule.
    if _parse(after) != {**data, "rule": [*present, table]}:
        raise _unwritten("a rule cannot be added behind what stands there")
    _check_readable(after)
    _replace(folder, name, after.encode(), mode)
    return True


def _check_readable(text: str) -> None:
    """What the reader refuses is never written: one such rule would make it refuse all others."""
    name = "policy.toml"
    try:
        parse_policy(text, file=name, name=name, layer=Layer.USER, folder="/")
    except CellwallError as error:
        raise _unwritten("it would not be valid any more", detail=error.message) from None


def _read(folder: int, name: str) -> tuple[str, int]:
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return "", 0o600
    try:
        status = os.fstat(file)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & 0o022:
            raise _unwritten("it is not a plain file that only you can write")
        raw = os.pread(file, _MOST_BYTES + 1, 0)
    finally:
        os.close(file)
    if len(raw) > _MOST_BYTES:
        raise _unwritten("it is too large")
    try:
        return raw.decode("utf-8"), stat.S_IMODE(status.st_mode)
    except UnicodeDecodeError:
        raise _unwritten("it is not UTF-8 text") from None


def _parse(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        raise _unwritten("it is not valid TOML, or a rule cannot be added to it") from None


def _rules(data: dict[str, object]) -> list[object]:
    rules = data.get("rule", [])
    if not isinstance(rules, list):
        raise _unwritten("`rule` in it is not a list of tables")
    return rules


def _quoted(text: str) -> str:
    # A JSON text is a TOML text too, but for DEL, which no rule has.
    return json.dumps(text)


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    draft = f".{name}.{secrets.token_hex(8)}"
    file = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fchmod(file, mode)
        os.fsync(file)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    finally:
        os.close(file)
    os.fsync(folder)


def _unwritten(problem: str, *, detail: str = "") -> CellwallError:
    return CellwallError(
        f"the rule was not written into the policy file: {problem}",
        mend="Add it by hand; the policy file is policy.toml beside the configuration.",
        code="CW-RULE-UNWRITTEN",
        detail=detail,
    )
