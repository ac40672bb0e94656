"""Applies the model of a program to the arguments of a command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cellwall.parsing.shell.words import Word
from cellwall.policy.commands.arguments import ArgumentModel, GivenOption, Scan, scan
from cellwall.policy.commands.effects import (
    CommandEffects,
    EffectsBuilder,
    Inner,
    ShellScript,
    fits,
)
from cellwall.policy.commands.unmodelled import why_unlisted

COULD_BE_OPTION = "an unknown word could be an option that runs code or writes files"
SUB_UNKNOWN = "the sub-command is known only at run time; write the sub-command"
NOT_LISTED = "the effect of this option is not known"

_BEFORE = {
    "python": (Word("python"),),
    "module": (Word("python"), Word("-m")),
    "yarn": (Word("yarn"),),
}
_SUFFIX = re.compile(r"[\w.~-]*\Z")


def interpret(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`words` begin with the program, or with the sub-command."""
    builder = EffectsBuilder()
    is_wrapper = _walk(builder, model, words[:1], words[1:])
    return builder.build(is_wrapper=is_wrapper)


def read_options(model: ArgumentModel, words: Sequence[Word]) -> tuple[EffectsBuilder, Scan]:
    """The arguments of a command, with the effects of its options noted."""
    builder, found = EffectsBuilder(), scan(model, words[1:])
    note_options(builder, model, found)
    return builder, found


def _walk(
    builder: EffectsBuilder, model: ArgumentModel, head: Sequence[Word], words: Sequence[Word]
) -> bool:
    """Opens the options of a model and then its sub-command, if it has those."""
    count = len(builder.dangers)
    is_wrapper = _walk_words(builder, model, head, words)
    if model.keeps and len(builder.dangers) > count:
        # A permanent setting is written to a file that rules protect.
        builder.file("write", Word(model.keeps), "it changes its settings there")
    return is_wrapper


def _walk_words(
    builder: EffectsBuilder, model: ArgumentModel, head: Sequence[Word], words: Sequence[Word]
) -> bool:
    found = scan(model, words)
    name = head[-1].text.rpartition("/")[2]
    if model.always.kind == "danger":
        builder.danger(name, model.always.why)
    builder.is_typed = builder.is_typed or model.is_typed
    note_options(builder, model, found)
    if not model.has_subs:
        note_operands(builder, model, found, name if len(head) > 1 else "")
        return model.is_wrapper
    if not found.operands:
        note_missing(builder, model, found)
        return False
    sub, rest = found.operands[0], found.rest or ()
    while fits(model.looks, sub) and rest:
        # `cargo +nightly build`: a word before the sub-command.
        builder.apply(model.looks, sub, sub.text)
        sub, rest = rest[0], rest[1:]
    if len(words) > len(rest) + 1 or builder.plain:
        builder.plain = (*head, sub, *rest)
    return _analyse_sub(builder, model, (*head, sub), rest)


def _analyse_sub(
    builder: EffectsBuilder, model: ArgumentModel, head: Sequence[Word], rest: Sequence[Word]
) -> bool:
    name = head[-1]
    if not name.is_literal:
        builder.danger("", SUB_UNKNOWN)
        return False
    sub = model.subs.get(name.text)
    if sub is None and model.is_abbreviated:
        fitting = (found for key, found in model.subs.items() if key.startswith(name.text))
        sub = max(fitting, key=lambda found: found.is_risky, default=None)
    if sub is not None:
        return _walk(builder, sub, head, rest)
    if model.is_anywhere:
        behind = model.behind()
        note_options(builder, behind, found := scan(behind, rest))
        note_operands(builder, behind, found)
    if name.text in model.harmless:
        return False
    if model.other.kind == "package":
        builder.package((name, *rest), model.other.why)
    else:
        builder.apply(model.other, name, name.text)
    return False


