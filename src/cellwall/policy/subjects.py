"""The subject of a rule: the paths, host or language of a call, and the owner of the paths."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from cellwall.core.errors import BadInput
from cellwall.core.languages import canonical
from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.words import UNKNOWN, Join
from cellwall.policy.calls import Group, ToolCall, covers, group_of
from cellwall.policy.domains import HostPattern, host_of
from cellwall.policy.paths import brace_alternatives, path_pattern, readings
from cellwall.policy.protected_rules import could_name, is_of_protected_name, names_path
from cellwall.policy.rules import Rule

_HOMES = ("/home/", "/Users/", "/var/home/", "/export/home/")
_SHARED = ("/tmp/", "/var/tmp/", "/dev/shm/")


def owner_trouble(paths: Iterable[str], *, cwd: str, home: str) -> str:
    """Why one of these paths belongs to another user; '': none does, as far as is known."""
    near, own = f"{cwd.rstrip('/')}/", f"{home.rstrip('/')}/"
    for path in paths:
        inside = f"{path}/"
        if inside.startswith((near, own)) or near.startswith(inside):
            continue  # the user chose to work there
        if _is_others_home(inside, own):
            return "lies in the home folder of another user"
        if inside.startswith(_SHARED) and _is_others_file(path):
            return "belongs to another user, in a folder that all users share"
    return ""


def homes_found(pattern: str) -> Iterator[str]:
    """A path whose leading wildcards match the folder of home folders, with that folder."""
    names = pattern.split("/")
    for folder in (*_HOMES, "/root/"):
        above = folder.rstrip("/").split("/")
        if len(names) > len(above) and all(map(fnmatchcase, above, names)):
            yield "/".join([*above, *names[len(above) :]])


def _is_others_home(path: str, own: str) -> bool:
    if path.startswith("/root/"):
        return True
    for folder in _HOMES:
        rest = path.removeprefix(folder)
        if rest != path and rest.strip("/"):
            return not own.startswith(f"{folder}{rest.partition('/')[0]}/")
    return False


def _is_others_file(path: str) -> bool:
    """By the owner of each existing part of the path; files of root count as shared."""
    folder = next((each for each in _SHARED if path.startswith(each)), "")
    place = folder.rstrip("/")
    for part in path[len(folder) :].split("/") if folder else ():
        place = f"{place}/{part}"
        try:
            owner = os.lstat(place).st_uid
        except OSError:
            return False  # absent or inaccessible: the kernel refuses access
        if owner not in {os.geteuid(), 0}:
            return True
    return False


# A call that is not shell text is analysed once, then compared with each rule.
#
# Only the function that resolves links reads the disk; the caller provides it.

MAX_PATH_CHARACTERS = 4096
"""The limit of the kernel (PATH_MAX): a longer path opens no file."""

Targets = Callable[[str], Iterable[str]]

_PATH_KEYS = ("file_path", "notebook_path", "path")
_SEARCHES = frozenset({"Grep", "Glob", "LS"})
_WILD = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class Subject:
    """The paths, host or language that a call touches."""

    tool: str
    group: Group
    cwd: str
    home: str
    paths: tuple[str, ...] = ()
    """Every path of the call, and the targets of links: an allow needs all, a denial any."""
    doubtful: tuple[str, ...] = ()
    """Readings of a path by tools that do not expand `~`; only for denials."""
    globs: tuple[str, ...] = ()
    """Patterns that select files; only for denials."""
    deep_globs: tuple[str, ...] = ()
    """The same in all folders below: only for denials of one place. A denial of a name in any
    folder matches a search only where the search asks for such a name."""
    host: str = ""
    language: str = ""
    is_whole: bool = False
    """The call affects whole folders, as `rm -r` does; only for denials."""
    is_removed: bool = False
    """The path is removed."""
    is_seen: bool = False
    """`paths` holds the existing protected names that `globs` match."""
    join: Join = Join.NONE
    """`globs` may name a new file, which does not exist yet."""
    owner_trouble: str = ""
    """Why one of the paths belongs to another user; only for denials."""


def only_itself(path: str) -> Iterable[str]:
    """No links are followed."""
    return (path,)


def look(call: ToolCall, *, targets: Targets = only_itself) -> Subject:
    """Raises `BadInput` where the path, URL or language is missing or malformed: denied."""
    group = group_of(call.tool)
    paths: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    deep: tuple[str, ...] = ()
    host = language = ""
    match group:
        case "read" | "write":
            globs, deep = _globs(call)
            paths, doubtful = _spellings(_named_paths(call), call, targets)
        case "fetch":
            host = host_of(_text(call, "url"))
        case "code":
            language = canonical(_text(call, "language"))
        case _:
            pass
    is_whole = call.tool == "Grep" and not globs  # prints lines of all files there
    named = (*paths, *doubtful) if targets is not only_itself else ()  # a sandbox has one user
    trouble = owner_trouble(named, cwd=call.cwd, home=call.home)
    return Subject(
        *(call.tool, group, call.cwd, call.home, paths, doubtful, globs, deep, host, language),
        is_whole=is_whole,
        owner_trouble=trouble,
    )


def matches(rule: Rule, subject: Subject) -> bool:
    """Whether a rule matches the subject. Not for `Bash`: judge.py reads its text."""
    if not covers(rule.tool, subject.tool, rule.verdict):
        return False
    if rule.specifier is None:
        return True
    match subject.group:
        case "read" | "write":
            return matches_paths(rule, subject)
        case "fetch":
            return _host_pattern(rule.specifier).matches(subject.host)
        case "code":
            return rule.specifier == subject.language
        case _:
            # A specifier of an unknown form might mean this call: it allows nothing.
            return rule.verdict is not Verdict.ALLOW


def matches_paths(rule: Rule, subject: Subject) -> bool:
    """The path part of a `Read` or `Write` rule; also for files that a command touches."""
    if rule.specifier is None:
        return True
    if rule.name_kind:
        named = (*subject.paths, *subject.doubtful)
        if any(names_path(rule, path, is_removed=subject.is_removed) for path in named):
            return True
        return any(
            could_name(rule, glob, is_folder_seen=subject.is_seen)
            for glob in _doubtful_globs(rule, subject)
        )
    is_denial = rule.verdict is Verdict.DENY
    pattern = path_pattern(rule.specifier, rule.source.folder, subject.home, is_denial)
    if rule.verdict is Verdict.ALLOW:
        fits = (pattern.matches(path, subject.cwd) for path in subject.paths)
        return bool(subject.paths) and all(fits)
    named = (*subject.paths, *subject.doubtful)
    if any(pattern.matches(path, subject.cwd) and not rule.excepts(path) for path in named):
        return True
    if subject.is_whole and any(pattern.lies_in(path, subject.cwd) for path in named):
        return True
    globs = subject.globs if _is_floating(rule.specifier) else subject.globs + subject.deep_globs
    if subject.is_seen and is_of_protected_name(rule.specifier):
        in_doubt = _doubtful_globs(rule, subject)
        globs = tuple(each for each in globs if UNKNOWN in each or each in in_doubt)
    return any(
        pattern.could_match(glob, subject.cwd, wary=False)
        for glob in globs
        if subject.is_whole or not _is_folder_itself(rule.specifier, glob)
    )


def _doubtful_globs(rule: Rule, subject: Subject) -> tuple[str, ...]:
    """Globs that may name a file of the rule which `paths` does not hold. Whole names that are
    joined make no new name, so only a rule for a name in a folder is in doubt."""
    if not subject.is_seen:
        return subject.globs
    names = (rule.specifier or "").lstrip("/").removeprefix("**/").rstrip("/").split("/")
    if subject.join is Join.NONE or (subject.join is Join.FOLDER and len(names) == 1):
        return ()
    # `"$f.bak"` of `*.txt` counts as no `lefthook*.toml`: both names would have to be unusual.
    is_vague = len(names) == 1 and bool(_WILD.search(names[0][1:])) and not _WILD.match(names[0])
    return tuple(
        glob for glob in subject.globs if not (is_vague and _WILD.match(glob.rpartition("/")[2]))
    )


def _is_folder_itself(specifier: str, glob: str) -> bool:
    """`/tmp/*.log` is a sibling of the folder of `//tmp/a-*/**`, or the folder; not inside it."""
    is_plain = specifier.startswith("//") and specifier.endswith("/**") and UNKNOWN not in glob
    if not is_plain or "**" in glob or "**" in specifier[:-3] or ".." in glob:
        return False
    folder, names = specifier[2:-3].split("/"), glob.strip("/").split("/")
    return len([name for name in names if name not in {"", "."}]) <= len(folder)


_host_pattern = lru_cache(maxsize=1024)(HostPattern.parse)


def _text(call: ToolCall, key: str) -> str:
    found = call.input.get(key)
    if not isinstance(found, str) or not found:
        raise BadInput(
            f"{call.tool} was called without {key}",
            hint=f"Give {key} as a text.",
            code="CW-BAD-CALL",
        )
    return found


def _named_paths(call: ToolCall) -> list[str]:
    """All keys that hold a path count, whichever key the tool uses."""
    named = [_text(call, key) for key in _PATH_KEYS if call.input.get(key) is not None]
    if call.tool == "Glob":
        return [_glob_folder(_text(call, "pattern"), named[0] if named else call.cwd), *named]
    if not named and call.tool in _SEARCHES:
        return [call.cwd]
    return named or [_text(call, _PATH_KEYS[0])]


def _glob_folder(pattern: str, base: str) -> str:
    """The start folder of a search by name. The search shows names alone, not contents."""
    wild = _WILD.search(pattern)
    if wild is not None and ".." in pattern[wild.start() :]:
        raise BadInput(
            "the search climbs out of its folder behind a wildcard",
            hint="Write a pattern without `..`.",
            code="CW-BAD-CALL",
        )
    if wild is not None:
        head, slash, _ = pattern[: wild.start()].rpartition("/")
        pattern = head + slash
    return pattern if pattern.startswith(("/", "~")) else f"{base}/{pattern}"


def _is_floating(specifier: str) -> bool:
    """A name in any folder: `.env`, `**/secrets/**`."""
    return "/" not in specifier or specifier.lstrip("/").startswith("**/")


def _globs(call: ToolCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that `Grep` searches, where the call selects them by name: in the named folder,
    and in all folders below."""
    picked = call.input.get("glob")
    if call.tool != "Grep" or picked is None:
        return (), ()
    if not isinstance(picked, str):
        return (UNKNOWN,), ()
    base = call.input.get("path") or call.cwd
    wanted = [each for each in picked.split() if not each.startswith("!")]
    names = [one for each in wanted for one in brace_alternatives(each) or [UNKNOWN]]
    shallow = [one.replace("**/", "") for one in names]
    return tuple(f"{base}/{one}" for one in shallow), tuple(f"{base}/**/{one}" for one in names)


def _spellings(
    named: Iterable[str], call: ToolCall, targets: Targets
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paths: dict[str, None] = {}
    doubtful: dict[str, None] = {}
    for path in named:
        if len(path) > MAX_PATH_CHARACTERS or "\0" in path:
            raise BadInput(
                "a path is too long, or holds a NUL character",
                hint="Give a path that can be effects.",
                code="CW-BAD-CALL",
            )
        likely, *others = readings(path, cwd=call.cwd, home=call.home)
        paths |= dict.fromkeys([likely, *targets(likely)])
        for other in others:
            doubtful |= dict.fromkeys([other, *targets(other)])
    return tuple(paths), tuple(doubtful)
