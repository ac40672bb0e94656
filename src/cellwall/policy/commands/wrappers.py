"""Wrappers whose inner command is put together: env -S, xargs and parallel. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Model
from cellwall.policy.commands.interpret import (
    EffectsBuilder,
    interpret,
    joined,
    note_operands,
    note_options,
)
from cellwall.policy.commands.opened import CommandEffects, Inner, ShellScript

_INPUTS = re.compile(r":::\+?|::::\+?")
_PLAIN = re.compile(r"[\w./:=@%+,{} -]+\Z")
_PLACES = re.compile(r"\{[^{}\s]{0,32}\}")


def quoted(words: Sequence[Word]) -> str:
    """Shell text that stands for these words; what is not known stays so."""
    return " ".join(shlex.quote(word.text) if word.is_literal else word.text for word in words)


def open_env(model: Model, words: Sequence[Word]) -> CommandEffects:
    """`-S` puts its words in the place of options, so what comes of it is an `env` again."""
    found = scan(model, words[1:])
    split = [given for given in found.given if given.is_any("-S")]
    if not split:
        return interpret(model, words)
    finds = EffectsBuilder()
    note_options(finds, model, replace_given(found, "-S"))
    text = " ".join(given.value.text for given in split if given.value)
    behind = quoted((*found.operands, *(found.rest or ())))
    unknown = any(given.value and given.value.is_split for given in split)
    finds.scripts.append(
        ShellScript(Word(f"env {text} {behind}".strip(), unknown), "env splits it")
    )
    return finds.build(is_wrapper=True)


def replace_given(found: Scan, name: str) -> Scan:
    """The same without one of its options."""
    return replace(found, given=[given for given in found.given if not given.is_any(name)])


def open_xargs(model: Model, words: Sequence[Word]) -> CommandEffects:
    """Without a command it is echo; with `-I` the input stands inside of the words."""
    finds = EffectsBuilder()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    note_operands(finds, model, found)
    if not finds.inner:
        if found.rest is None and not any(g.option.effect.kind == "query" for g in found.given):
            finds.inner.append(Inner((Word("echo"),), "xargs starts echo", is_open_ended=True))
        return finds.build(is_wrapper=True)
    if found.has("-0", "--null"):
        finds.inner[0] = replace(finds.inner[0], is_null_separated=True)
    places = [value.text for value in found.values("-I", "-J", "-i", "--replace")]
    if not places and found.has("-i", "--replace"):
        places = ["{}"]
    if places:
        inner = finds.inner[0]
        is_open_ended = found.has("-J") or not places[-1]
        filled = tuple(_fill_placeholder(word, places[-1]) for word in inner.words)
        finds.inner[0] = replace(inner, words=filled, is_open_ended=is_open_ended)
    return finds.build(is_wrapper=True)


def _fill_placeholder(word: Word, place: str) -> Word:
    if not place or UNKNOWN in place or place not in word.text:
        return word
    return Word(word.text.replace(place, UNKNOWN), word.is_split, word.has_glob)


def open_parallel(model: Model, words: Sequence[Word]) -> CommandEffects:
    """Its words are joined, filled with the input, and given to a shell."""
    finds = EffectsBuilder()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    if any(given.option.effect.kind == "query" for given in found.given):
        return finds.build()
    rest = list(found.rest or ())
    end = next((at for at, word in enumerate(rest) if _INPUTS.fullmatch(word.text)), len(rest))
    if not end:
        finds.danger("", "parallel runs each line of its input as a command")
        return finds.build()
    if all(_PLAIN.match(word.text) for word in rest[:end]):
        finds.inner.append(_parallel_inner(rest[:end]))
        return finds.build(is_wrapper=True)
    text = joined(rest[:end])
    places = _PLACES.sub(UNKNOWN, text.text)
    for value in found.values("-I", "-U"):
        places = places.replace(value.text, UNKNOWN) if value.text else places
    if places == text.text:
        places = f"{places} {UNKNOWN}"
    finds.scripts.append(
        ShellScript(Word(places, text.is_split, text.has_glob), "parallel runs it")
    )
    return finds.build(is_wrapper=True)


def _parallel_inner(words: Sequence[Word]) -> Inner:
    """Without a sign of the shell in it, the input is put in as quoted words."""
    texts = [text for word in words for text in word.text.split()]
    filled = tuple(Word(_PLACES.sub(UNKNOWN, text)) for text in texts)
    is_filled = filled != tuple(map(Word, texts))
    return Inner(filled, "parallel starts it", is_open_ended=not is_filled)
