"""Writes our hooks into an agent's settings file, and takes them out again.

1. Open the folder, then the file in it, never through a link.   4. Replace the file at once,
2. Read and merge; what cannot be read is left alone.            if it is still the one read.
3. Keep the bytes that were there beside it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.core.errors import BadInput, HoldfastError
from holdfast.interfaces.hooks.command import options_of
from holdfast.interfaces.hooks.settings_text import hook_entry, merged, ours, parsed, without

_MOST_BYTES = 4 * 1024 * 1024
_MOST_BACKUPS = 100
_TIMEOUT_S = 15  # the answer takes at most 5; the rest is for a busy host to start it
_BACKUP = ".holdfast-backup"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a settings file."""

    file: str
    is_changed: bool
    backup: str | None = None
    text: bytes | None = None
    """What the file holds now, or would hold; None: there is no such file."""


def install(file: str, command: str, *, is_dry: bool) -> Change:
    """Add our hooks, or bring those that are there up to date."""
    with _folder(file, makes=not is_dry) as folder:
        found = None if folder is None else _read(file, folder)
        before = b"" if found is None else found.data
        after = merged(before, hook_entry(command, timeout_s=_TIMEOUT_S))
        if after == before or is_dry or folder is None:
            return Change(file, after != before, None, after)
        backup = None
        if found is not None and not any(ours(before).values()):
            backup = _keep(file, before, folder)
        _replace(file, after, found, folder)
        return Change(file, True, backup, after)


def uninstall(file: str, *, is_dry: bool) -> Change:
    """Take out exactly what is ours; the very bytes of before where nothing else has changed."""
    with _folder(file, makes=False) as folder:
        found = None if folder is None else _read(file, folder)
        if found is None or folder is None:
            return Change(file, is_changed=False)
        entries = [hook for hooks in ours(found.data).values() for _matcher, hook in hooks]
        if not entries:
            return Change(file, False, None, found.data)
        for name in _backups(file, folder):
            kept = _read(name, folder)
            if kept is not None and _is_before(kept.data, entries[0], found.data):
                if not is_dry:
                    _replace(file, kept.data, found, folder)
                    os.unlink(os.path.basename(name), dir_fd=folder)
                return Change(file, True, None, kept.data)
        if _is_before(b"", entries[0], found.data):  # we made it
            if not is_dry:
                _check_same(file, found, folder)
                os.unlink(os.path.basename(file), dir_fd=folder)
            return Change(file, True, None, None)
        after = without(found.data)
        if not is_dry:
            _replace(file, after, found, folder)
        return Change(file, True, None, after)


def _is_before(kept: bytes, entry: dict[str, object], now: bytes) -> bool:
    """Whether this is what we found at `install`: all but our hooks is what is there now.

    A repository can bring a backup of its own. One with a hook of ours in it is none: we keep what
    was there before the first, and what it starts may be anything that only looks like ours.
    """
    try:
        return not any(ours(kept).values()) and merged(kept, entry) == now
    except BadInput:
        return False


@dataclass(frozen=True, slots=True)
class State:
    """How our hooks stand in one settings file."""

    file: str
    problems: tuple[str, ...]
    is_installed: bool
    is_inside: bool = False
    options: tuple[str, ...] = ()
    """What else was asked for at `install`: `--config FILE`, `--policy FILE`."""


