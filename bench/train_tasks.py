"""Trains and judges the model of src/cellwall/guard/detect/tasks; `--write` stores its weights.

    .venv/bin/python bench/train_tasks.py [--data FOLDER] [--write]

Judged on what it has not seen: in each of five folds the categories of attacks, the carriers and
the ordinary files of the fold are left out of training, all three at once. The threshold comes from
these folds too. Then whole families are left out: a type of carrier, one data set, own examples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import benign
import injected
import numpy as np

from cellwall.guard.detect.tasks import MIN_CARRIER_CHARACTERS
from cellwall.guard.detect.tasks.features import Features
from cellwall.guard.detect.tasks.finder import find_candidates
from cellwall.guard.normalise import unfold

_FOLDS = 5
_FALSE_ALARMS = 0.002
_WEIGHTS = Path(__file__).resolve().parents[1] / "src/cellwall/guard/detect/tasks/weights.json"
_PLACES = ("start", "middle", "end")


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence of a document, and whether a stranger put it there."""

    features: Features
    early: Features
    """Those that are known before its surroundings are looked at."""
    is_attack: bool


@dataclass(frozen=True, slots=True)
class Document:
    examples: tuple[Example, ...]
    is_attack: bool
    family: str
    """"bipia", "asb", "own" for attacks; else empty."""
    category: str
    kind: str
    attack_fold: int
    carrier_fold: int
    is_for_test: bool


