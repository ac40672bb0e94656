"""Files that the arguments of a command name, as subjects of rules. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cellwall.core.git_names import fold
from cellwall.parsing.shell.words import UNKNOWN, Access, Command, File, Join, Origin, Word
from cellwall.policy.commands.catalog import canonical, find_model, grammar
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.models import effects_of
from cellwall.policy.filled_folders import fetched_files, flags_of
from cellwall.policy.links import names_found
from cellwall.policy.paths import fits_glob, normalise, samples
from cellwall.policy.protected_rules import folders_around, is_findable
from cellwall.policy.subjects import Subject, Targets, homes_found, only_itself, owner_trouble

_INTO_FOLDERS = frozenset(("cp", "mv", "ln", "install", "rsync", "scp"))
_SEARCHING = frozenset(("rg", "ag", "ack"))
_SEARCHING_WITH = frozenset(("-r", "-R", "--recursive", "--dereference-recursive"))


def named_files(command: Command, effects: CommandEffects) -> Iterator[File]:
    """The files of the program model, and the files that follow from them."""
    files = effects.files
    if effects.is_unmodelled or not files:
        files = (*files, *_guessed_files(command, effects))
    yield from files
    name = command.program
    for file in (
        files if name != "mkdir" else ()
    ):  # a folder is created or removed with its contents
        inside = folders_around().get(fold(posixpath.basename(file.path.text.rstrip("/"))))
        if file.access == "write" and inside is not None:
            path = Word(f"{file.path.text}/{inside}", origin=file.path.origin)
            yield File("write", path, file.why)
    sources = [each.path for each in effects.files if each.access == "read"]
    if name in _INTO_FOLDERS:
        # A target that is a folder gets each source under its own name.
        for target in [each.path for each in effects.files if each.access == "write"]:
            for source in sources:
                last = posixpath.basename(source.text.rstrip("/"))
                # `cp "$f" "out/$f"` puts no file into a folder of the file's own name.
                is_same = source.has_glob and last == posixpath.basename(target.text)
                if last and target.text != source.text and not is_same:
                    path = Word(
                        posixpath.join(target.text, last),
                        has_glob=source.has_glob or target.has_glob,
                        origin=_origin_of(target, source),
                        join=max(source.join, target.join, Join.FOLDER),
                    )
                    yield File("write", path, "it is put there")
                    inside = folders_around().get(fold(last))
                    if inside is not None:
                        below = Word(f"{path.text}/{inside}", origin=path.origin)
                        yield File("write", below, "it is put there")
    yield from _arguments_of_code(command, effects)
    yield from fetched_files(command, effects)
    flags = {flag for word in command.words for flag in flags_of(word.text)}
    is_search = name in _SEARCHING or ("grep" in name and not flags.isdisjoint(_SEARCHING_WITH))
    if is_search and not sources:
        yield File("read", Word("."), "it searches the working directory")


def _arguments_of_code(command: Command, effects: CommandEffects) -> Iterator[File]:
    """The arguments of inline code, which may open the files they name."""
    if not effects.codes and effects.reads_stdin_as is None:
        return
    codes = {code.text.text for code in effects.codes if code.text is not None}
    for word in command.words[1:]:
        is_argument = word.text not in codes and not word.text.startswith("-")
        if is_argument and word.text and UNKNOWN not in word.text:
            yield File("read", word, "the code gets it")


def _origin_of(*words: Word) -> Origin:
    """The origin of the unknown parts of all words."""
    origins = {word.origin for word in words if UNKNOWN in word.text}
    return origins.pop() if len(origins) == 1 else Origin.ANYWHERE


def _guessed_files(command: Command, effects: CommandEffects) -> Iterator[File]:
    """Files of a program without a model: each word could be a file that it reads."""
    is_open = not effects.is_unmodelled and effects != CommandEffects()
    model = find_model(command.words[0].text)
    kinds = [effect.kind for effect in model.operands] if model is not None else []
    has_pattern = kinds == ["value", "read"]  # `grep /`: the first operand is a pattern
    if is_open or has_pattern or command.words[0].text in grammar().unread:
        return
    for word in command.words[1:]:
        value = word.text.rpartition("=")[2].lstrip("@")
        for text in dict.fromkeys((word.text, value, word.text.lstrip("@"))):
            is_name = text.strip("*") and UNKNOWN not in text and not text.startswith("-")
            if is_name or (text and word.has_glob):  # `find -name '*'` asks for no name
                yield File("read", Word(text, has_glob=word.has_glob), "an argument")


def takes_no_folders(command: Command) -> bool:
    """`rm` without `-r` removes no folder and no contents of a folder."""
    words = command.words
    flags = {flag for word in words for flag in flags_of(word.text)}
    is_sure = not any(word.may_be_option and not word.is_literal for word in words[1:])
    is_deep = not flags.isdisjoint(("-r", "-R")) or any(
        word.text.startswith("--") and "--recursive".startswith(word.text) for word in words
    )
    return command.program == "rm" and is_sure and not is_deep


# The subjects of rules for a file that a command names: its paths, the targets of links, the names
# that a wildcard matches, and whether one of them belongs to another user.

WILD = frozenset("*?[")
NOWHERE = frozenset(("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "-"))
_REMOVING = frozenset(("rm", "rmdir", "unlink", "shred"))


@dataclass(frozen=True, slots=True)
class FileSubjects:
    """Subjects for the files of one text."""

    cwd: str
    home: str
    targets: Targets
    commands: Sequence[Command]
    """All commands read so far; the list grows while the text is judged."""

    def of_file(self, file: File, command: Command, *, is_guess: bool = False) -> list[Subject]:
        """`is_guess`: wildcards in the path stand for unknown text, and not for existing files."""
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
                # The protected names that the pattern matches now, and the targets of links.
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
        """A wildcard in the project that matches the same names later: the text writes nothing."""
        is_near = path.startswith(f"{self.cwd.rstrip('/')}/") and ".." not in path
        return is_near and UNKNOWN not in path and not any(map(_writes, self.commands))

    def _owner_trouble(self, paths: tuple[str, ...]) -> str:
        if self.targets is only_itself:  # a sandbox has no other users
            return ""
        return owner_trouble(paths, cwd=self.cwd, home=self.home)


def _writes(command: Command) -> bool:
    """Whether a command writes outside /tmp."""
    effects = effects_of(command.words) if command.words else CommandEffects()
    files = (*command.files, *effects.files)
    paths = [file.path.text for file in files if file.access == "write"]
    return any(path not in NOWHERE and not path.startswith("/tmp/") for path in paths)
