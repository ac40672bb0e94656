"""Where policy files lie. Light: most runs of a person's are judged without one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from cellwall.config.load import candidates

ADMINISTRATOR = "/etc/cellwall/policy.toml"
PROJECT_FILES = (".cellwall/policy.toml", ".claude/settings.json", ".claude/settings.local.json")
_NAME = "policy.toml"


def is_given(named: Sequence[str]) -> bool:
    """Whether rules judge what a person asks for as well: they said so, or the administrator."""
    return bool(named) or is_there(ADMINISTRATOR)


def user_policy(environ: Mapping[str, str]) -> str:
    """Where the user's own would lie."""
    return os.path.join(os.path.dirname(candidates(None, environ)[0]), _NAME)


def project_files(cwd: str) -> Iterator[str]:
    """Those of all projects that a folder belongs to: one inside of another hides nothing of it."""
    folder = os.path.abspath(cwd)
    home = os.path.expanduser("~")
    while folder not in {"/", home}:
        there = (os.path.join(folder, name) for name in PROJECT_FILES)
        yield from (path for path in there if is_there(path))
        folder = os.path.dirname(folder)


def shown_source(source: str, *, cwd: str, environ: Mapping[str, str]) -> str:
    """The file and line of a rule as people and models may see them; no other path of the host.

    A file of the project is named from the working directory, the user's own from `~`. A file that
    lies elsewhere was named by whoever started Cellwall: its name alone is enough for them.
    """
    path, colon, line = source.rpartition(":")
    if not (colon and line.isdigit()):
        path, colon, line = source, "", ""
    path = os.path.expanduser(path)  # a policy file below the home folder is named so
    if not os.path.isabs(path):
        return source  # `built-in`
    return f"{_shown_path(path, cwd, environ)}{colon}{line}"


def _shown_path(path: str, cwd: str, environ: Mapping[str, str]) -> str:
    if path == ADMINISTRATOR:
        return path
    here = os.path.abspath(cwd)
    new = (os.path.join(here, name) for name in PROJECT_FILES)  # one that is written now
    if path in project_files(here) or path in new:
        return os.path.relpath(path, here)
    home = os.path.expanduser("~")
    # An agent chooses its working directory: below `/` or `/home` no name on the way is told.
    if os.path.dirname(path) != here and home != "/" and _is_below(path, home):
        return os.path.join("~", os.path.relpath(path, home))
    name = os.path.basename(path)
    return f"your own {name}" if path == user_policy(environ) else name


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def is_there(path: str) -> bool:
    """A file that may not even be looked at is there: then it is told that it cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