def fold_of(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace")) % _FOLDS


def examples_of(text: str, span: tuple[int, int] | None = None) -> tuple[Example, ...]:
    view = unfold(text).views[0]
    here = find_candidates(view)
    found = []
    for number, sentence in here.sentences():
        if here.outside(number) < MIN_CARRIER_CHARACTERS:
            continue
        place = here.found[number]
        start, end = view.span(place.start, place.end)
        is_attack = span is not None and start < span[1] and end > span[0]
        alone = {f"w {word}": 1.0 for word in sentence.words} | sentence.features
        if sentence.verb:
            alone[f"v {sentence.verb}"] = 1.0
        early = alone | here.company(number)
        every = early | here.surroundings(number, sentence)
        found.append(Example(every, early, is_attack))
    return tuple(found)


def clean_documents(folder: Path, count: int, prose: list[injected.Carrier]) -> list[Document]:
    def of(text: str, kind: str, group: str) -> Document:
        fold = fold_of(group)
        return Document(examples_of(text), False, "", "", kind, fold, fold, True)

    found = [of(c.text, c.kind, c.text) for c in injected.carriers(folder)]
    found += [of(c.text, c.kind, c.text) for c in prose]
    found += [
        of(dressed.text, dressed.kind, c.text)
        for c in injected.carriers(folder)
        for dressed in (injected.as_json(c), injected.as_html(c))
        if fold_of(dressed.kind + c.text) == 0
    ]
    found += [of(text, "chat", text) for text in injected.chat(folder)]
    found += [
        of(str(row["text"]), str(row["kind"]), str(row["group"])) for row in benign.draw(count)
    ]
    return found


def poisoned_documents(folder: Path, count: int, prose: list[injected.Carrier]) -> list[Document]:
    chance = random.Random(5)
    by_kind: dict[str, list[injected.Carrier]] = defaultdict(list)
    for carrier in injected.carriers(folder):
        by_kind[carrier.kind].append(carrier)
    ordinary = [
        (injected.Carrier(str(row["text"]), str(row["kind"])), fold_of(str(row["group"])))
        for row in benign.draw(count, seed=23)
    ]
    ordinary += [(carrier, fold_of(carrier.text)) for carrier in prose]
    found = []
    for attack in [*injected.attacks(folder), *injected.own_attacks()]:
        family = "own" if attack.category.startswith("own") else "bipia"
        family = "asb" if attack.category.startswith("ASB") else family
        fold = fold_of(attack.category)
        for number in range({"bipia": 16, "asb": 3, "own": 8}[family]):
            kinds = ("code",) if attack.is_code else ("email", "table", "email", "table", "code")
            if number % 4 == 3:
                carrier, carrier_fold = chance.choice(ordinary)
            else:
                carrier = chance.choice(by_kind[kinds[number % len(kinds)]])
                carrier_fold = fold_of(carrier.text)
            joint = "\n" if chance.random() < 0.75 else " "
            place, dress = chance.choice(_PLACES), chance.random()
            if dress < 0.12:
                pair = injected.poison_json(carrier, attack, place, chance)
            elif dress < 0.2:
                pair = injected.poison_html(carrier, attack, place, chance)
            else:
                pair = injected.poison(carrier, attack, place, chance, joint)
            found.append(_document(pair, family, fold, carrier_fold, is_for_test=False))
        for kind in ("code",) if attack.is_code else ("email", "table"):
            for place in _PLACES:
                here = [each for each in by_kind[kind] if fold_of(each.text) == fold]
                pair = injected.poison(chance.choice(here), attack, place, chance)
                found.append(_document(pair, family, fold, fold, is_for_test=True))
    return found


def _document(
    pair: injected.Poisoned, family: str, fold: int, carrier_fold: int, *, is_for_test: bool
) -> Document:
    examples = examples_of(pair.text, (pair.start, pair.end))
    return Document(
        examples, True, family, pair.category, pair.kind, fold, carrier_fold, is_for_test
    )


# --- training


def _is_word(name: str) -> bool:
    return name.startswith(("w ", "v "))


def train(documents: Iterable[Document], *, with_words: bool = True) -> dict[str, float]:
    """Logistic regression, both classes weighing the same. Words weigh with more restraint than
    features, and only those that several categories share, or that ordinary texts use often."""
    rows: list[Features] = []
    labels: list[float] = []
    categories: dict[str, set[str]] = defaultdict(set)
    ordinary: Counter[str] = Counter()
    for document in documents:
        for example in document.examples:
            rows.append(example.features)
            labels.append(float(example.is_attack))
            for name in filter(_is_word, example.features):
                if example.is_attack:
                    categories[name].add(document.category)
                else:
                    ordinary[name] += 1
    names = sorted(
        {
            name
            for row in rows
            for name in row
            if not _is_word(name)
            or (with_words and (len(categories[name]) >= 3 or ordinary[name] >= 25))
        }
    )
    number = {name: at for at, name in enumerate(names)}
    cells = [
        (at, number[name], value)
        for at, row in enumerate(rows)
        for name, value in row.items()
        if value and name in number
    ]
    row_of, column_of, values = (np.array(each) for each in zip(*cells, strict=True))
    restraint = np.array([0.0 if n == "one" else 3e-4 if _is_word(n) else 2e-5 for n in names])
    y = np.array(labels)
    share = np.where(y == 1, 0.5 / max(1, y.sum()), 0.5 / max(1, (1 - y).sum()))
    weights = _fitted(row_of, column_of, values, y, share, restraint)
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def _fitted(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    y: np.ndarray,
    share: np.ndarray,
    restraint: np.ndarray,
    steps: int = 250,
) -> np.ndarray:
    """By Adam over all rows at once."""
    size = len(restraint)
    weights, first, second = np.zeros(size), np.zeros(size), np.zeros(size)
    for step in range(1, steps + 1):
        told = 1 / (1 + np.exp(-np.bincount(rows, values * weights[columns], len(y))))
        slope = np.bincount(columns, values * ((told - y) * share)[rows], size)
        slope += restraint * weights
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        pace = 0.15 * (1 - 0.9 * step / steps)
        weights -= pace * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return weights


def score(document: Document, weights: dict[str, float]) -> float:
    """Of its most suspicious sentence."""
    return max((_sum(each.features, weights) for each in document.examples), default=-60.0)


def _sum(features: Features, weights: dict[str, float]) -> float:
    return sum(weights.get(name, 0.0) * value for name, value in features.items())


# --- judging


def threshold_at(clean: Sequence[float], share: float) -> float:
    """What so large a share of clean documents exceeds."""
    ordered = sorted(clean, reverse=True)
    return ordered[int(len(ordered) * share)] + 1e-6


def five_folds(clean: list[Document], poisoned: list[Document]) -> float:
    """Prints what unseen attacks in unseen carriers among unseen files give; the threshold."""
    told: list[tuple[float, Document]] = []
    for fold in range(_FOLDS):
        seen = [
            each
            for each in (*clean, *poisoned)
            if each.carrier_fold != fold and each.attack_fold != fold
        ]
        weights = train(seen)
        told += [
            (score(each, weights), each)
            for each in (*clean, *poisoned)
            if each.is_for_test and each.carrier_fold == fold and each.attack_fold == fold
        ]
    quiet = [value for value, each in told if not each.is_attack]
    print(f"five folds: {len(quiet)} clean, {len(told) - len(quiet)} with a request")
    for share in (0.001, _FALSE_ALARMS, 0.003, 0.005, 0.01, 0.02, 0.05):
        least = threshold_at(quiet, share)
        print(f"  false alarms {share:5.1%}  threshold {least:5.2f} ", _recalls(told, least))
    least = threshold_at(quiet, _FALSE_ALARMS)
    _show_rest(told, least)
    return least


def _recalls(told: list[tuple[float, Document]], least: float) -> str:
    by: dict[str, list[bool]] = defaultdict(list)
    for value, each in told:
        if each.is_attack:
            by[each.family].append(value >= least)
            by[each.kind].append(value >= least)
    return "  ".join(f"{name} {sum(hits) / len(hits):.1%}" for name, hits in sorted(by.items()))


def _show_rest(told: list[tuple[float, Document]], least: float) -> None:
    alarms = Counter(each.kind for value, each in told if not each.is_attack and value >= least)
    sizes = Counter(each.kind for _, each in told if not each.is_attack)
    print("  false alarms by kind:", {kind: f"{alarms[kind]}/{sizes[kind]}" for kind in sizes})
    misses = Counter(each.category for value, each in told if each.is_attack and value < least)
    print("  misses by category:", dict(misses.most_common(12)))


def left_out(
    name: str,
    clean: list[Document],
    poisoned: list[Document],
    is_out: Callable[[Document], bool],
    is_asked: Callable[[Document], bool],
) -> None:
    """A whole family unknown to training; ordinary files split in two, for the threshold."""
    half = [each for each in clean if each.carrier_fold % 2 and not is_out(each)]
    rest = [each for each in clean if not each.carrier_fold % 2]
    weights = train([*half, *(each for each in poisoned if not is_out(each))])
    least = threshold_at([score(each, weights) for each in rest], 0.005)
    asked = [each for each in poisoned if each.is_for_test and is_asked(each)]
    hits = sum(score(each, weights) >= least for each in asked)
    print(f"  {name:36} {hits / len(asked):6.1%} of {len(asked)}", flush=True)


def families(clean: list[Document], poisoned: list[Document]) -> None:
    print("left out of training, found at 0.5 % false alarms:")
    for kind in ("email", "table", "code"):
        left_out(
            f"carriers: {kind}",
            clean,
            poisoned,
            lambda each, kind=kind: each.kind == kind,
            lambda each, kind=kind: each.kind == kind,
        )
    for family in ("bipia", "asb", "own"):
        left_out(
            f"attacks: {family}",
            clean,
            poisoned,
            lambda each, family=family: each.family == family,
            lambda each, family=family: each.family == family,
        )
    for category in sorted({each.category for each in poisoned if each.family == "bipia"}):
        left_out(
            f"own examples, and {category}",
            clean,
            poisoned,
            lambda each, category=category: each.family == "own" or each.category == category,
            lambda each, category=category: each.category == category,
        )


def write(weights: dict[str, float], documents: Iterable[Document], least: float) -> None:
    kept = {name: round(weight, 3) for name, weight in weights.items() if abs(weight) >= 0.03}
    early = sorted(
        max(_sum(each.early, kept) for each in document.examples if each.is_attack)
        for document in documents
        if any(each.is_attack for each in document.examples)
    )
    told = {
        "about": "Weights of a linear model by feature; made by bench/train_tasks.py.",
        "trained": datetime.now(UTC).date().isoformat(),
        "data": [
            "BIPIA training split: attacks, carriers (MIT)",
            "Agent Security Bench attack tools (MIT)",
            "NotInject one (MIT)",
            "books of Project Gutenberg (public domain)",
            "bench/tasks_examples.toml",
            "files of a Debian machine, drawn by bench/benign.py",
        ],
        "threshold": round(least, 3),
        "gate": round(early[len(early) // 300], 3),
        "features": {name: value for name, value in kept.items() if not _is_word(name)},
        "verbs": {name[2:]: value for name, value in kept.items() if name.startswith("v ")},
        "words": {name[2:]: value for name, value in kept.items() if name.startswith("w ")},
    }
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    _WEIGHTS.write_text(text, "utf-8")
    finder, digest = _WEIGHTS.with_name("finder.py"), hashlib.sha256(text.encode()).hexdigest()
    place = r'(?<=WEIGHTS_SHA256 = ")\w*'
    finder.write_text(re.sub(place, digest, finder.read_text("utf-8")), "utf-8")
    print(f"{len(kept)} weights, gate {told['gate']}, threshold {told['threshold']}")


def _prose(folder: str | None) -> list[injected.Carrier]:
    """Pages of books: few data sets have the questions and orders that people tell each other."""
    pages = []
    for path in sorted(Path(folder).glob("*.txt")) if folder else ():
        text = path.read_text("utf-8", "replace")
        pages += [text[at : at + 3000] for at in range(0, len(text), 3000)]
    return [injected.Carrier(page, "prose") for page in pages]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the development data")
    parser.add_argument("--prose", help="folder with books as text files, in the public domain")
    parser.add_argument("--count", type=int, default=6000, help="ordinary pieces")
    parser.add_argument("--write", action="store_true", help="store the weights")
    parser.add_argument("--families", action="store_true", help="also leave out whole families")
    options = parser.parse_args()
    if options.data:
        os.environ["CELLWALL_GUARD_DATA"] = options.data
    folder = injected.data_folder()
    if folder is None:
        sys.exit("name the folder with the development data: --data FOLDER")
    prose = _prose(options.prose)
    clean = clean_documents(folder, options.count, prose)
    poisoned = poisoned_documents(folder, options.count // 3, prose)
    least = five_folds(clean, poisoned)
    if options.families:
        families(clean, poisoned)
    if options.write:
        write(train([*clean, *poisoned]), poisoned, least)


if __name__ == "__main__":
    main()
