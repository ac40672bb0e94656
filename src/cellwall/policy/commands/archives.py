"""tar: whether the archive and the folder are read or written depends on its mode. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace

from cellwall.parsing.shell.words import Word
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Model
from cellwall.policy.commands.interpret import Finds, note_options
from cellwall.policy.commands.opened import Opened

_MAKES = (
    *("-c", "--create", "-r", "--append", "-u", "--update"),
    *("-A", "--catenate", "--concatenate", "--delete"),
)
_replacement = re.compile(r"(?:flags=[^;]*;)?s(?P<sign>.).*?(?P=sign)(.+?)(?P=sign)").match
_TAKES = ("-x", "--extract", "--get")


def open_tar(model: Model, words: Sequence[Word]) -> Opened:
    """All that runs code is in the data; this is about the paths."""
    finds = Finds()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    if any(given.option.effect.kind == "query" for given in found.given):
        return finds.opened()
    for listed in found.values("-T", "--files-from"):
        finds.names(listed)
    makes = found.has(*_MAKES)
    if found.has("--force-local"):
        remote = model.cases["archive"].cases[0][1].why
        finds.dangers = [danger for danger in finds.dangers if danger.why != remote]
    for archive in found.values("-f", "--file"):
        finds.file("write" if makes else "read", archive, "the archive")
    if makes:
        # Each folder holds for the words behind it, and begins where the one before it led.
        named = [each.text for each in found.values("-C", "--directory")]
        folders = dict.fromkeys((*named, posixpath.join("", *named)) if named else ())
        for word in found.operands:
            finds.file("read", word, "it is put into the archive")
            for place in folders:
                path = replace(word, text=posixpath.join(place, word.text))
                finds.file("read", path, "it is put into the archive")
    if found.has(*_TAKES):
        _note_unpacked(finds, found)
    return finds.opened()


def _note_unpacked(finds: Finds, found: Scan) -> None:
    for expression in found.values("--transform", "--xform"):
        # Files of the archive get such a name; what would lead out of the folder tar takes away.
        if given := _replacement(expression.text):
            finds.file("write", replace(expression, text=given[2]), "tar gives files this name")
    if found.has("-O", "--to-stdout"):
        return
    for folder in found.values("-C", "--directory") or (Word("."),):
        finds.file("write", folder, "the archive is unpacked there")
        for word in found.operands:
            path = replace(word, text=posixpath.join(folder.text, word.text))
            finds.file("write", path, "it is unpacked")
