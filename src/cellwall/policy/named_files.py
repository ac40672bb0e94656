"""The files that the arguments of a command name, and what follows from those names. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from cellwall.core.protected_names import fold
from cellwall.parsing.shell.command import Command, File
from cellwall.parsing.shell.words import UNKNOWN, Join, Origin, Word
from cellwall.policy.commands.catalog import find_model
from cellwall.policy.commands.grammar import grammar
from cellwall.policy.commands.opened import Opened
from cellwall.policy.fetched_files import fetched_files
from cellwall.policy.filled_folders import flags_of
from cellwall.policy.protected_rules import folders_around

_INTO_FOLDERS = frozenset(("cp", "mv", "ln", "install", "rsync", "scp"))
_SEARCHING = frozenset(("rg", "ag", "ack"))
_SEARCHING_WITH = frozenset(("-r", "-R", "--recursive", "--dereference-recursive"))


def named_files(command: Command, opened: Opened) -> Iterator[File]:
    """What the models tell, and what follows from it."""
    files = opened.files
    if opened.is_unmodelled or not files:
        files = (*files, *_guessed_files(command, opened))
    yield from files
    name = command.words[0].text.rpartition("/")[2]
    for file in (
        files if name != "mkdir" else ()
    ):  # a folder that is put there, or taken away, is one with all that is in it
        inside = folders_around().get(fold(posixpath.basename(file.path.text.rstrip("/"))))
        if file.access == "write" and inside is not None:
            path = Word(f"{file.path.text}/{inside}", origin=file.path.origin)
            yield File("write", path, file.why)
    sources = [each.path for each in opened.files if each.access == "read"]
    if name in _INTO_FOLDERS:
        # A target that is a folder gets each source under its own name.
        for target in [each.path for each in opened.files if each.access == "write"]:
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
    yield from _arguments_of_code(command, opened)
    yield from fetched_files(command, opened)
    flags = {flag for word in command.words for flag in flags_of(word.text)}
    is_search = name in _SEARCHING or ("grep" in name and not flags.isdisjoint(_SEARCHING_WITH))
    if is_search and not sources:
        yield File("read", Word("."), "it searches the folder at hand")


def _arguments_of_code(command: Command, opened: Opened) -> Iterator[File]:
    """Inline code gets the words behind it, and may open what they name."""
    if not opened.codes and opened.reads_stdin_as is None:
        return
    codes = {code.text.text for code in opened.codes if code.text is not None}
    for word in command.words[1:]:
        is_argument = word.text not in codes and not word.text.startswith("-")
        if is_argument and word.text and UNKNOWN not in word.text:
            yield File("read", word, "the code gets it")


def _origin_of(*words: Word) -> Origin:
    """Of what is unknown in any of them."""
    origins = {word.origin for word in words if UNKNOWN in word.text}
    return origins.pop() if len(origins) == 1 else Origin.ANYWHERE


def _guessed_files(command: Command, opened: Opened) -> Iterator[File]:
    """Of a program that nobody has a model for: each word could be a file that it reads."""
    is_open = not opened.is_unmodelled and opened != Opened()
    model = find_model(command.words[0].text)
    kinds = [effect.kind for effect in model.operands] if model is not None else []
    is_told = kinds == ["value", "read"]  # `grep /`: its first operand is a pattern
    if is_open or is_told or command.words[0].text in grammar().unread:
        return
    for word in command.words[1:]:
        for text in (word.text, word.text.rpartition("=")[2].lstrip("@"), word.text.lstrip("@")):
            is_name = text.strip("*") and UNKNOWN not in text and not text.startswith("-")
            if is_name or (text and word.has_glob):  # `find -name '*'` asks for no name
                yield File("read", Word(text, has_glob=word.has_glob), "an argument")


def takes_no_folders(command: Command) -> bool:
    """`rm` without `-r` leaves folders, and all that is in them, as they are."""
    words = command.words
    flags = {flag for word in words for flag in flags_of(word.text)}
    is_sure = not any(word.may_be_option and not word.is_literal for word in words[1:])
    is_deep = not flags.isdisjoint(("-r", "-R")) or any(
        word.text.startswith("--") and "--recursive".startswith(word.text) for word in words
    )
    return words[0].text.rpartition("/")[2] == "rm" and is_sure and not is_deep
