"""Writes our hooks into an agent's settings file, and takes them out again.

1. Open the file, never through a link.   2. Read and merge; what cannot be read is left alone.
3. Keep the bytes that were there beside it.   4. Replace it at once, if it is still the one read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.interfaces.edited_file import Change, EditedFile
from cellwall.interfaces.hooks.command import options_of
from cellwall.interfaces.hooks.settings_text import hook_entry, merged, ours, parsed, without

_TIMEOUT_S = 20  # the answer takes at most 10; the rest is for a busy host to start it


def install(file: str, command: str, *, is_dry: bool) -> Change:
    """Add our hooks, or bring those that are there up to date."""
    with _edited(file).opened(makes=not is_dry) as folder:
        found = None if folder is None else folder.read()
        before = b"" if found is None else found.data
        after = merged(before, hook_entry(command, timeout_s=_TIMEOUT_S))
        if after == before or is_dry or folder is None:
            return Change(file, after != before, None, after)
        backup = None
        if found is not None and not any(ours(before).values()):
            backup = folder.keep(before)
        folder.replace(after, found)
        return Change(file, True, backup, after)


def uninstall(file: str, *, is_dry: bool) -> Change:
    """Take out exactly what is ours; the very bytes of before where nothing else has changed."""
    with _edited(file).opened(makes=False) as folder:
        found = None if folder is None else folder.read()
        if found is None or folder is None:
            return Change(file, is_changed=False)
        entries = [hook for hooks in ours(found.data).values() for _matcher, hook in hooks]
        if not entries:
            return Change(file, False, None, found.data)
        for name in folder.backups():
            kept = folder.read(name)
            if kept is not None and _is_before(kept.data, entries[0], found.data):
                if not is_dry:
                    folder.replace(kept.data, found)
                    folder.remove_backup(name)
                return Change(file, True, None, kept.data)
        if _is_before(b"", entries[0], found.data):  # we made it
            if not is_dry:
                folder.remove(found)
            return Change(file, True, None, None)
        after = without(found.data)
        if not is_dry:
            folder.replace(after, found)
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
    with _edited(file).opened(makes=False) as folder:
        found = None if folder is None else folder.read()
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


def _edited(file: str) -> EditedFile:
    mend = "Name the settings file itself with --settings, and look at what is there."
    return EditedFile(file, code="CW-HOOK-SETTINGS", mend=mend)
