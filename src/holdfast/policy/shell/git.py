"""git: its settings are commands as often as not, wherever they are given. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policy.shell.arguments import Scan, scan
from holdfast.policy.shell.catalog import Effect, Model
from holdfast.policy.shell.interpret import Finds, interpret
from holdfast.policy.shell.opened import Opened
from holdfast.policy.shell.words import UNKNOWN, Word

_READS = {"--get", "--get-all", "--get-regexp", "--get-urlmatch", "--get-color", "-l", "--list"}
_REMOVES = {"--unset", "--unset-all", "--remove-section", "--rename-section"}
_COMMANDS = {"list", "get", "set", "unset", "rename-section", "remove-section", "edit"}


def open_git(model: Model, words: Sequence[Word]) -> Opened:
    """As the data says; `config` and `diff --no-index` by their own meaning of operands."""
    opened = interpret(model, words)
    found = scan(model, words[1:])
    if not found.operands:
        return opened
    finds = Finds(plain=opened.plain)
    finds.merge(opened)
    name, rest = found.operands[0].text, found.rest or ()
    if name == "config":
        config = model.subs["config"]
        _open_config(finds, model.cases["setting"], scan(config, rest))
    elif name == "diff" and Word("--no-index") in rest:
        diff = scan(model.subs["diff"], rest)
        for word in diff.operands:
            finds.file("read", word, "git compares it")
    return finds.opened(is_wrapper=opened.is_wrapper)


def _open_config(finds: Finds, setting: Effect, found: Scan) -> None:
    if not found.has("--file") and found.is_unsure:
        finds.danger("", "which setting of git is changed is not known")
    strange = {word.text.partition("=")[0] for word in found.strange}
    operands = found.operands
    # `git config NAME VALUE` is the old form, `git config set NAME VALUE` the new one.
    command = operands[0].text if operands and operands[0].text in _COMMANDS else ""
    if command:
        operands = operands[1:]
    if strange & (_READS | _REMOVES) or command in ("list", "get"):
        finds.files = [file for file in finds.files if strange & _REMOVES or command == "unset"]
    elif command == "edit":
        finds.danger("edit", "git starts an editor")
    elif len(operands) > 1 and not command.startswith(("unset", "re")):
        name, value = operands[0], operands[1]
        both = Word(f"{name.text}={value.text}", name.is_split or value.is_split)
        option = name.text if UNKNOWN not in name.text else ""
        finds.apply(setting, both, option)
