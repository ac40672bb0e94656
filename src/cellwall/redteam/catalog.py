"""The catalog of attacks, from the TOML files of `attacks/`, and the programs that try them.

A `[[program]]` is a Python program that runs inside a cell and, as the control, outside of one; its
`names` list what it tries. An `[[attack]]` is tried by the runner of its layer. Missing fields of
an entry come from `[defaults]`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from platform import machine
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.redteam.attack import LAYERS, Attack

_FOLDER = resources.files("cellwall.redteam").joinpath("attacks")
_SHARED = ("requirement", "wall", "control", "owasp", "atlas")
_ID = re.compile(r"[a-z]{1,12}/[A-Za-z0-9_-]{1,80}")
_TOOLS_MARK = "# TOOLS-OF-THE-ATTACK"
# Texts that stand before a program, behind that of `stage.py`.
_BEFORE = {"egress": ("knocks",)}
_MAIN = "\nif __name__ == '__main__':\n    play()\n"


@cache
def attacks(processor: str = "") -> tuple[Attack, ...]:
    """All attacks that exist on this processor, or on the named one, by layer."""
    processor = processor or machine()
    return tuple(attack for layer in LAYERS for attack in _of_layer(layer, processor))


def select(*, layer: str | None = None, only: str | None = None) -> tuple[Attack, ...]:
    """The attacks of a layer, or the one with this id."""
    if only is not None:
        chosen = [attack for attack in attacks() if attack.id == only]
        if not chosen:
            raise BadInput(
                f"there is no attack {_shown(only)}",
                hint="`cellwall redteam --list` prints the ids.",
                code="CW-REDTEAM-UNKNOWN",
            )
    else:
        chosen = list(attacks())
    if layer is not None:
        if layer not in LAYERS:
            raise BadInput(
                f"there is no layer {_shown(layer)}",
                hint=f"One of: {', '.join(LAYERS)}.",
                code="CW-REDTEAM-UNKNOWN",
            )
        chosen = [attack for attack in chosen if attack.layer == layer]
    if not chosen:  # no attack at all would look like one that is held
        raise BadInput(
            f"the attack {_shown(only or '')} is not of the layer {layer}",
            hint="Leave out --layer.",
            code="CW-REDTEAM-UNKNOWN",
        )
    return tuple(chosen)


def _shown(text: str) -> str:
    """A name that a person typed, without characters that a terminal or a log would interpret."""
    return repr("".join(char if char.isprintable() else "?" for char in text[:60]))


@cache
def program_text(name: str) -> str:
    """The program with the text of `stage.py`, and what else it needs, before it."""
    folder = _FOLDER.joinpath("programs")
    parts = ("stage", *_BEFORE.get(name, ()), name)
    return "\n".join(folder.joinpath(f"{part}.py").read_text("utf-8") for part in parts) + _MAIN


def server_text(tools: str) -> str:
    """An MCP server for the gateway; `tools` are the lines that make its tools."""
    text = _FOLDER.joinpath("programs", "mcp_server.py").read_text("utf-8")
    start, _, rest = text.partition(_TOOLS_MARK)
    return f"{start}{tools}\n{rest.partition(chr(10))[2]}"


def explanation(attack: Attack) -> str:
    """What the attack does: the docstring of its program, or the fields of its entry."""
    if attack.program:
        text = _FOLDER.joinpath("programs", f"{attack.program}.py").read_text("utf-8")
        doc = text.split('"""', 2)[1].strip()
        return f"{doc}\n\nTried as {attack.key!r} by attacks/programs/{attack.program}.py."
    lines = [f"{name}: {value}" for name, value in attack.data.items()]
    return "\n".join(lines) or f"Tried by the runner of the layer {attack.layer}."


def _of_layer(layer: str, processor: str) -> Iterator[Attack]:
    data = tomllib.loads(_FOLDER.joinpath(f"{layer}.toml").read_text("utf-8"))
    defaults = data.get("defaults", {})
    for entry in data.get("program", ()):
        yield from _of_program(layer, {**defaults, **entry}, processor)
    for entry in data.get("attack", ()):
        yield _attack(layer, entry["id"], entry["title"], {**defaults, **entry})


def _of_program(layer: str, entry: Mapping[str, Any], processor: str) -> Iterator[Attack]:
    walls = entry.get("walls", {})
    for name in (*entry["names"], *entry.get(f"names_on_{processor}", ())):
        fitting = [wall for pattern, wall in walls.items() if fnmatchcase(name, pattern)]
        words = " ".join(part for part in name.split("-") if part)
        yield _attack(
            layer,
            f"{entry.get('prefix', '')}{name}",
            f"{entry['title']}: {words}",
            {**entry, "wall": fitting[0] if fitting else entry["wall"]},
            program=entry["file"],
            key=name,
        )


def _attack(
    layer: str, name: str, title: str, entry: Mapping[str, Any], *, program: str = "", key: str = ""
) -> Attack:
    identity = f"{layer}/{name}"
    if _ID.fullmatch(identity) is None:
        raise ValueError(identity)  # the files are ours, and a test reads them all
    known = {*_SHARED, "id", "title"}
    data = {} if program else {name: value for name, value in entry.items() if name not in known}
    return Attack(
        id=identity,
        layer=layer,
        title=title,
        requirement=entry["requirement"],
        wall=entry["wall"],
        control=entry["control"],
        owasp=tuple(entry.get("owasp", ())),
        atlas=tuple(entry.get("atlas", ())),
        program=program,
        key=key,
        data=data,
    )
