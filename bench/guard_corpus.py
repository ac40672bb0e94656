"""The texts that the guard's classifier is trained on, from pinned sources.

The sources are in bench/guard_data/MANIFEST.toml. Ordinary texts come from source archives of PyPI
and from commits of public repositories, each with its licence and its hash; attacks from data sets
whose licence allows it, and from own grammars. Families and kinds that are measured only are never
read here. Everything is drawn by seeds, so the same sources give the same texts.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from guard_families import Text, load
from guard_found import found
from guard_records import RecordWriter
from guard_texts import TextWriter
from guard_written import Written, written
from injected import attacks as published_attacks
from injected import carriers as published_carriers
from injected import chat, own_attacks

from cellwall.core.errors import BadInput

_MANIFEST = Path(__file__).resolve().parent / "guard_data" / "MANIFEST.toml"
_MIN_CHARACTERS, _MAX_CHARACTERS, _MAX_BYTES = 300, 6000, 400_000
_OF_A_KIND_AN_ARCHIVE = 120
_OF_A_KIND = 1200
_PROSE = (".md", ".rst", ".txt", ".html", ".mdx", ".mdc")
_CONFIG = (".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
_CODE = (".py", ".js", ".ts", ".c", ".sh")
_FOR_AGENTS = re.compile(
    r"(?:^|/)(?:agents|claude|skill|gemini|system|user)\.md$|(?:^|/)(?:agents?|skills?|commands|"
    r"instructions|rules|plugins|patterns|prompts/utility|prompts/educational)/"
)
_OTHER_LANGUAGE = re.compile(
    r"/(?:ar|az|de|el|es|fa|fr|he|it|ja|ko|nl|pt|ru|tr|zh)/|\.(?:ca|de|es|fi|fr|it|jp|kr|pt|ru|tr|zh)\.mdx$"
)
_CHANGES = re.compile(r"change|news|history|release", re.IGNORECASE)
_TRANSLATED = re.compile(r'^msgstr "(.{20,})"$', re.MULTILINE)
_STOP = re.compile(r"[.!?]\s|\n")
_SIZES = (150, 400, 800, 1500, 3000, 5000)
_OWN_ATTACKS = 6000
_CUTS, _SNIPPETS, _RECORDS = 2500, 1000, 1200
_IN_RECORDS = 0.25
"""So many of the texts that are placed stand in a field of a record."""
_REQUESTS = {"direct": 2000, "tools": 1500, "forms": 3500}
"""Attacks of the later grammars; those straight to a model mostly stand alone."""
_ALONE = {"direct": 0.7, "tools": 0.0, "forms": 0.15}
_NEAR_MISSES = {
    "guide": 700,
    "letter": 600,
    "email": 800,
    "role": 700,
    "about": 1100,
    "prompt": 500,
    "story": 1500,
    "plain": 600,
    "plain_forms": 1500,
}
_PLACING_SEEDS = (7, 1007)
"""Of the draws of carriers, records and places."""
_PLACINGS = 2
"""Carriers of each written attack and passage that is no text of its own."""
_ALONE_FROM = 1200
"""Longer attacks of a package stand alone, others in carriers: alone, they teach that requests to a
model are attacks, which costs recall at the same rate of false alarms."""
_WHOLE = ("prompt", "story", "email")
"""These are texts of their own, never a part of a carrier."""
_BEGIN, _END = "\u2983", "\u2984"
"""Around an attack while its carrier is put together; ordinary texts have no such characters, and
they are printed as they are."""
_TRAINED_CHARACTERS = 2500
"""Longer texts are cut, around the attack if there is one: a passage is seldom judged by more."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A pinned source of ordinary texts."""

    file: str
    sha256: str
    licence: str
    only: str
    """What is used: all of it, or `prose`, where the rest has attacks as examples."""


@cache
def manifest() -> Mapping[str, Any]:
    return tomllib.loads(_MANIFEST.read_text("utf-8"))


def archives() -> list[Archive]:
    return [
        Archive(each["file"], each["sha256"], each["licence"], each["only"])
        for each in _entries("archive")
    ]


def check(folder: Path, name: str, sha256: str) -> Path:
    """The path of a source, or `BadInput` if it is not what the manifest names."""
    path = folder / name
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        raise BadInput(f"{name} is not in the folder", hint="See the manifest.") from None
    if found != sha256:
        raise BadInput(f"{name} is not the file of the manifest", hint="Compare the hashes.")
    return path


def carriers(folder: Path) -> list[Text]:
    """Ordinary texts of all archives, at most some of each kind."""
    chance, groups = random.Random(5), dict[str, list[Text]]()
    for archive in archives():
        path = check(folder, archive.file, archive.sha256)
        drawn: dict[str, list[str]] = {}
        for name, text in _members(path):
            kind = _kind(name)
            if kind and (archive.only == "all" or kind in ("documentation", "readme", "agents")):
                drawn.setdefault(kind, []).append(text)
        for kind in sorted(drawn):
            texts = drawn[kind]
            chance.shuffle(texts)
            for text in texts[:_OF_A_KIND_AN_ARCHIVE]:
                groups.setdefault(kind, []).append(
                    Text(f"carrier {kind}", False, _cut(text, chance))
                )
    for kind in sorted(groups):
        chance.shuffle(groups[kind])
    return [text for kind in sorted(groups) for text in groups[kind][:_OF_A_KIND]]


