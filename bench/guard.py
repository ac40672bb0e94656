"""The guard: how fast it reads, what it finds, and what it takes for an attack wrongly.

Speed is that of one core, by the clock of the thread, beside zlib at its quickest over the same
text in the same run. The development data is no part of the project: `--data FOLDER`, or
CELLWALL_GUARD_DATA; without it the figures that need it are left out.
"""

from __future__ import annotations

import glob
import json
import random
import statistics
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benign
import injected
import mcp_call
import program_outputs
from evaluation import Evaluation, Judgement, Row
from evaluation import measure as evaluate

from cellwall.guard.detect import Detector
from cellwall.guard.redact import Redactor

_PIECES = 2400
_SIZE = 100_000
_MEGABYTE = 1_000_000
_PLACES = ("start", "middle", "end")


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    detector = Detector.shipped()
    _say("speed", quiet=quiet)
    figures = _speed(detector, max(5, rounds // 4))
    figures |= _redaction(max(5, rounds // 4))
    _say("ordinary texts", quiet=quiet)
    folder = injected.data_folder()
    figures |= _finds(detector, folder)
    if folder is not None:
        _say("secrets", quiet=quiet)
        figures |= _secrets(folder)
    _say("MCP", quiet=quiet)
    return figures | mcp_call.measure(max(rounds * 5, 100))


# --- speed


def _speed(detector: Detector, rounds: int) -> dict[str, Any]:
    texts = {"code": _code(_MEGABYTE), "prose": _prose(_MEGABYTE)}
    for text in texts.values():
        detector.find(text[:_SIZE])  # its rules are compiled at their first use
    figures: dict[str, Any] = {}
    for name, text in texts.items():
        figures |= _speed_of(detector, name, text, rounds)
    return figures | _speed_by_kind(detector, rounds)


def _speed_by_kind(detector: Detector, rounds: int) -> dict[str, Any]:
    """A megabyte of each kind of ordinary text, and all of them together; outputs of programs."""
    pieces: dict[str, list[str]] = {}
    for row in benign.draw(_PIECES):
        pieces.setdefault(str(row["kind"]), []).append(str(row["text"]))
    texts = {kind: _filled(iter(each), _MEGABYTE) for kind, each in pieces.items()}
    clean = _speeds(detector, texts, rounds)
    sizes = {kind: len(text.encode()) / 1e6 for kind, text in texts.items()}
    return {
        "scan_clean_mb_per_s": round(
            sum(sizes.values()) / sum(sizes[kind] / clean[kind] for kind in texts), 1
        ),
        "scan_clean_by_kind_mb_per_s": {kind: round(each, 1) for kind, each in clean.items()},
        "scan_output_by_kind_mb_per_s": {
            kind: round(each, 1)
            for kind, each in _speeds(detector, program_outputs.texts(_MEGABYTE), 3).items()
        },
    }


def _speeds(detector: Detector, texts: dict[str, str], rounds: int) -> dict[str, float]:
    """Megabytes of each text in a second of one core."""
    speeds = {}
    for kind, text in texts.items():
        detector.find(text[:_SIZE])
        cost = statistics.median(
            _cost(lambda text=text: detector.find(text)) for _ in range(rounds)
        )
        speeds[kind] = len(text.encode()) / 1e6 / cost
    return speeds


def _speed_of(detector: Detector, name: str, text: str, rounds: int) -> dict[str, Any]:
    data = text.encode()
    small, whole, peer = [], [], []
    for _ in range(rounds):
        small.append(_cost(lambda: detector.find(text[:_SIZE])))
        whole.append(_cost(lambda: detector.find(text)))
        peer.append(_cost(lambda: zlib.compress(data, 1)))
    scan = statistics.median(whole)
    return {
        f"scan_100kb_{name}_ms_p50": round(statistics.median(small) * 1e3, 2),
        f"scan_{name}_mb_per_s": round(len(data) / scan / 1e6, 1),
        f"scan_{name}_ratio_to_zlib": round(scan / statistics.median(peer), 2),
    }


def _redaction(rounds: int) -> dict[str, Any]:
    redactor, data = Redactor(), _code(_MEGABYTE).encode()
    redactor.redact(data)
    ours, peers = [], []
    for _ in range(rounds):
        ours.append(_cost(lambda: redactor.redact(data)))
        peers.append(_cost(lambda: zlib.compress(data, 1)))
    cost = statistics.median(ours)
    return {
        "redact_mb_per_s": round(len(data) / cost / 1e6, 1),
        "redact_ratio_to_zlib": round(cost / statistics.median(peers), 2),
    }


def _cost(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _code(size: int) -> str:
    paths = sorted(glob.glob(f"{sysconfig.get_path('stdlib')}/*.py"))
    return _filled((Path(path).read_text("utf-8", "replace") for path in paths), size)


def _prose(size: int) -> str:
    rows = (str(row["text"]) for row in benign.draw(400, kinds=("readme", "manual")))
    return _filled(rows, size)


def _filled(texts: Iterator[str], size: int) -> str:
    text = ""
    for each in texts:
        text += each + "\n"
        if len(text) >= size:
            break
    return (text * (size // max(1, len(text)) + 1))[:size]


# --- what it finds


def _finds(detector: Detector, folder: Path | None) -> dict[str, Any]:
    def judge(text: str) -> Judgement:
        found = detector.find(text)
        return Judgement(found.score, any(hit.severity != "low" for hit in found.hits))

    # Other pieces than those of training: another draw.
    ordinary = [
        Row(text=str(row["text"]), is_attack=False, kind=str(row["kind"]))
        for row in benign.draw(_PIECES, seed=101)
    ]
    told = evaluate(ordinary, judge)
    figures: dict[str, Any] = {
        "ordinary_pieces": told.clean,
        "ordinary_false_positive_rate": told.false_positive_rate,
        "ordinary_false_positives": _by_kind(told),
    }
    if folder is None:
        return figures
    told = evaluate(_development(folder), judge)
    return figures | {
        "development_attacks": told.attacks,
        "development_recall": told.recall,
        "development_recall_by_kind": {
            each.kind: round(each.flagged / each.total, 4) for each in told.shares if each.is_attack
        },
        "development_clean": told.clean,
        "development_false_positive_rate": told.false_positive_rate,
        "development_false_positives": _by_kind(told),
    }


def _by_kind(told: Evaluation) -> dict[str, str]:
    return {each.kind: f"{each.flagged}/{each.total}" for each in told.shares if not each.is_attack}


def _development(folder: Path) -> Iterator[Row]:
    """Every attack of the data at each place of a carrier, each carrier clean, and chat."""
    chance = random.Random(17)
    carriers = injected.carriers(folder)
    for carrier in carriers:
        yield Row(text=carrier.text, is_attack=False, kind=carrier.kind)
    for text in injected.chat(folder):
        yield Row(text=text, is_attack=False, kind="chat")
    for attack in injected.attacks(folder):
        family = "asb" if attack.category.startswith("ASB") else "bipia"
        for kind in ("code",) if attack.is_code else ("email", "table"):
            those = [each for each in carriers if each.kind == kind]
            for place in _PLACES:
                pair = injected.poison(chance.choice(those), attack, place, chance)
                yield Row(text=pair.text, is_attack=True, kind=f"{family} in {kind}")


# --- secrets


def _secrets(folder: Path) -> dict[str, Any]:
    redactor = Redactor()
    rows = json.loads((folder / "secrets" / "kingfisher_examples.json").read_text("utf-8"))
    found = {0: [0, 0], 1: [0, 0]}
    for row in rows:
        count = found[int(row["label"])]
        count[0] += bool(redactor.redact_text(str(row["text"])).hits)
        count[1] += 1
    lines = hits = 0
    for row in benign.draw(600, seed=3, kinds=("python", "package", "code")):
        text = str(row["text"])
        lines += text.count("\n") + 1
        hits += len(redactor.redact_text(text).hits)
    return {
        "secrets_recall": round(found[1][0] / found[1][1], 4),
        "secrets_negatives_hit": f"{found[0][0]}/{found[0][1]}",
        "secrets_source_lines": lines,
        "secrets_false_hits_per_10000_lines": round(hits / lines * 10_000, 2),
    }


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"... {text}", file=sys.stderr)
