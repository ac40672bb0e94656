"""What rules are asked about for a file that a command names: its paths, where links among these
lead, what a wildcard finds, and whether one of them belongs to another person."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.parsing.shell.command import Access, Command, File
from cellwall.parsing.shell.words import UNKNOWN, Join, Word
from cellwall.policy.commands.catalog import canonical
from cellwall.policy.commands.grammar import grammar
from cellwall.policy.commands.models import open_known
from cellwall.policy.commands.opened import Opened
from cellwall.policy.links import names_found
from cellwall.policy.named_files import takes_no_folders
from cellwall.policy.others import homes_found, owner_trouble
from cellwall.policy.paths import fits_glob, normalise, samples
from cellwall.policy.protected_rules import is_findable
from cellwall.policy.subjects import Subject, Targets, only_itself

WILD = frozenset("*?[")
NOWHERE = frozenset(("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "-"))
_REMOVING = frozenset(("rm", "rmdir", "unlink", "shred"))


@dataclass(frozen=True, slots=True)
class FileSubjects:
    """Of the files of one text."""

    cwd: str
    home: str
    targets: Targets
    commands: Sequence[Command]
    """All that were read so far; the list grows while the text is judged."""

    def of_file(self, file: File, command: Command, *, is_guess: bool = False) -> list[Subject]:
        """`is_guess`: wildcards in it stand for what is not known, and not for files there are."""
        program = command.words[0].text if command.words else ""
        name = canonical(program) or posixpath.basename(program)
        is_unpacked = file.access == "write" and file.path.text not in {"", "."}
        is_whole = name in grammar().whole[file.access] and not takes_no_folders(command)
        is_whole = is_whole or (name in grammar().unpacking and is_unpacked)
        return [
            self.of_path(
                file.access,
                file.path,
                each,
                is_whole=is_whole,
                is_removed=name in _REMOVING,
                is_guess=is_guess,
            )
            for each in command.directories
        ]

    def of_path(
        self,
        access: Access,
        word: Word,
        directory: str,
        *,
        is_whole: bool = False,
        is_removed: bool = False,
        is_guess: bool = False,
    ) -> Subject:
        tool, text = "Read" if access == "read" else "Write", word.text
        path = text if text.startswith(("/", UNKNOWN)) else f"{directory}/{text}"
        globs: tuple[str, ...] = ()
        is_seen = False
        # `cd` expands wildcards, too.
        is_moved = path != text and bool(WILD & set(directory.removeprefix(self.cwd)))
        is_wild = word.has_glob or is_moved
        if UNKNOWN in path or is_wild:
            globs, paths = (path,), () if UNKNOWN in path else samples(path)
            can_look = self.targets is not only_itself and is_findable(path) and not is_guess
            if can_look and UNKNOWN not in path:
                # What it finds now of protected names, and where links among the names lead.
                found = tuple(self.targets(path))
                is_seen = access == "write"
                led = found if is_seen else tuple(x for x in found if not fits_glob(x, path))
                paths += led
                is_settled = not is_seen and self._is_settled(path)
                if is_settled and (names := names_found(path, self.cwd)):
                    globs, paths = (), (*names, *led)
        else:
            paths = tuple(dict.fromkeys([normalise(path), *self.targets(path)]))
        return Subject(
            *(tool, access, self.cwd, self.home, paths),
            globs=globs,
            is_whole=is_whole,
            is_removed=is_removed,
            is_seen=is_seen,
            join=max(word.join, Join.FOLDER if is_moved else Join.NONE),
            owner_trouble=self._owner_trouble((*paths, *homes_found(path)) if is_wild else paths),
        )

    def _is_settled(self, path: str) -> bool:
        """A wildcard in the project, which will find what it finds now: the text writes nothing."""
        is_near = path.startswith(f"{self.cwd.rstrip('/')}/") and ".." not in path
        return is_near and UNKNOWN not in path and not any(map(_writes, self.commands))

    def _owner_trouble(self, paths: tuple[str, ...]) -> str:
        if self.targets is only_itself:  # inside are no other people
            return ""
        return owner_trouble(paths, cwd=self.cwd, home=self.home)


def _writes(command: Command) -> bool:
    """Somewhere else than in /tmp."""
    opened = open_known(command.words) if command.words else Opened()
    files = (*command.files, *opened.files)
    paths = [file.path.text for file in files if file.access == "write"]
    return any(path not in NOWHERE and not path.startswith("/tmp/") for path in paths)
