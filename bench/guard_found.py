"""Attacks from packages that test guards or attack models.

Each package is a source of its own (`[[found]]` in bench/guard_data/MANIFEST.toml): one author or
team, pinned by its hash. The manifest says under which keys, arguments or variables the attacks
stand in its JSON, YAML and Python files. A text that shares a run of words with a set that is
measured, or with a source before it, is left out, and so is a file that names a collection which is
measured: what is left out of training must not come in by another way. What only asks for
something, as people ask a model, is left out as well: requests without a sign of an injection lower
recall. Needs PyYAML beside NumPy.
"""

from __future__ import annotations

import ast
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from guard_families import Text
from guard_texts import TextWriter

_MEASURED = re.compile(
    r"garak|llmail|xTRam1|safe-guard-prompt|agentdojo|deepset|protectai|purple.?llama|cyberseceval",
    re.IGNORECASE,
)
_SLOT = re.compile(
    r"<INSTRUCTION>|\{\{? ?(?:payload|prompt|goal|goal_foreign|ask|question|target|canary|action)"
    r" ?\}?\}",
    re.IGNORECASE,
)
_OTHER_SLOT = re.compile(r"\{\{|\{\w+\}|\[INSERT|<[A-Z_]{4,}>")
_PATTERN = re.compile(r"\(\?|\.\*|\\[bsdw]|\]\+|\w\|\w+\|")
_WORD = re.compile(r"\w+")
_RUN = 7
"""So many words in a row are the same text."""
_SIGN = re.compile(
    r"""
    \b(?:ignore|disregard|forget|override|supersede|replace|discard|skip|drop|bypass|neglect|overrule
        |void)\w*\b.{0,40}\b(?:instruction|direction|directive|prompt|rule|guideline|polic|restriction
        |task|command|context|everything|above|previous|prior|order|safety|filter|said|told)
    |\b(?:new|updated|revised|additional|hidden|secret|real|actual|following)\s+
        (?:system\s+)?(?:instruction|directive|task|rule|objective|goal|command|prompt|order)s?\b
    |\bsystem\s*(?:prompt|message|override|note|notice|update|alert|instruction|directive)
    |^\W{0,4}(?:system|admin|developer|assistant|user)\W{0,3}:
    |\[/?(?:system|inst|admin)|<<?/?\s*(?:sys|system|important|admin|instruction)|<\|
    |\byou\s+are\s+now\b|\bfrom\s+(?:now|this\s+point)\s+on
    |\byour\s+(?:new|only|real|previous|initial|original|hidden|first)\s
    |\b(?:ai|llm|language\s+model|assistant|agent|chatbot|copilot|model|bot)s?\b.{0,60}
        \b(?:must|should|shall|will|has\s+to|need|please|is\s+required|are\s+required|do\s+not|reading
        |processing|summari[sz]ing|instruct)
    |\b(?:when|if|while|before|after|whenever)\b.{0,25}\b(?:summari[sz]|respond|reply|replying|answer
        |process|read|user\s+asks|asked|using\s+this\s+tool|calling|translat)
    |\b(?:do\s+not|don't|never|without)\b.{0,20}\b(?:tell|inform|mention|notify|reveal|alert|telling
        |informing|notifying|mentioning|asking)\b
    |\b(?:send|forward|email|e-mail|post|upload|exfiltrat|transmit|leak|copy)\w*\b.{0,90}
        (?:https?://|@|attacker|evil|webhook|external)
    |\b(?:append|include|insert|embed|add|begin|start|end)\b.{0,30}
        \b(?:response|reply|answer|output|summary|message)
    |\b(?:call|invoke|use|run|execute)\b.{0,15}\b(?:tool|function|\w+_\w+)\b
    |\b(?:repeat|print|reveal|output|show|display|disclose|share|translate|encode)\b.{0,40}
        \b(?:instruction|prompt|above|initial|guidelines|rules|configuration|context)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_FOREIGN = re.compile(r"[^\x00-\x7f].*[^\x00-\x7f].*[^\x00-\x7f].*[^\x00-\x7f]", re.DOTALL)
_MIN_CHARACTERS, _MAX_CHARACTERS, _MIN_WORDS, _MIN_LETTERS = 16, 2400, 4, 0.6


@dataclass(frozen=True, slots=True)
class Source:
    """A package, and where its attacks stand."""

    name: str
    file: str
    sha256: str
    members: str
    under: frozenset[str]
    """Keys, arguments or variables; `a.b` is `b` in a value of `a`."""
    label: str
    """What stands beside a text that is an attack, as `key=value`; empty where all are attacks."""
    is_english: bool
    """Whether a sign is asked for in texts with other letters too."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Source:
        return cls(
            entry["name"],
            entry["file"],
            entry["sha256"],
            entry["members"],
            frozenset(entry["under"]),
            entry.get("label", ""),
            entry.get("english", False),
        )


def found(entries: Iterable[dict[str, Any]], archives: Path, known: Iterable[Text]) -> list[Text]:
    """The attacks of all sources in their order, none twice and none of the known texts."""
    writer, texts = TextWriter.of_seed(19), list[Text]()
    seen = {run for each in known for run in _runs(each.text)}
    for source in map(Source.of, entries):
        for raw in _texts(source, archives / source.file):
            text = _SLOT.sub(lambda _: writer.expand("{act}"), raw.strip())
            runs = set(_runs(text))
            if runs & seen or not _is_prose(text) or not _has_sign(source, text):
                continue
            seen |= runs
            texts.append(Text(f"found {source.name}", True, text))
    return texts


def _runs(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    for at in range(max(1, len(words) - _RUN + 1)):
        yield " ".join(words[at : at + _RUN])


def _is_prose(text: str) -> bool:
    size = len(text)
    if not _MIN_CHARACTERS <= size <= _MAX_CHARACTERS or _OTHER_SLOT.search(text):
        return False
    if _PATTERN.search(text) or sum(letter.isalpha() for letter in text) < _MIN_LETTERS * size:
        return False
    return len(text.split()) >= _MIN_WORDS or not text.isascii()


def _has_sign(source: Source, text: str) -> bool:
    return bool(_SIGN.search(text) or (not source.is_english and _FOREIGN.search(text)))


def _texts(source: Source, path: Path) -> Iterator[str]:
    wanted = re.compile(source.members)
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isfile() or not wanted.search(member.name):
                continue
            stored = archive.extractfile(member)
            text = stored.read().decode("utf-8", "replace") if stored else ""
            if not _MEASURED.search(text):
                yield from _read(source, member.name, text)


def _read(source: Source, name: str, text: str) -> Iterator[str]:
    if name.endswith(".py"):
        yield from _of_code(source, ast.parse(text))
    elif name.endswith((".yaml", ".yml")):
        for part in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            yield from _of_data(source, part)
    elif name.endswith(".jsonl"):
        for line in text.splitlines():
            if line.strip():
                yield from _of_data(source, json.loads(line))
    else:
        yield from _of_data(source, json.loads(text))


def _of_data(source: Source, part: object, under: str = "") -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from _of_data(source, each, under)
    elif isinstance(part, dict):
        is_attack = _is_attack(source, {str(key): str(value) for key, value in part.items()})
        for key, value in part.items():
            if is_attack and not source.under.isdisjoint((str(key), f"{under}.{key}")):
                yield from (each for each in _listed(value) if isinstance(each, str))
            yield from _of_data(source, value, str(key))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def _is_attack(source: Source, beside: dict[str, str]) -> bool:
    key, _, value = source.label.partition("=")
    return not key or beside.get(key) == value


def _of_code(source: Source, tree: ast.AST) -> Iterator[str]:
    """Values of dictionaries, arguments with a name, and variables."""
    for node in ast.walk(tree):
        named: dict[str, ast.expr] = {}
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    named[str(key.value)] = value
        elif isinstance(node, ast.Call):
            named = {str(each.arg): each.value for each in node.keywords}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            named = {target.id: node.value} if isinstance(target, ast.Name) else {}
        beside = {name: ast.unparse(each).strip("'") for name, each in named.items()}
        if _is_attack(source, beside):
            for name in sorted(source.under & named.keys()):
                yield from _constants(named[name])


def _constants(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for each in node.elts:
            yield from _constants(each)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _constants(value)
