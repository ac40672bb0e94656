"""find and fd: what they start for the files that they find, delete and write. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Model, Takes
from cellwall.policy.commands.interpret import EffectsBuilder, note_operands, note_options
from cellwall.policy.commands.opened import CommandEffects, Inner

MAX_STARTS = 8
_STARTS = {"-exec": False, "-ok": False, "-execdir": True, "-okdir": True}
_NARROWS = (
    *("-name", "-iname", "-path", "-ipath", "-regex", "-iregex", "-wholename"),
    *("-newer", "-mtime", "-mmin", "-ctime", "-atime", "-size", "-samefile", "-inum"),
)
_SIGNS = frozenset(("(", ")", "!", ","))
_NEWER = re.compile(r"-newer[aBcm][aBcmt]\Z")
_NAMED = re.compile(r"[\w]")
_INSIDE = re.compile(r"[^\s=:'\"]\{\}")
_GLUED = re.compile(r"-[^-].{3,}")
_FD_PATHS = re.compile(r"\{\.?\}")
_FD_NAMES = re.compile(r"\{//?\.?\}")


def open_find(model: Model, words: Sequence[Word]) -> CommandEffects:
    """Everything but the commands that it starts is in the data."""
    finds = EffectsBuilder()
    left, commands, deletes = _without_actions(model, words[1:])
    found = scan(model, left)
    note_options(finds, model, found)
    starts = _start_paths(found)
    for action, inner, is_many in commands:
        if _STARTS[action] and any(_is_vague(word.text) for word in inner):
            finds.danger(
                "",
                "it starts a command in a folder that is not known; use -exec, not -execdir",
            )
        for words_inner in _fill_placeholders(
            inner, starts, in_folder=_STARTS[action], is_many=is_many
        ):
            finds.inner.append(Inner(words_inner, "find starts it for what it finds"))
    if deletes:
        finds.inner += _deletions(found, starts)
    return finds.build()


def _without_actions(
    model: Model,
    words: Sequence[Word],
) -> tuple[list[Word], list[tuple[str, tuple[Word, ...], bool]], bool]:
    """The words without `-exec … ;` and `-delete`, and those by themselves."""
    left: list[Word] = []
    commands: list[tuple[str, tuple[Word, ...], bool]] = []
    deletes = False
    at = 0
    while at < len(words):
        text = words[at].text
        if text in _STARTS:
            end, is_many = _command_end(words, at + 1)
            commands.append((text, tuple(words[at + 1 : end]), is_many))
            at = end
        elif text == "-delete":
            deletes = True
        elif text == "--":
            # It ends `-H`, `-L` and `-P` alone; the expression still follows.
            pass
        elif text == "-fprintf":
            # Its second value is a format; as a word of its own it would be a start path.
            left += words[at : at + 2]
            at += 2
        elif _takes_value(model, text):
            # `-name -exec` looks for files of that name: the next word is no action.
            left += words[at : at + 2]
            at += 1
        else:
            left.append(words[at])
        at += 1
    return left, commands, deletes


def _takes_value(model: Model, text: str) -> bool:
    option = model.options.get(text)
    return (option is not None and option.takes is Takes.VALUE) or _NEWER.match(text) is not None


def _command_end(words: Sequence[Word], start: int) -> tuple[int, bool]:
    for at in range(start, len(words)):
        if words[at].text == ";":
            return at, False
        if words[at].text == "+" and at > start and words[at - 1].text == "{}":
            return at, True
    return len(words), False


def _start_paths(found: Scan) -> list[Word]:
    paths = [word for word in found.operands if word.text not in _SIGNS]
    if found.has("-files0-from"):
        paths.append(Word(UNKNOWN))
    return paths or [Word(".")]


def _fill_placeholders(
    inner: Sequence[Word], starts: Sequence[Word], *, in_folder: bool, is_many: bool
) -> Iterator[tuple[Word, ...]]:
    """The inner command with what is known of the files: they lie under a start path."""
    if len(starts) > MAX_STARTS:
        starts = [Word(UNKNOWN)]
    for place in starts:
        found = UNKNOWN if place.text == UNKNOWN else f"{place.text.rstrip('/')}/{UNKNOWN}"
        filled = [_with_place(word, found, place) for word in inner]
        if in_folder:
            filled[1:] = [_in_folder(word, found) for word in filled[1:]]
        if is_many:
            # Further files follow the first one, and lie in the same place.
            filled += filled[-1:]
        yield tuple(filled)


def _with_place(word: Word, found: str, place: Word) -> Word:
    if "{}" not in word.text:
        return word
    if _INSIDE.search(word.text):
        found = UNKNOWN  # put into the middle of a name, it is no path of its own
    return Word(word.text.replace("{}", found), word.is_split or place.is_split, word.has_glob)


def _is_vague(text: str) -> bool:
    """In a folder that is not known, the rest of the word does not tell what it leads to."""
    return ".." in text.split("/") or _GLUED.match(text) is not None


def _in_folder(word: Word, folder: str) -> Word:
    """`-execdir` starts it where the file lies: a relative path leads on from there."""
    option, equals, path = word.text.partition("=") if word.text[:1] == "-" else ("", "", word.text)
    if path.startswith(("/", folder)) or not path:
        return word
    return Word(f"{option}{equals}{folder}/{path}", word.is_split, word.has_glob)


def _deletions(found: Scan, starts: Sequence[Word]) -> Iterator[Inner]:
    """`-delete` is judged as the `rm` that it is; of the whole folder if nothing narrows it."""
    narrow = any(_NAMED.search(value.text) for value in found.values(*_NARROWS))
    for start in starts[:MAX_STARTS]:
        if narrow and start.text.strip("/") not in ("", "~", "..") and start.is_literal:
            under = Word(f"{start.text.rstrip('/')}/{UNKNOWN}")
            yield Inner((Word("rm"), Word("-f"), under), "find deletes what it finds")
        else:
            yield Inner((Word("rm"), Word("-rf"), start), "find deletes all that is in it")


def open_fd(model: Model, words: Sequence[Word]) -> CommandEffects:
    """`-x` and `-X` take the words up to `;`, and then options may follow."""
    finds = EffectsBuilder()
    left = words[1:]
    for _ in range(MAX_STARTS):
        found = scan(model, left)
        note_options(finds, model, found)
        note_operands(finds, model, replace(found, rest=None))
        if found.rest_by.kind != "inner":
            return finds.build()
        rest = list(found.rest or ())
        end = next((at for at, word in enumerate(rest) if word.text == ";"), len(rest))
        if end:
            inner = _fd_filled(rest[:end], found)
            finds.inner.append(Inner(inner, found.rest_by.why))
        left = rest[end + 1 :]
    finds.danger("", "it starts more commands than can be looked at")
    return finds.build()


def _fd_filled(inner: Sequence[Word], found: Scan) -> tuple[Word, ...]:
    paths = (*found.operands[1:], *found.values("-C", "--base-directory", "--search-path"))
    base = "." if not paths else paths[0].text.rstrip("/") if len(paths) == 1 else ""
    file = f"{base}/{UNKNOWN}" if base and UNKNOWN not in base else UNKNOWN

    def fill(word: Word) -> Word:
        text = _FD_NAMES.sub(UNKNOWN, _FD_PATHS.sub(file, word.text))
        return Word(text, word.is_split, word.has_glob)

    filled = tuple(fill(word) for word in inner)
    # Without a place for it, the path stands behind all the words.
    return (*filled, Word(file)) if filled == tuple(inner) else filled
