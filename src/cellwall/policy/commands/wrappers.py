"""Programs that assemble an inner command: env -S, xargs, parallel, find and fd. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import ArgumentModel, Scan, Takes, scan
from cellwall.policy.commands.effects import CommandEffects, EffectsBuilder, Inner, ShellScript
from cellwall.policy.commands.interpret import (
    interpret,
    join_words,
    note_operands,
    note_options,
    read_options,
)

_INPUTS = re.compile(r":::\+?|::::\+?")
_PLAIN = re.compile(r"[\w./:=@%+,{} -]+\Z")
_PLACES = re.compile(r"\{[^{}\s]{0,32}\}")


def quote_words(words: Sequence[Word]) -> str:
    """Shell text of these words; unknown words stay unknown."""
    return " ".join(shlex.quote(word.text) if word.is_literal else word.text for word in words)


def analyse_env(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`-S` inserts its words as options, so the result is an `env` command again."""
    found = scan(model, words[1:])
    split = [each for each in found.options if each.is_any("-S")]
    if not split:
        return interpret(model, words)
    builder = EffectsBuilder()
    note_options(builder, model, without_option(found, "-S"))
    text = " ".join(each.value.text for each in split if each.value)
    behind = quote_words((*found.operands, *(found.rest or ())))
    unknown = any(each.value and each.value.is_split for each in split)
    builder.scripts.append(
        ShellScript(Word(f"env {text} {behind}".strip(), unknown), "env splits it")
    )
    return builder.build(is_wrapper=True)


def without_option(found: Scan, name: str) -> Scan:
    """The same without one of its options."""
    return replace(found, options=[each for each in found.options if not each.is_any(name)])


