"""git: many of its settings are commands, wherever they are set. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.parsing.shell.words import UNKNOWN, File, Word
from cellwall.policy.commands.arguments import ArgumentModel, Effect, Scan, scan
from cellwall.policy.commands.effects import CommandEffects, EffectsBuilder, fits, resolve
from cellwall.policy.commands.interpret import interpret

_READS = {"--get", "--get-all", "--get-regexp", "--get-urlmatch", "--get-color", "-l", "--list"}
_REMOVES = {"--unset", "--unset-all", "--remove-section"}
_WILDCARDS = frozenset("*?[\\")
_SETTINGS_FILE = Word(".git/config")
_HOOKS = Word(".git/hooks")
_KEPT = "git stores a setting there that names a command or a file of settings"
_COMMANDS = {"list", "get", "set", "unset", "rename-section", "remove-section", "edit"}


def analyse_git(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """As the data says; paths start at the folder of `-C`, and a few operands need code."""
    effects = interpret(model, words)
    found = scan(model, words[1:])
    if not found.operands:
        return effects
    builder = EffectsBuilder(plain=effects.plain)
    builder.merge(effects)
    name, rest = found.operands[0].text, found.rest or ()
    is_outside = any(word.text.startswith("--no-i") for word in rest)
    if name == "config":
        config = model.subs["config"]
        _analyse_config(builder, model, scan(config, rest))
    elif name in ("init", "init-db", "clone"):
        new = scan(model.subs[name], rest)
        _note_new(builder, model, found, new, is_clone=name == "clone")
    elif name in ("add", "stage"):
        _note_added(builder, scan(model.subs[name], rest).operands)
    elif name in ("checkout", "restore"):
        _note_restored(builder, name, rest)
    elif name == "diff" and is_outside:
        diff = scan(model.subs["diff"], rest)
        for word in diff.operands:
            builder.file("read", word, "git compares it")
    elif name == "grep" and is_outside:
        builder.file("read", Word("."), "git searches it")
    _move(builder, found.values("-C"))
    return builder.build(is_wrapper=effects.is_wrapper)


def _note_added(builder: EffectsBuilder, operands: Sequence[Word]) -> None:
    """Added content can be shown later. git has wildcards of its own, quoted or not."""
    for word in operands:
        if word.text.startswith((":!", ":^")):
            continue
        if word.text.startswith(":"):
            builder.danger(
                word.text if word.is_literal else "", "only git knows the files it means"
            )
        else:
            has_glob = word.has_glob or not _WILDCARDS.isdisjoint(word.text)
            builder.file("read", replace(word, has_glob=has_glob), "git takes it up")


def _note_restored(builder: EffectsBuilder, name: str, rest: Sequence[Word]) -> None:
    """Files that get the content of another commit: the words after `--`, or all words."""
    texts = [word.text for word in rest]
    start = texts.index("--") + 1 if "--" in texts else len(rest) if name == "checkout" else 0
    for word in rest[start:]:
        if start or not word.text.startswith(("-", ":")):
            builder.file("write", word, "git writes it")


def _move(builder: EffectsBuilder, folders: Sequence[Word]) -> None:
    """Each `-C` is relative to the one before; another repository has settings of its own, which
    can run commands."""
    if not folders:
        return
    folder = posixpath.join("", *(word.text for word in folders))
    is_known = UNKNOWN not in folder and all(word.is_literal for word in folders)
    inside = posixpath.normpath(folder) if folder else "."
    if not is_known or inside.startswith(("/", "~")) or inside.split("/")[0] == "..":
        option = "-C" if is_known else ""
        builder.danger(option, "git works in another folder, by the settings there")
    builder.files = list(_move_files(builder.files, folder))


def _move_files(files: Sequence[File], folder: str) -> Iterator[File]:
    for file in files:
        if file.path.text.startswith(("~", UNKNOWN)):
            yield file
        else:
            path = replace(file.path, text=posixpath.join(folder, file.path.text))
            yield replace(file, path=path)


def _note_new(
    builder: EffectsBuilder, model: ArgumentModel, outer: Scan, found: Scan, *, is_clone: bool
) -> None:
    """A new or reinitialised repository gets hooks and settings."""
    settings = (*outer.values("-c"), *found.values("-c", "--config"))
    if found.values("--template") or any(_is_template(each.text) for each in settings):
        builder.file("write", _HOOKS, "git copies the hooks of a folder there")
    for each in found.values("-c", "--config"):
        _note_kept(builder, model, each)
    if is_clone and len(found.operands) == 1 and "::" not in found.operands[0].text:
        name = posixpath.basename(found.operands[0].text.rstrip("/").rpartition(":")[2])
        builder.file(
            "write", Word(name.removesuffix(".git")), "git clones into a folder of that name"
        )


def _is_template(setting: str) -> bool:
    return setting.lower().startswith("init.templatedir")


def _note_kept(builder: EffectsBuilder, model: ArgumentModel, setting: Word) -> None:
    """A permanent setting is written to a file that rules protect."""
    kind = resolve(model.cases["setting"], setting)[0].kind
    if kind != "value" and fits(model.cases["naming"], setting):
        builder.file("write", _SETTINGS_FILE, _KEPT)


def _analyse_config(builder: EffectsBuilder, model: ArgumentModel, found: Scan) -> None:
    setting: Effect = model.cases["setting"]
    if not found.has("--file") and found.is_unsure:
        builder.danger("", "the git setting that changes is not known")
    strange = {word.text.partition("=")[0] for word in found.strange}
    renames = [text for text in strange if text.startswith("--ren")]
    operands = found.operands
    # `git config NAME VALUE` is the old form, `git config set NAME VALUE` the new one.
    command = operands[0].text if operands and operands[0].text in _COMMANDS else ""
    if command:
        operands = operands[1:]
    if renames or command == "rename-section":
        # A renamed section can turn a meaningless setting into one that runs commands.
        builder.danger(renames[0] if renames else command, "git settings get other names")
        builder.file("write", _SETTINGS_FILE, _KEPT)
    elif strange & _READS or command in ("list", "get"):
        builder.files = [replace(file, access="read") for file in builder.files]
    elif strange & _REMOVES:
        return
    elif command == "edit":
        builder.danger("edit", "git starts an editor")
    elif len(operands) > 1 and not command.startswith(("unset", "re")):
        name, value = operands[0], operands[1]
        both = Word(f"{name.text}={value.text}", name.is_split or value.is_split)
        option = name.text if UNKNOWN not in name.text else ""
        builder.apply(setting, both, option)
        _note_kept(builder, model, both)
