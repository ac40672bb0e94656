"""Trains the guard's classifier of passages, and measures it on families left out of training.

    .venv/bin/python bench/guard_train.py --data FOLDER --carriers FILE.jsonl
    .venv/bin/python bench/guard_train.py --data FOLDER --carriers FILE.jsonl --write

Needs PyTorch; a processor is enough (some minutes on 16 cores). FOLDER is the development data.
FILE.jsonl has ordinary texts, one {"set": "...", "text": "..."} a line (bench/benign.py draws
some); attacks of bench/guard_data are put into these. Prints recall at fixed rates of false alarms;
`--plot` draws the curve; `--write` trains on everything, writes the weights and prints their hash.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from guard_families import RATES, Text, folds, load, operating_point, render
from guard_texts import TextWriter
from injected import attacks as published_attacks
from injected import own_attacks

from cellwall.guard.detect.passages.features import candidates, describe, read

_WEIGHTS = Path(__file__).parents[1] / "src/cellwall/guard/detect/passages/weights.json"
_MAX_CHARACTERS, _MAX_CANDIDATES, _MIN_COUNT, _MIN_WEIGHT = 30_000, 160, 12, 0.004
_OWN_ATTACKS = 6000
_NEAR_MISSES = {
    "guide": 700,
    "letter": 600,
    "role": 700,
    "about": 900,
    "prompt": 400,
    "plain": 500,
}
_SIZES = (150, 400, 800, 1500, 3000, 5000)
_EPOCHS, _BATCH, _RATE, _DECAY, _PER_SET = 3, 64, 0.008, 0.3, 500
_WEIGHT_OF_CLEAN, _PASSAGES_A_TEXT = 2.0, 30
_LIMITS = {"weak": 0.8, "likely": 1.46, "certain": 3.5}
"""Scores with 2.7 %, 1 % and 0.2 % false alarms on kinds and folds that were left out."""
_STOP = re.compile(r"[.!?]\s|\n")

Rows = list[list[list[int]]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--carriers", type=Path, required=True)
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    measured = load(options.data)
    carriers = [json.loads(line) for line in options.carriers.read_text("utf-8").splitlines()]
    texts = [*measured, *_written(options.data, carriers)]
    with ProcessPoolExecutor() as pool:
        named = list(pool.map(_describe, [text.text for text in texts], chunksize=60))
    names, rows = _numbered(named)
    if options.write:
        _write(names, *_train(texts, rows, len(names)))
        return 0
    scores = [0.0] * len(measured)
    for left_out in folds(measured):
        kept = [number for number, text in enumerate(texts) if text.family not in left_out]
        weights, base = _train([texts[n] for n in kept], [rows[n] for n in kept], len(names))
        for number, text in enumerate(measured):
            if text.family in left_out:
                scores[number] = max(
                    (base + sum(weights[i] for i in row) for row in rows[number]), default=-12.0
                )
    for rate in RATES:
        print(render(operating_point(measured, scores, rate)), "\n")
    if options.plot:
        draw(measured, scores, options.plot)
    return 0


def draw(texts: Sequence[Text], scores: Sequence[float], path: str) -> None:
    """The curve of mean recall over mean false alarms."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # slow to load, for --plot alone

    rates = [step / 1000 for step in range(1, 101)]
    points = [operating_point(texts, scores, rate) for rate in rates]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([100 * p.false_alarms for p in points], [100 * p.recall for p in points])
    axes.set(
        xlabel="mean false alarms over kinds of ordinary texts (%)",
        ylabel="mean recall over unseen families (%)",
        ylim=(0, 100),
    )
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path)


def _written(folder: Path, carriers: Sequence[dict[str, str]]) -> list[Text]:
    """Own attacks and near misses in carriers, requests of BIPIA and ASB in carriers, carriers."""
    chance, writer = random.Random(7), TextWriter.of_seed(11)

    def cut() -> str:
        text, size = chance.choice(carriers)["text"], chance.choice(_SIZES)
        start = 0 if len(text) <= size else chance.randrange(len(text) - size)
        return text[start : start + size]

    def place(inner: str) -> str:
        outer = cut()
        at = chance.choice([0, len(outer), *(stop.end() for stop in _STOP.finditer(outer))])
        joint = chance.choice(("\n", "\n\n", " "))
        return f"{outer[:at]}{joint}{inner}{joint}{outer[at:]}"

    found = [Text("own", True, place(writer.attack())) for _ in range(_OWN_ATTACKS)]
    for attack in (*published_attacks(folder), *own_attacks()):
        family = "own" if attack.category.startswith("own") else "published"
        found.append(Text(family, True, place(attack.text)))
    for kind, count in _NEAR_MISSES.items():
        for _ in range(count):
            text = writer.near_miss(kind)
            found.append(Text(f"near {kind}", False, text if kind == "prompt" else place(text)))
    found += [Text(each["set"], False, each["text"][:6000]) for each in carriers]
    return found