def analyse_xargs(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """Without a command xargs runs echo; with `-I` the input is inserted into the words."""
    builder, found = read_options(model, words)
    note_operands(builder, model, found)
    if not builder.inner:
        if found.rest is None and not found.is_query:
            builder.inner.append(Inner((Word("echo"),), "xargs starts echo", is_open_ended=True))
        return builder.build(is_wrapper=True)
    if found.has("-0", "--null"):
        builder.inner[0] = replace(builder.inner[0], is_null_separated=True)
    places = [value.text for value in found.values("-I", "-J", "-i", "--replace")]
    if not places and found.has("-i", "--replace"):
        places = ["{}"]
    if places:
        inner = builder.inner[0]
        is_open_ended = found.has("-J") or not places[-1]
        filled = tuple(_fill_placeholder(word, places[-1]) for word in inner.words)
        builder.inner[0] = replace(inner, words=filled, is_open_ended=is_open_ended)
    return builder.build(is_wrapper=True)


def _fill_placeholder(word: Word, place: str) -> Word:
    if not place or UNKNOWN in place or place not in word.text:
        return word
    return Word(word.text.replace(place, UNKNOWN), word.is_split, word.has_glob)


def analyse_parallel(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """The words are joined, filled with the input, and passed to a shell."""
    builder, found = read_options(model, words)
    if found.is_query:
        return builder.build()
    rest = list(found.rest or ())
    end = next((at for at, word in enumerate(rest) if _INPUTS.fullmatch(word.text)), len(rest))
    if not end:
        builder.danger("", "parallel runs each line of its input as a command")
        return builder.build()
    if all(_PLAIN.match(word.text) for word in rest[:end]):
        builder.inner.append(_parallel_inner(rest[:end]))
        return builder.build(is_wrapper=True)
    text = join_words(rest[:end])
    places = _PLACES.sub(UNKNOWN, text.text)
    for value in found.values("-I", "-U"):
        places = places.replace(value.text, UNKNOWN) if value.text else places
    if places == text.text:
        places = f"{places} {UNKNOWN}"
    builder.scripts.append(
        ShellScript(Word(places, text.is_split, text.has_glob), "parallel runs it")
    )
    return builder.build(is_wrapper=True)


def _parallel_inner(words: Sequence[Word]) -> Inner:
    """Without a shell metacharacter, the input is inserted as quoted words."""
    texts = [text for word in words for text in word.text.split()]
    filled = tuple(Word(_PLACES.sub(UNKNOWN, text)) for text in texts)
    is_filled = filled != tuple(map(Word, texts))
    return Inner(filled, "parallel starts it", is_open_ended=not is_filled)


# find and fd: the commands that they start for found files, deletions and outputs.

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


def analyse_find(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """The data covers everything but the inner commands."""
    builder = EffectsBuilder()
    left, commands, deletes = _without_actions(model, words[1:])
    found = scan(model, left)
    note_options(builder, model, found)
    starts = _start_paths(found)
    for action, inner, is_many in commands:
        if _STARTS[action] and any(_is_vague(word.text) for word in inner):
            builder.danger(
                "",
                "it starts a command in an unknown folder; use -exec, not -execdir",
            )
        for words_inner in _fill_placeholders(
            inner, starts, in_folder=_STARTS[action], is_many=is_many
        ):
            builder.inner.append(Inner(words_inner, "find starts it for what it builder"))
    if deletes:
        builder.inner += _deletions(found, starts)
    return builder.build()


def _without_actions(
    model: ArgumentModel,
    words: Sequence[Word],
) -> tuple[list[Word], list[tuple[str, tuple[Word, ...], bool]], bool]:
    """The words without `-exec … ;` and `-delete`, the inner commands, and whether it deletes."""
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
            # `--` ends only `-H`, `-L` and `-P`; the expression still follows.
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


def _takes_value(model: ArgumentModel, text: str) -> bool:
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
    """The inner command with the known part of the file names: the start paths."""
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
        found = UNKNOWN  # in the middle of a name the placeholder is no path
    return Word(word.text.replace("{}", found), word.is_split or place.is_split, word.has_glob)


def _is_vague(text: str) -> bool:
    """Whether the word is ambiguous in an unknown folder."""
    return ".." in text.split("/") or _GLUED.match(text) is not None


def _in_folder(word: Word, folder: str) -> Word:
    """`-execdir` runs in the folder of the file: relative paths start there."""
    option, equals, path = word.text.partition("=") if word.text[:1] == "-" else ("", "", word.text)
    if path.startswith(("/", folder)) or not path:
        return word
    return Word(f"{option}{equals}{folder}/{path}", word.is_split, word.has_glob)


def _deletions(found: Scan, starts: Sequence[Word]) -> Iterator[Inner]:
    """`-delete` is judged as `rm`; as `rm -rf` of the start path if no test narrows it."""
    narrow = any(_NAMED.search(value.text) for value in found.values(*_NARROWS))
    for start in starts[:MAX_STARTS]:
        if narrow and start.text.strip("/") not in ("", "~", "..") and start.is_literal:
            under = Word(f"{start.text.rstrip('/')}/{UNKNOWN}")
            yield Inner((Word("rm"), Word("-f"), under), "find deletes what it builder")
        else:
            yield Inner((Word("rm"), Word("-rf"), start), "find deletes all that is in it")


def analyse_fd(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`-x` and `-X` take the words up to `;`, and then options may follow."""
    builder = EffectsBuilder()
    left = words[1:]
    for _ in range(MAX_STARTS):
        found = scan(model, left)
        note_options(builder, model, found)
        note_operands(builder, model, replace(found, rest=None))
        if found.rest_by.kind != "inner":
            return builder.build()
        rest = list(found.rest or ())
        end = next((at for at, word in enumerate(rest) if word.text == ";"), len(rest))
        if end:
            inner = _fd_filled(rest[:end], found)
            builder.inner.append(Inner(inner, found.rest_by.why))
        left = rest[end + 1 :]
    builder.danger("", "it starts more commands than can be judged")
    return builder.build()


def _fd_filled(inner: Sequence[Word], found: Scan) -> tuple[Word, ...]:
    paths = (*found.operands[1:], *found.values("-C", "--base-directory", "--search-path"))
    base = "." if not paths else paths[0].text.rstrip("/") if len(paths) == 1 else ""
    file = f"{base}/{UNKNOWN}" if base and UNKNOWN not in base else UNKNOWN

    def fill(word: Word) -> Word:
        text = _FD_NAMES.sub(UNKNOWN, _FD_PATHS.sub(file, word.text))
        return Word(text, word.is_split, word.has_glob)

    filled = tuple(fill(word) for word in inner)
    # Without a placeholder, the path follows all the words.
    return (*filled, Word(file)) if filled == tuple(inner) else filled
