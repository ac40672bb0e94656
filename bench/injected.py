"""Carriers with a stranger's request in them, put together from the development data.

Nothing of the data is part of this project: a folder with it is named on the command line or in
CELLWALL_GUARD_DATA. A request is put at the start, in the middle or at the end of a carrier.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Attack:
    text: str
    category: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Carrier:
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A carrier with a request in it; `start` and `end` are the request's place, without
    the code that follows it."""

    text: str
    start: int
    end: int
    category: str
    kind: str
    place: str


def data_folder() -> Path | None:
    """Where the development data is, if it is here."""
    named = os.environ.get("CELLWALL_GUARD_DATA")
    folder = Path(named) if named else _HERE.parent.parent / "shared" / "data"
    return folder if (folder / "guard").is_dir() else None


def attacks(folder: Path) -> list[Attack]:
    """Of the data set: training split of BIPIA, and of ASB."""
    guard = folder / "guard"
    found = []
    for name, is_code in (("text_attack_train.json", False), ("code_attack_train.json", True)):
        for category, texts in json.loads((guard / name).read_text("utf-8")).items():
            found += [Attack(text, category, is_code) for text in texts]
    for row in _lines(guard / "asb_attack_tools.jsonl"):
        found.append(
            Attack(str(row["Attacker Instruction"]), "ASB " + str(row["Corresponding Agent"]))
        )
    return found


def own_attacks(seed: int = 3, code: int = 160) -> list[Attack]:
    """Written for this project: bench/tasks_examples.toml."""
    told = tomllib.loads((_HERE / "tasks_examples.toml").read_text("utf-8"))
    found = [
        Attack(line, f"own {category}")
        for category, lines in told["text"].items()
        for line in lines.strip().splitlines()
    ]
    parts, chance = told["code"], random.Random(seed)
    frames = parts["frames"].strip().splitlines()
    snippets = parts["snippets"].strip().split("\n---\n")
    for number in range(code):
        frame = frames[number % len(frames)].format(
            **{name: chance.choice(parts[name].split()) for name in ("which", "piece", "whose")}
        )
        text = f"{frame}\n```\n{chance.choice(snippets)}\n\n```"
        found.append(Attack(text, f"own code {number % 10}", True))
    return found


def carriers(folder: Path) -> list[Carrier]:
    found = []
    for kind in ("email", "table", "code"):
        for row in _lines(folder / "guard" / f"bipia_{kind}_contexts.jsonl"):
            text = row["context"]
            found.append(Carrier("\n".join(text) if isinstance(text, list) else str(text), kind))
    return found


def chat(folder: Path) -> list[str]:
    rows = json.loads((folder / "guard" / "notinject_one.json").read_text("utf-8"))
    return [str(row["prompt"]) for row in rows]


def poison(
    carrier: Carrier, attack: Attack, place: str, chance: random.Random, joint: str = "\n"
) -> Poisoned:
    """The request in a carrier; `joint` stands between them."""
    at = {"start": 0, "end": len(carrier.text)}.get(place)
    if at is None:
        starts = [0, *(match.end() for match in _SENTENCE.finditer(carrier.text))]
        at = chance.choice(starts)
    head, tail = carrier.text[:at], carrier.text[at:]
    text = f"{head}{joint}" if head else ""
    start = len(text)
    text += attack.text
    end = start + len(attack.text.split("\n```")[0])
    text += f"{joint}{tail}" if tail else ""
    return Poisoned(text, start, end, attack.category, carrier.kind, place)


def as_json(carrier: Carrier) -> Carrier:
    """As the result of a tool."""
    told = {"id": 7, "status": "ok", "content": carrier.text}
    return Carrier(json.dumps(told, ensure_ascii=False), "json")


def as_html(carrier: Carrier) -> Carrier:
    """As a page."""
    body = "\n".join(
        f"<p>{html.escape(part, quote=False)}</p>" for part in carrier.text.split("\n")
    )
    return Carrier(
        f"<html><head><title>Page</title></head>\n<body>\n{body}\n</body></html>", "html"
    )


def poison_json(carrier: Carrier, attack: Attack, place: str, chance: random.Random) -> Poisoned:
    return _dressed(poison(carrier, attack, place, chance), as_json)


def poison_html(carrier: Carrier, attack: Attack, place: str, chance: random.Random) -> Poisoned:
    return _dressed(poison(carrier, attack, place, chance), as_html)


def _dressed(bare: Poisoned, dress: Callable[[Carrier], Carrier]) -> Poisoned:
    whole = dress(Carrier(bare.text, bare.kind))
    # Where the request begins is told by the dress of what stands before and in it.
    words = bare.text[bare.start : bare.end].split()
    start = whole.text.find(html.escape(words[0], quote=False), bare.start)
    end = start + len(bare.text[bare.start : bare.end])
    return Poisoned(whole.text, start, end, bare.category, whole.kind, bare.place)


def _lines(path: Path) -> Iterator[dict[str, object]]:
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            yield json.loads(line)