def _describe(text: str) -> list[list[str]]:
    passages, surroundings = read(text[:_MAX_CHARACTERS])
    chosen = candidates(passages)[:_MAX_CANDIDATES]
    return [sorted(set(describe(passages, number, surroundings))) for number in chosen]


def _numbered(named: Sequence[Sequence[Sequence[str]]]) -> tuple[list[str], Rows]:
    counts: dict[str, int] = {}
    for text in named:
        for row in text:
            for name in row:
                counts[name] = counts.get(name, 0) + 1
    names = sorted(name for name, count in counts.items() if count >= _MIN_COUNT)
    at = {name: number for number, name in enumerate(names)}
    return names, [[[at[name] for name in row if name in at] for row in text] for text in named]


def _train(texts: Sequence[Text], rows: Rows, features: int) -> tuple[list[float], float]:
    """Logistic regression on the strongest passage of each text; passages of ordinary texts are all
    ordinary."""
    import torch  # noqa: PLC0415  # type: ignore[import-not-found,unused-ignore]  # for training alone

    torch.manual_seed(0)
    chance = random.Random(0)
    bag: Any = torch.nn.EmbeddingBag(features + 1, 1, mode="sum")
    bag.weight.data.zero_()
    base: Any = torch.nn.Parameter(torch.full((1,), -2.0))
    optimiser = torch.optim.AdamW([bag.weight, base], lr=_RATE, weight_decay=_DECAY)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    groups: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        groups.setdefault(text.family, []).append(number)
    most = {"own": 5 * _PER_SET}
    step = 0
    for _ in range(_EPOCHS):
        order = [
            number
            for family, own in groups.items()
            for number in chance.sample(own, min(len(own), most.get(family, _PER_SET)))
        ]
        chance.shuffle(order)
        for at in range(0, len(order), _BATCH):
            step += 1
            left = 1 - step / (_EPOCHS * (len(order) // _BATCH + 1))
            optimiser.param_groups[0]["lr"] = _RATE * max(0.03, left)
            batch = order[at : at + _BATCH]
            ids: list[int] = []
            offsets: list[int] = []
            owners: list[int] = []
            for owner, number in enumerate(batch):
                own = rows[number]
                for row in own if len(own) <= _PASSAGES_A_TEXT else chance.sample(own, 30):
                    offsets.append(len(ids))
                    owners.append(owner)
                    ids += row
            if not offsets:
                continue
            scores = bag(torch.tensor(ids), torch.tensor(offsets)).squeeze(1) + base
            owner_of = torch.tensor(owners)
            labels = torch.tensor([float(texts[number].is_attack) for number in batch])
            best = torch.full((len(batch),), -12.0).scatter_reduce(0, owner_of, scores, "amax")
            weights = torch.where(labels > 0, 1.0, _WEIGHT_OF_CLEAN)
            loss = (loss_of(best, labels * 0.98 + 0.01, reduction="none") * weights).mean()
            is_clean = labels[owner_of] == 0
            if is_clean.any():
                clean = scores[is_clean]
                loss = loss + 0.5 * loss_of(clean, torch.zeros_like(clean))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return [float(each[0]) for each in bag.weight.data], float(base.data[0])


def _write(names: Sequence[str], weights: Sequence[float], base: float) -> None:
    kept = {
        name: round(weight, 3)
        for name, weight in zip(names, weights, strict=False)
        if abs(weight) >= _MIN_WEIGHT
    }
    about = "Weights of a linear model by feature; made by bench/guard_train.py."
    lexicon = hashlib.sha256((_WEIGHTS.parent / "lexicon.toml").read_bytes()).hexdigest()
    told = {"about": about, "data": "bench/guard_data/MANIFEST.toml", "base": round(base, 3)}
    told["lexicon_sha256"] = lexicon
    data = json.dumps({**told, **_LIMITS, "features": kept}, ensure_ascii=False, indent=0)
    _WEIGHTS.write_text(data + "\n", "utf-8")
    print(hashlib.sha256(_WEIGHTS.read_bytes()).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
