"""Appends rules that a person has approved to a policy file; its other content stays unchanged."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cellwall.audit.files import DIRECTORY, closing_fd, replace_file
from cellwall.core.errors import CellwallError
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer

_MAX_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class PolicyDraft:
    """A policy file with rules appended, for review before it is written."""

    path: str
    before: str
    after: str


def add_rule(path: str, rule: str, *, reason: str, answers: str) -> bool:
    """Append a `[[rule]]` that answers an asking rule, or a question that no rule asked; False if
    the file has it already."""
    text, table = _rule_text(rule, reason, answers)
    with _lock_folder(path) as (folder, name):
        before, mode = _read(folder, name)
        if _has_rule(_parse(before), rule, answers):
            return False
        after = _append(before, text, [table])
        replace_file(name, after.encode(), folder, mode=mode)
    return True


def draft_rule(path: str, rule: str, *, reason: str, answers: str) -> PolicyDraft:
    """The file as `add_rule` will leave it, for the approver's signature under its content."""
    real = os.path.realpath(path)
    before = _read_shown(real)
    if _has_rule(_parse(before), rule, answers):
        return PolicyDraft(real, before, before)
    text, table = _rule_text(rule, reason, answers)
    return PolicyDraft(real, before, _append(before, text, [table]))


def draft_rules(path: str, text: str, tables: Sequence[Mapping[str, str]]) -> PolicyDraft:
    """The file with `text` appended, which spells `tables`; nothing is written or created."""
    real = os.path.realpath(path)
    before = _read_shown(real)
    return PolicyDraft(real, before, _append(before, text, tables))


def _read_shown(path: str) -> str:
    """The text that a person is shown; empty where neither file nor folder is there yet."""
    try:
        with closing_fd(os.open(os.path.dirname(path), DIRECTORY)) as folder:
            return _read(folder, os.path.basename(path), is_shown=True)[0]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _write_error("it cannot be read or written", detail=str(error)) from error


def _rule_text(rule: str, reason: str, answers: str) -> tuple[str, dict[str, str]]:
    table = {"verdict": "allow", "rule": rule, "reason": reason}
    if answers:
        table["answers"] = answers
    lines = "".join(f"{key} = {_quote(value)}\n" for key, value in table.items())
    return f"[[rule]]\n{lines}", table


def _has_rule(data: dict[str, object], rule: str, answers: str) -> bool:
    same = [each for each in _rules(data) if isinstance(each, dict) and each.get("rule") == rule]
    return any(
        (each.get("verdict"), each.get("answers", "")) == ("allow", answers) for each in same
    )


def write_draft(draft: PolicyDraft) -> None:
    """Write the draft, if the file has not changed since the draft was made."""
    with _lock_folder(draft.path) as (folder, name):
        before, mode = _read(folder, name, is_shown=True)
        if before != draft.before:
            raise _write_error("the file has changed since it was shown")
        replace_file(name, draft.after.encode(), folder, mode=mode)


@contextmanager
def _lock_folder(path: str) -> Iterator[tuple[int, str]]:
    """The file's folder, created if missing and locked for one writer."""
    try:
        folder_path, name = os.path.split(os.path.realpath(path))
        os.makedirs(folder_path, mode=0o700, exist_ok=True)
        with closing_fd(os.open(folder_path, DIRECTORY)) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)  # for a few system calls only
            yield folder, name
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
    with closing_fd(file):
        status = os.fstat(file)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or (status.st_mode & 0o022 and not is_shown):
            raise _write_error("it is not a regular file that only you can write")
        raw = os.pread(file, _MAX_BYTES + 1, 0)
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


def _write_error(problem: str, *, detail: str = "") -> CellwallError:
    return CellwallError(
        f"the rule was not written into the policy file: {problem}",
        hint="Add it by hand; the policy file is policy.toml beside the configuration.",
        code="CW-RULE-UNWRITTEN",
        detail=detail,
    )
