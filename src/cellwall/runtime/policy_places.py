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


def is_there(path: str) -> bool:
    """A file that may not even be looked at is there: then it is told that it cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
