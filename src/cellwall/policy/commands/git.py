"""git: its settings are commands as often as not, wherever they are given. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.parsing.shell.command import File
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Effect, Model
from cellwall.policy.commands.interpret import EffectsBuilder, fits, interpret, resolve
from cellwall.policy.commands.opened import CommandEffects

_READS = {"--get", "--get-all", "--get-regexp", "--get-urlmatch", "--get-color", "-l", "--list"}
_REMOVES = {"--unset", "--unset-all", "--remove-section"}
_WILDCARDS = frozenset("*?[\\")
_SETTINGS_FILE = Word(".git/config")
_HOOKS = Word(".git/hooks")
_KEPT = "git keeps a setting there that names what it runs, or where its settings come from"
_COMMANDS = {"list", "get", "set", "unset", "rename-section", "remove-section", "edit"}


def open_git(model: Model, words: Sequence[Word]) -> CommandEffects:
    """As the data says; the paths from the folder of `-C` on, and a few operands by code."""
    opened = interpret(model, words)
    found = scan(model, words[1:])
    if not found.operands:
        return opened
    finds = EffectsBuilder(plain=opened.plain)
    finds.merge(opened)
    name, rest = found.operands[0].text, found.rest or ()
    is_outside = any(word.text.startswith("--no-i") for word in rest)
    if name == "config":
        config = model.subs["config"]
        _open_config(finds, model, scan(config, rest))
    elif name in ("init", "init-db", "clone"):
        new = scan(model.subs[name], rest)
        _note_new(finds, model, found, new, is_clone=name == "clone")
    elif name in ("add", "stage"):
        _note_added(finds, scan(model.subs[name], rest).operands)
    elif name in ("checkout", "restore"):
        _note_restored(finds, name, rest)
    elif name == "diff" and is_outside:
        diff = scan(model.subs["diff"], rest)
        for word in diff.operands:
            finds.file("read", word, "git compares it")
    elif name == "grep" and is_outside:
        finds.file("read", Word("."), "git searches it")
    _move(finds, found.values("-C"))
    return finds.build(is_wrapper=opened.is_wrapper)


def _note_added(finds: EffectsBuilder, operands: Sequence[Word]) -> None:
    """What is added can be shown later. git has wildcards of its own, quoted or not."""
    for word in operands:
        if word.text.startswith((":!", ":^")):
            continue
        if word.text.startswith(":"):
            finds.danger(word.text if word.is_literal else "", "git alone knows which files it is")
        else:
            has_glob = word.has_glob or not _WILDCARDS.isdisjoint(word.text)
            finds.file("read", replace(word, has_glob=has_glob), "git takes it up")


def _note_restored(finds: EffectsBuilder, name: str, rest: Sequence[Word]) -> None:
    """Files that get the content of another commit: the words behind `--`, or all of them."""
    texts = [word.text for word in rest]
    start = texts.index("--") + 1 if "--" in texts else len(rest) if name == "checkout" else 0
    for word in rest[start:]:
        if start or not word.text.startswith(("-", ":")):
            finds.file("write", word, "git writes it")


def _move(finds: EffectsBuilder, folders: Sequence[Word]) -> None:
    """Each `-C` leads on from the one before; another repository has settings of its own, which
    can run commands."""
    if not folders:
        return
    folder = posixpath.join("", *(word.text for word in folders))
    is_known = UNKNOWN not in folder and all(word.is_literal for word in folders)
    inside = posixpath.normpath(folder) if folder else "."
    if not is_known or inside.startswith(("/", "~")) or inside.split("/")[0] == "..":
        option = "-C" if is_known else ""
        finds.danger(option, "git works in a folder elsewhere, by the settings that it finds there")
    finds.files = list(_move_files(finds.files, folder))


def _move_files(files: Sequence[File], folder: str) -> Iterator[File]:
    for file in files:
        if file.path.text.startswith(("~", UNKNOWN)):
            yield file
        else:
            path = replace(file.path, text=posixpath.join(folder, file.path.text))
            yield replace(file, path=path)


def _note_new(
    finds: EffectsBuilder, model: Model, outer: Scan, found: Scan, *, is_clone: bool
) -> None:
    """A new repository, or an old one that is set up again, gets hooks and settings."""
    given = (*outer.values("-c"), *found.values("-c", "--config"))
    if found.values("--template") or any(_is_template(each.text) for each in given):
        finds.file("write", _HOOKS, "git copies the hooks of a folder there")
    for each in found.values("-c", "--config"):
        _note_kept(finds, model, each)
    if is_clone and len(found.operands) == 1 and "::" not in found.operands[0].text:
        name = posixpath.basename(found.operands[0].text.rstrip("/").rpartition(":")[2])
        finds.file(
            "write", Word(name.removesuffix(".git")), "git clones into a folder of that name"
        )


def _is_template(setting: str) -> bool:
    return setting.lower().startswith("init.templatedir")


def _note_kept(finds: EffectsBuilder, model: Model, setting: Word) -> None:
    """A setting that stays is one in a file that nobody may write."""
    kind = resolve(model.cases["setting"], setting)[0].kind
    if kind != "value" and fits(model.cases["naming"], setting):
        finds.file("write", _SETTINGS_FILE, _KEPT)


def _open_config(finds: EffectsBuilder, model: Model, found: Scan) -> None:
    setting: Effect = model.cases["setting"]
    if not found.has("--file") and found.is_unsure:
        finds.danger("", "which setting of git is changed is not known")
    strange = {word.text.partition("=")[0] for word in found.strange}
    renames = [text for text in strange if text.startswith("--ren")]
    operands = found.operands
    # `git config NAME VALUE` is the old form, `git config set NAME VALUE` the new one.
    command = operands[0].text if operands and operands[0].text in _COMMANDS else ""
    if command:
        operands = operands[1:]
    if renames or command == "rename-section":
        # A setting that means nothing where it stands becomes one that runs commands.
        finds.danger(renames[0] if renames else command, "settings of git get other names")
        finds.file("write", _SETTINGS_FILE, _KEPT)
    elif strange & _READS or command in ("list", "get"):
        finds.files = [replace(file, access="read") for file in finds.files]
    elif strange & _REMOVES:
        return
    elif command == "edit":
        finds.danger("edit", "git starts an editor")
    elif len(operands) > 1 and not command.startswith(("unset", "re")):
        name, value = operands[0], operands[1]
        both = Word(f"{name.text}={value.text}", name.is_split or value.is_split)
        option = name.text if UNKNOWN not in name.text else ""
        finds.apply(setting, both, option)
        _note_kept(finds, model, both)