def _members(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path) as archive:
        for member in archive:  # in its own order: a packed archive is read once
            if (
                not member.isfile()
                or not _MIN_CHARACTERS <= member.size <= _MAX_BYTES
                or not _kind(member.name)
            ):
                continue
            stored = archive.extractfile(member)
            data = stored.read() if stored else b""
            if member.name.endswith("seed_tasks.jsonl"):
                for line in data.decode().splitlines():
                    task = json.loads(line)
                    given = task["instances"][0]["input"]
                    yield member.name, f"{task['instruction']}\n{given}".strip()
                continue
            text = data.decode("utf-8", "replace")
            if member.name.endswith(".po"):
                text = "\n".join(_TRANSLATED.findall(text)).replace('\\"', '"')
            if len(text) >= _MIN_CHARACTERS:
                yield member.name, text


def _kind(name: str) -> str:
    low = name.lower()
    base = low.rpartition("/")[2]
    if base == "seed_tasks.jsonl":
        return "prompts"
    if low.endswith(".po"):
        return "translations"
    if re.search(r"\.[1-8]$", base):
        return "manual"
    if low.endswith(_PROSE):
        if _OTHER_LANGUAGE.search(low):
            return "translations"
        if _FOR_AGENTS.search(low) or "prompt" in base:
            return "agents"
        if base.startswith("readme"):
            return "readme"
        return "changes" if _CHANGES.search(base) else "documentation"
    if low.endswith(_CONFIG):
        return "configuration"
    return "code" if low.endswith(_CODE) else ""


def _cut(text: str, chance: random.Random) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    start = chance.randrange(len(text) - _MAX_CHARACTERS)
    return text[start : start + _MAX_CHARACTERS]