def state_of(file: str, *, environ: Mapping[str, str]) -> State | None:
    """None: there is no such file."""
    with _folder(file, makes=False) as folder:
        found = None if folder is None else _read(file, folder)
    if found is None:
        return None
    told = ours(found.data)
    problems = [f"no hook for {event}" for event, hooks in told.items() if not hooks]
    hooks = [(matcher, hook) for hooks in told.values() for matcher, hook in hooks]
    for matcher, hook in hooks:
        options = options_of(hook["command"], environ)
        if options is None:
            problems.append(f"it starts something else than we would: {hook['command'][:200]}")
        elif hook != hook_entry(hook["command"], timeout_s=_TIMEOUT_S):
            problems.append("it is not as `hook install` writes it, see its keys and its timeout")
        if hook.get("onFailure") != "block":
            problems.append('without "onFailure": "block" a failure lets the tool through')
        if matcher not in {"*", ""}:
            problems.append(f"only for the tools {matcher!r}")
        if hook.get("async") or hook.get("asyncRewake") or hook.get("if"):
            problems.append("it does not decide every call before the call")
    if parsed(found.data).get("disableAllHooks"):
        problems.append('"disableAllHooks" is on: the agent runs no hook at all')
    chosen = [options_of(hook["command"], environ) or {} for _, hook in hooks]
    inside = any(each.get("run_inside") for each in chosen)
    named = [f"--{n} {each[n]}" for each in chosen for n in ("config", "policy") if each.get(n)]
    told_problems, told_options = tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(named))
    return State(file, told_problems, bool(hooks), inside, told_options)


@dataclass(frozen=True, slots=True)
class _Found:
    data: bytes
    status: os.stat_result


@contextmanager
def _folder(file: str, *, makes: bool) -> Iterator[int | None]:
    """The folder of the file; a `.claude` that is a link leads out of the project it came with."""
    place = os.path.dirname(file)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if makes:
            with suppress(FileExistsError):
                os.mkdir(place, 0o777)
        descriptor = os.open(place, flags)
    except FileNotFoundError:
        if makes:
            raise _refused(file, "is in a folder that does not exist") from None
        yield None
        return
    except OSError as error:
        told = "is in a folder that is a link or cannot be opened"
        raise _refused(file, told, detail=str(error)) from None
    try:
        yield descriptor
    except OSError as error:
        raise _refused(file, "could not be read or written", detail=str(error)) from error
    finally:
        os.close(descriptor)


def _read(file: str, folder: int) -> _Found | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.basename(file), flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A repository can bring a link to any file of the user's: we would write to that one.
        told = "is a link or cannot be opened"
        raise _refused(file, told, detail=str(error)) from None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise _refused(file, "is no plain file of a reasonable size")
        return _Found(opened.read(_MOST_BYTES), status)


def _check_same(file: str, found: _Found | None, folder: int) -> None:
    now = _read(file, folder)
    if (now is None) != (found is None) or (now and found and now.data != found.data):
        raise _refused(file, "was changed by somebody else at the same time")


def _replace(file: str, data: bytes, found: _Found | None, folder: int) -> None:
    """All of it or nothing, with the mode it had."""
    name = os.path.basename(file)
    draft = f".{name}.{secrets.token_hex(8)}"
    _write_new(draft, data, folder, mode=0o666)
    try:
        if found is not None:
            os.chmod(draft, stat.S_IMODE(found.status.st_mode), dir_fd=folder)
        _check_same(file, found, folder)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _write_new(name: str, data: bytes, folder: int, *, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _backup_names(file: str) -> Iterator[str]:
    yield file + _BACKUP
    for number in range(1, _MOST_BACKUPS):
        yield f"{file}{_BACKUP}.{number}"


def _backups(file: str, folder: int) -> list[str]:
    """Those that are there, the newest first."""
    there = set(os.listdir(folder))
    return [name for name in _backup_names(file) if os.path.basename(name) in there][::-1]


def _keep(file: str, data: bytes, folder: int) -> str:
    """A copy of what was there; one that holds something else is never written over."""
    for name in _backup_names(file):
        kept = _read(name, folder)
        if kept is None:
            _write_new(os.path.basename(name), data, folder, mode=0o600)
            return name
        if kept.data == data:
            return name
    raise _refused(file, f"has {_MOST_BACKUPS} backups beside it; remove some")


def _refused(file: str, problem: str, *, detail: str = "") -> HoldfastError:
    return HoldfastError(
        f"{file[-200:]!r} {problem}; nothing was changed",
        mend="Name the settings file itself with --settings, and look at what is there.",
        code="HF-HOOK-SETTINGS",
        detail=detail,
    )