def note_options(builder: EffectsBuilder, model: ArgumentModel, found: Scan) -> None:
    """The effects of the options, unlisted and unknown ones included."""
    if found.is_unsure and model.is_risky:
        builder.danger("", COULD_BE_OPTION)
    for each in found.options:
        note_option(builder, each)
    for word in found.strange:
        if fits(model.looks, word):
            builder.apply(model.looks, word, word.text)
        elif model.is_strict:
            builder.danger(word.text.partition("=")[0] if word.is_literal else "", NOT_LISTED)
        elif why := why_unlisted(word, found.behind.get(word)):
            builder.danger(word.text.partition("=")[0] if word.is_literal else "", why)


def note_option(builder: EffectsBuilder, each: GivenOption) -> None:
    """The effect of one option."""
    effect = each.option.effect
    if effect.kind == "stdin":
        builder.reads_stdin_as = effect.detail
    elif effect.kind == "danger" and not effect.cases:
        builder.danger(each.spelled, effect.why)
    elif effect.kind == "inplace":
        # `-i'/etc/*'` keeps a copy of the file there, under the name of the file.
        if each.value is not None and not _SUFFIX.match(each.value.text):
            builder.danger(each.spelled, "it keeps a copy of the file in another folder")
    elif effect.kind == "names" and each.value is None:
        builder.names(None)
    elif each.value is not None:
        builder.apply(effect, each.value, each.spelled)


def note_operands(
    builder: EffectsBuilder, model: ArgumentModel, found: Scan, sub: str = ""
) -> None:
    """The effects of the operands. `sub` is their sub-command."""
    if found.is_query:
        return
    if found.rest is not None:
        note_rest(builder, model, found)
    supplied = any(not model.supplies.isdisjoint(each.option.names) for each in found.options)
    effects = model.operands[1:] if supplied and len(model.operands) > 1 else model.operands
    has_target = found.has("-t", "--target-directory")
    inplace = any(each.option.effect.kind == "inplace" for each in found.options)
    count = len(found.operands)
    for place, word in enumerate(found.operands):
        if fits(model.looks, word):
            builder.apply(model.looks, word, word.text if word.is_literal else "")
        elif model.last and place == count - 1 and count > 1 and not has_target:
            builder.apply(model.last, word, "")
        elif effects:
            effect = effects[min(place, len(effects) - 1)]
            # `deno eval TEXT`: a rule for it names the sub-command, not the text.
            meant = sub if effect.kind == "code" else word.text
            builder.apply(effect, word, meant if word.is_literal else "", inplace=inplace)
    if count < model.stdin_until and found.rest is None:
        note_missing(builder, model, found)


def note_missing(builder: EffectsBuilder, model: ArgumentModel, found: Scan) -> None:
    """A command without an operand may read what it runs from standard input."""
    brings = ("code", "script", "query", "program", "none")
    if model.stdin and not any(
        each.option.effect.kind in brings or not model.supplies.isdisjoint(each.option.names)
        for each in found.options
    ):
        builder.reads_stdin_as = model.stdin


def note_rest(builder: EffectsBuilder, model: ArgumentModel, found: Scan) -> None:
    """The words from the inner command on."""
    words, effect = found.rest or (), found.rest_by
    while model.assigns and words and builder.assign(words[0]):
        words = words[1:]
    if not words:
        return
    if effect.kind == "inner":
        before = _BEFORE.get(effect.detail, ())
        if effect.detail == "python" and not words[0].text.endswith(".py"):
            before = ()
        if "://" in words[0].text:
            builder.danger(words[0].text, "the code is downloaded from this address")
        words = (*before, *words)
        builder.inner.append(Inner(words, effect.why, is_open_ended=effect.detail == "open"))
    elif effect.kind == "words":
        builder.scripts.append(ShellScript(join_words(words), effect.why))
    elif effect.kind == "package":
        builder.package(words, effect.why)


def join_words(words: Sequence[Word]) -> Word:
    """The words with blanks between, as `eval` and `ssh` join them."""
    return Word(
        " ".join(word.text for word in words),
        is_split=any(word.is_split for word in words),
        has_glob=any(word.has_glob for word in words),
    )