class Placing:
    """Puts a text between two sentences of a carrier."""

    def __init__(self, found: Sequence[Text], seed: int) -> None:
        self.chance = random.Random(seed)
        self._by_kind: dict[str, list[str]] = {}
        for each in found:
            self._by_kind.setdefault(each.family, []).append(each.text)
        self._kinds = sorted(self._by_kind)
        self.records = RecordWriter(self.chance)

    def carrier(self) -> str:
        chance = self.chance
        text, size = chance.choice(self._by_kind[chance.choice(self._kinds)]), chance.choice(_SIZES)
        start = 0 if len(text) <= size else chance.randrange(len(text) - size)
        line = text.find("\n", start)
        start = line + 1 if start and 0 <= line < start + 200 else start
        return text[start : start + size]

    def snippet(self) -> str:
        """A few lines."""
        lines = [line for line in self.carrier().split("\n") if line.strip()] or ["ok"]
        count = self.chance.choice((1, 1, 2, 3))
        start = self.chance.randrange(max(1, len(lines) - count))
        return "\n".join(lines[start : start + count])[:300]

    def place(self, family: str, inner: str) -> Text:
        """An attack of this family in a carrier."""
        whole = self.put(f"{_BEGIN}{inner}{_END}")
        start = whole.index(_BEGIN)
        end = whole.index(_END) - len(_BEGIN)
        return Text(family, True, whole.replace(_BEGIN, "").replace(_END, ""), start, end)

    def put(self, inner: str) -> str:
        """A text between two sentences of a carrier, or in a field of a record."""
        chance = self.chance
        if chance.random() < _IN_RECORDS:
            return self.records.write(inner)
        outer = self.carrier()
        stops = [0, len(outer), *(stop.end() for stop in _STOP.finditer(outer))]
        at = chance.choice((0, len(outer), chance.choice(stops), chance.choice(stops)))
        joint = chance.choice(("\n", "\n\n", " ", " ", "\n"))
        whole, roll = f"{outer[:at]}{joint}{inner}{joint}{outer[at:]}", chance.random()
        if roll < 0.08:
            return json.dumps({"id": 3, "result": whole}, ensure_ascii=False)
        if roll < 0.13:
            inside = "".join(f"<p>{part}</p>" for part in (outer[:at], inner, outer[at:]) if part)
            return f"<html><body>{inside}</body></html>"
        return whole


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything that a classifier may be trained on."""

    texts: list[Text]
    """First each text once, then those that are drawn again."""
    count: int
    """How many texts there are, each taken once."""
    again: Mapping[int, int]
    """The number of a text that was placed, and that of the same one in another carrier."""

    @property
    def once(self) -> list[Text]:
        return self.texts[: self.count]


def corpus(folder: Path, archive_folder: Path) -> Corpus:
    """Two draws: what is drawn from carriers, or placed in one, has two of them."""
    texts, other = (_drawn(folder, archive_folder, seed) for seed in _PLACING_SEEDS)
    pairs = enumerate(zip(texts, other, strict=True))
    changed = [number for number, (one, two) in pairs if one.text != two.text]
    again = {number: at for at, number in enumerate(changed, len(texts))}
    return Corpus([*texts, *(other[number] for number in changed)], len(texts), again)


def _drawn(folder: Path, archive_folder: Path, seed: int) -> list[Text]:
    for entry in _entries("data"):
        check(folder, entry["file"], entry["sha256"])
    ordinary = carriers(archive_folder)
    published = [
        Text(f"carrier {each.kind}", False, each.text[:_MAX_CHARACTERS])
        for each in published_carriers(folder)
    ]
    ordinary += random.Random(3).sample(published, min(500, len(published)))
    placing = Placing([each for each in ordinary if each.family != "carrier prompts"], seed)
    writer, chance = TextWriter.of_seed(11), random.Random(13)
    texts = [*ordinary, *(Text("carrier prompts", False, each) for each in chat(folder))]
    # Of the sizes of those with an attack, so that size alone tells nothing.
    texts += [Text("carrier cut", False, placing.carrier()) for _ in range(_CUTS)]
    texts += [Text("carrier snippet", False, placing.snippet()) for _ in range(_SNIPPETS)]
    texts += [Text("carrier record", False, placing.records.write()) for _ in range(_RECORDS)]
    for _ in range(_OWN_ATTACKS):
        attack, is_bare = writer.attack(), chance.random() < 0.1
        texts.append(Text("own bare", True, attack) if is_bare else placing.place("own", attack))
    for form, count in _REQUESTS.items():
        for _ in range(count):
            attack, is_alone = writer.request(form), chance.random() < _ALONE[form]
            family = f"own {form}"
            texts.append(Text(family, True, attack) if is_alone else placing.place(family, attack))
    for each in (*published_attacks(folder), *own_attacks()):
        family = "own requests" if each.category.startswith("own") else "published"
        texts.append(placing.place(family, each.text))
    for kind, count in _NEAR_MISSES.items():
        for _ in range(count):
            several = 0 if kind in _WHOLE else chance.choice((0, 0, 0, 0, 0, 0, 0, 3, 6, 10))
            text = "\n".join(writer.near_miss(kind) for _ in range(several or 1))
            is_alone = several or kind in _WHOLE
            texts.append(Text(f"near {kind}", False, text if is_alone else placing.put(text)))
    texts += [text for each in written() for text in _from_written(each, placing)]
    texts += prompts(archive_folder)
    trained, sets = sets_for("training"), load(folder)
    texts += [each for each in sets if each.family in trained]
    for entry in _entries("found"):
        check(archive_folder, entry["file"], entry["sha256"])
    for each in found(_entries("found"), archive_folder, sets):
        is_alone = len(each.text) > _ALONE_FROM
        texts += (
            [each]
            if is_alone
            else [placing.place(each.family, each.text) for _ in range(_PLACINGS)]
        )
    return [_shortened(each, chance) for each in texts]


def _from_written(each: Written, placing: Placing) -> Iterator[Text]:
    family = each.family
    if each.form != "placed":
        yield Text(family, each.is_attack, each.text, each.start, each.end)
        return
    for _ in range(_PLACINGS):
        if each.is_attack:
            yield placing.place(family, each.text)
        else:
            yield Text(family, False, placing.put(each.text))


def prompts(folder: Path) -> list[Text]:
    """What people ask a model, and answers, from pinned collections; attacks where it says so."""
    chance, texts = random.Random(17), list[Text]()
    for entry in _entries("prompts"):
        path = check(folder, entry["file"], entry["sha256"])
        with tarfile.open(path) as archive:
            stored = archive.extractfile(entry["member"])
            rows = json.loads(stored.read()) if stored else []
        drawn = [" ".join(str(row[name]) for name in entry["fields"]).strip() for row in rows]
        texts += [
            Text(entry["family"], bool(entry["attack"]), text)
            for text in chance.sample(drawn, min(int(entry["most"]), len(drawn)))
        ]
    return texts


def _shortened(each: Text, chance: random.Random) -> Text:
    size = len(each.text)
    if size <= _TRAINED_CHARACTERS:
        return each
    last = size - _TRAINED_CHARACTERS
    start = chance.randrange(last)
    if each.start >= 0:
        start = max(0, min(each.start - chance.randrange(200, 2000), last))
    text = each.text[start : start + _TRAINED_CHARACTERS]
    if each.start < 0:
        return replace(each, text=text)
    return replace(each, text=text, start=each.start - start, end=min(each.end - start, len(text)))


def sets_for(use: str) -> frozenset[str]:
    """The sets of the development data with this use."""
    return frozenset(each["name"] for each in _entries("set") if each["use"] == use)


def _entries(of: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifest()[of]
    return found
