"""Interpreters whose modules are programs of their own: `python -m pip`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policy.shell.arguments import scan
from holdfast.policy.shell.catalog import Model, find_model
from holdfast.policy.shell.interpret import Finds, interpret
from holdfast.policy.shell.opened import Opened
from holdfast.policy.shell.words import Word


def open_python(model: Model, words: Sequence[Word]) -> Opened:
    """A module that has a model is opened like the program of that name."""
    opened = interpret(model, words)
    found = scan(model, words[1:])
    modules = found.values("-m")
    inner = find_model(modules[0].text) if modules and modules[0].is_literal else None
    finds = Finds()
    finds.merge(opened)
    if modules and not modules[0].is_literal:
        finds.danger("", "which module python runs is not known")
    if inner is not None and inner is not model:
        finds.merge(interpret(inner, (modules[0], *(found.rest or ()))))
    return finds.opened()
