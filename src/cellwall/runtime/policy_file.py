"""Appends rules that a person has approved to a policy file; its other content stays unchanged."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.core.errors import CellwallError
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer

_MAX_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Draft:
    """A policy file with rules appended, for review before it is written."""

    path: str
    before: str
    after: str


def add_rule(path: str, rule: str, *, reason: str, answers: str) -> bool:
    """Append a `[[rule]]` that answers an asking rule; False if the file has it already."""
    table = {"verdict": "allow", "rule": rule, "reason": reason, "answers": answers}
    lines = "".join(f"{key} = {_quote(value)}\n" for key, value in table.items())
    with _lock_folder(path) as (folder, name):
        before, mode = _read(folder, name)
        data = _parse(before)
        same = [
            each for each in _rules(data) if isinstance(each, dict) and each.get("rule") == rule
        ]
        if any((each.get("verdict"), each.get("answers")) == ("allow", answers) for each in same):
            return False
        after = _append(before, f"[[rule]]\n{lines}", [table])
        _replace(folder, name, after.encode(), mode)
    return True


def draft_rules(path: str, text: str, tables: Sequence[Mapping[str, str]]) -> Draft:
    """The file with `text` appended, which spells `tables`; nothing is written or created."""
    real = os.path.realpath(path)
    try:
        folder = os.open(os.path.dirname(real), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Draft(real, "", _append("", text, tables))
    except OSError as error:
        raise _write_error("it cannot be read or written", detail=str(error)) from error
    try:
        before, _ = _read(folder, os.path.basename(real), is_shown=True)
    except OSError as error:
        raise _write_error("it cannot be read or written", detail=str(error)) from error
    finally:
        os.close(folder)
    return Draft(real, before, _append(before, text, tables))


def write_draft(draft: Draft) -> None:
    """Write the draft, if the file has not changed since the draft was made."""
    with _lock_folder(draft.path) as (folder, name):
        before, mode = _read(folder, name, is_shown=True)
        if before != draft.before:
            raise _write_error("the file has changed since it was shown")
        _replace(folder, name, draft.after.encode(), mode)


@contextmanager
def _lock_folder(path: str) -> Iterator[tuple[int, str]]:
    """The file's folder, created if missing and locked for one writer."""
    try:
        folder_path, name = os.path.split(os.path.realpath(path))
        os.makedirs(folder_path, mode=0o700, exist_ok=True)
        folder = os.open(folder_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # for a few system calls only
            yield folder, name
        finally:
            os.close(folder)
    except OSError as error:
        raise _write_error("it cannot be read or written", detail=str(error)) from error


def _append(before: str, text: str, tables: Sequence[Mapping[str, str]]) -> str:
    """A table after all others changes the meaning of none, so the person's text is neither parsed
    for editing nor moved."""
    data = _parse(before)
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    after = f"{before}{gap}{text}"
    # Verified: the result parses to the old data and these rules.
    if _parse(after) != {**data, "rule": [*_rules(data), *map(dict, tables)]}:
        raise _write_error("a rule cannot be appended to its content")
    _check_readable(after)
    return after


def _check_readable(text: str) -> None:
    """An invalid file is never written: one invalid rule would void all others."""
    name = "policy.toml"
    try:
        parse_policy(text, file=name, name=name, layer=Layer.USER, folder="/")
    except CellwallError as error:
        raise _write_error("the result would be invalid", detail=error.message) from None


def _read(folder: int, name: str, *, is_shown: bool = False) -> tuple[str, int]:
    """The text and mode. A file that a person reviews before the write may be group-writable, as
    in a clone with umask 002."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return "", 0o600
    try:
        status = os.fstat(file)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or (status.st_mode & 0o022 and not is_shown):
            raise _write_error("it is not a regular file that only you can write")
        raw = os.pread(file, _MAX_BYTES + 1, 0)
    finally:
        os.close(file)
    if len(raw) > _MAX_BYTES:
        raise _write_error("it is too large")
    try:
        return raw.decode("utf-8"), stat.S_IMODE(status.st_mode)
    except UnicodeDecodeError:
        raise _write_error("it is not UTF-8 text") from None


def _parse(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        raise _write_error("it is not valid TOML, or a rule cannot be added to it") from None


def _rules(data: dict[str, object]) -> list[object]:
    rules = data.get("rule", [])
    if not isinstance(rules, list):
        raise _write_error("`rule` in it is not a list of tables")
    return rules


def _quote(text: str) -> str:
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


def _write_error(problem: str, *, detail: str = "") -> CellwallError:
    return CellwallError(
        f"the rule was not written into the policy file: {problem}",
        hint="Add it by hand; the policy file is policy.toml beside the configuration.",
        code="CW-RULE-UNWRITTEN",
        detail=detail,
    )
