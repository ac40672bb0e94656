"""Trains the guard's attention network, of all texts and of the texts without some sources.

    python3 bench/guard_attention_train.py --packed FOLDER --out FOLDER

Needs torch and NumPy, and an accelerator unless `--device cpu`; nothing of Cellwall. The folder
comes from guard_attention_texts. Each fold has an encoder (guard_teacher), and students that learn
from it (guard_distill), all by seeds and for so many steps; an accelerator adds up in another order
in each run, so two runs give nearly the same weights, not the same bytes. The last fold leaves out
nothing: its student is what is shipped. Writes `student-FOLD.npz` (of the first seed), `scores.npz`
and `log`.

`scores.npz` has, for the candidates of measured sets, authors and packages, `texts` (numbers of
guard_corpus, followed by the sets), `passages` (numbers in their texts), and the scores of
`teacher-FOLD` and `student-FOLD`, of further seeds `student-FOLD-SEED`.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing as mp
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np
import torch
from guard_distill import Lesson, score
from guard_distill import train as train_student
from guard_encoder import Windows
from guard_packed import Numbers, Packed, read
from guard_teacher import score_all
from guard_teacher import train as train_teacher

STEPS_OF_TEACHER, STEPS_OF_STUDENT = 1950, 14_000
"""About five rounds, and thirty-five."""
_SEEDS_APART = 100
_RATE = 0.01
"""Mean false alarms over the kinds of ordinary texts, in the log."""
_FORK = mp.get_context("fork")
"""The texts are read once, for all processes. The first process never uses the accelerator, which
does not survive a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What all processes share."""

    packed: Packed
    candidates: Numbers
    """Whose scores are kept."""
    out: Path
    scratch: Path
    device: str
    steps_of_teacher: int
    steps_of_student: int
    began: float

    def say(self, *parts: object) -> None:
        line = " ".join([f"[{time.monotonic() - self.began:6.1f}]", *map(str, parts)])
        print(line, flush=True)
        with (self.out / "log").open("a") as log:
            log.write(line + "\n")

    def keep(self, name: str, scores: Numbers) -> None:
        part = self.scratch / f"{name}.part"
        with part.open("wb") as file:
            np.save(file, scores.astype(np.float16))
        part.replace(part.with_suffix(".npy"))  # the first process may look at any time

    def write_scores(self) -> None:
        first = self.packed.first[self.packed.text[self.candidates]]
        numbers = np.array(self.packed.told["numbers"], np.int32)
        np.savez_compressed(
            self.out / "scores.npz",
            texts=numbers[self.packed.text[self.candidates]],
            passages=(self.candidates - first).astype(np.uint16),
            **{file.stem: np.load(file) for file in sorted(self.scratch.glob("*-*.npy"))},
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps-teacher", type=int, default=STEPS_OF_TEACHER)
    parser.add_argument("--steps-student", type=int, default=STEPS_OF_STUDENT)
    parser.add_argument("--folds", default="0,1,2,3,4")
    parser.add_argument("--seeds", type=int, default=1, help="students of each fold")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scratch", type=Path, help="a folder for some gigabytes")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    packed = read(options.packed)
    is_scored = np.zeros(len(packed.families), bool)
    is_scored[packed.scored()] = True
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        run = _Run(
            packed=packed,
            candidates=np.nonzero(packed.is_candidate & is_scored[packed.text])[0],
            out=options.out,
            scratch=Path(scratch),
            device=options.device,
            steps_of_teacher=options.steps_teacher,
            steps_of_student=options.steps_student,
            began=began,
        )
        for file in sorted(options.packed.glob("*.xz")):
            run.say(file.name, hashlib.sha256(file.read_bytes()).hexdigest())
        run.say(len(packed.families), "texts; torch", torch.__version__, "NumPy", np.__version__)
        folds = [int(each) for each in options.folds.split(",")]
        failed = _train(run, folds, options.seeds)
    run.say("failed:", failed) if failed else run.say("done")
    return bool(failed)


def _train(run: _Run, folds: Sequence[int], seeds: int) -> list[str]:
    """All teachers at once, and the students of each when it is done; the names of what failed."""
    running, failed = list[BaseProcess](), list[str]()

    def start(name: str, task: Callable[..., None], *arguments: object) -> None:
        process = _FORK.Process(target=task, args=(run, *arguments), name=name)
        process.start()
        running.append(process)

    for fold in folds:
        start(f"teacher-{fold}", _teach, fold)
    while running:
        ended = wait([each.sentinel for each in running])
        for process in [each for each in running if each.sentinel in ended]:
            process.join()
            running.remove(process)
            kind, fold = process.name.split("-")[:2]
            if process.exitcode:
                failed.append(process.name)
            elif kind == "teacher":
                for seed in range(seeds):
                    start(f"student-{fold}-{seed}", _learn, int(fold), seed)
            run.write_scores()
    return failed


def _prepare(device: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True


def _teach(run: _Run, fold: int) -> None:
    _prepare(run.device)
    data = Windows(run.packed, torch.device(run.device))
    model = train_teacher(run.packed, data, fold, run.steps_of_teacher, run.say)
    hidden, scores = (
        each.cpu().numpy() for each in score_all(model, data, len(run.packed.word_counts))
    )
    np.save(run.scratch / f"hidden{fold}.npy", hidden)
    np.save(run.scratch / f"scores{fold}.npy", scores)
    run.keep(f"teacher-{fold}", scores[run.candidates])
    run.say(f"teacher {fold}:", recalls(run.packed, fold, run.candidates, scores[run.candidates]))


def _learn(run: _Run, fold: int, seed: int) -> None:
    _prepare(run.device)
    packed, name = run.packed, f"student-{fold}-{seed}" if seed else f"student-{fold}"
    lesson = Lesson(
        fold=fold,
        scores=np.load(run.scratch / f"scores{fold}.npy"),
        hidden=np.load(run.scratch / f"hidden{fold}.npy"),
    )
    number = fold + _SEEDS_APART * seed
    model = train_student(packed, lesson, number, run.steps_of_student, run.device, run.say)
    if not seed:
        weights = {key: each.half().cpu().numpy() for key, each in model.state_dict().items()}
        np.savez(run.out / f"{name}.npz", **weights)
    scores = score(packed, model, run.candidates, run.device)
    run.keep(name, scores)
    run.say(f"{name}:", recalls(packed, fold, run.candidates, scores.astype(np.float32)))


def recalls(packed: Packed, fold: int, candidates: Numbers, scores: Numbers) -> dict[str, float]:
    """Of each family that the fold leaves out, at a mean rate of false alarms: what to look at
    while it trains. Not the whole guard, and no reading of the strongest passages alone."""
    strongest: dict[int, float] = dict.fromkeys(packed.scored().tolist(), -np.inf)
    for text, value in zip(packed.text[candidates].tolist(), scores.tolist(), strict=True):
        strongest[text] = max(strongest[text], value)
    groups: dict[str, list[float]] = {}
    kinds: dict[str, list[float]] = {}
    out, families = packed.left_out(fold), packed.families
    for text, value in strongest.items():
        family = families[text]
        if not packed.is_attack[text] and text >= packed.told["trained"]:
            kinds.setdefault(family, []).append(value)
        elif family in out or not out:
            groups.setdefault(family, []).append(value)
    weighed = sorted(((v, 1 / len(own)) for own in kinds.values() for v in own), reverse=True)
    used, limit = 0.0, -np.inf
    for value, weight in weighed:
        used += weight
        if used > _RATE * len(kinds):
            limit = value
            break
    shares = {name: np.mean(np.array(own) > limit) for name, own in sorted(groups.items())}
    return {"limit": round(limit, 2)} | {n: round(float(s), 2) for n, s in shares.items()}


if __name__ == "__main__":
    sys.exit(main())
