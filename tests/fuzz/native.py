"""The fuzzed C: harnesses, their sources, and how they are built under the sanitisers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).with_name("native")
SOURCES = Path(__file__).resolve().parents[2] / "src" / "cellwall"
CELL = SOURCES / "sandbox" / "linux" / "cell"
PASSES = SOURCES / "guard" / "ctext"
_FUZZED = ["-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer"]
_REPLAYED = ["-std=gnu11", "-O0"]  # compiled with each run of the tests
SANITISERS = "address,undefined"


@dataclass(frozen=True, slots=True)
class NativeTarget:
    """A harness and what is linked to it."""

    name: str
    says: str
    folder: Path
    sources: tuple[Path, ...]
    safe_sources: tuple[Path, ...] = ()
    """Compiled with the calls of native/safe_calls.h."""


TARGETS = {
    each.name: each
    for each in (
        NativeTarget(
            "native-cell",
            "cellwall-cell in C: plans, messages of the supervisor, process lists, journals; under "
            "AddressSanitizer and UBSan",
            CELL,
            (HERE / "cell_fuzz.c", HERE / "safe_calls.c", CELL / "packets.c"),
            (
                *(CELL / name for name in ("build.c", "plan.c", "pids.c", "users.c")),
                *sorted(HERE.glob("include_*.c")),
            ),
        ),
        NativeTarget(
            "native-link",
            "the relay of a virtual machine in C: frames of a hostile guest, in any pieces; under "
            "AddressSanitizer and UBSan",
            CELL,
            (HERE / "link_fuzz.c",),
        ),
        NativeTarget(
            "native-passes",
            "the guard's passes in C: any bytes as text; under AddressSanitizer and UBSan",
            PASSES,
            (HERE / "passes_fuzz.c", *sorted(PASSES.glob("*.c"))),
        ),
        NativeTarget(
            "native-passages",
            "the guard's passages in C: any characters, words, spans and weights; under "
            "AddressSanitizer and UBSan",
            PASSES,
            (
                HERE / "passages_fuzz.c",
                *(
                    PASSES / f"{name}.c"
                    for name in ("splitting", "lexicon", "targets", "forms", "reading", "placing")
                ),
            ),
        ),
        NativeTarget(
            "native-vectors",
            "the guard's vectors of word pieces and its networks in C: any table, weights and text; "
            "under AddressSanitizer and UBSan",
            PASSES,
            (
                HERE / "vectors_fuzz.c",
                *(
                    PASSES / f"{name}.c"
                    for name in (
                        *("vectors", "network", "products", "encoder", "heads"),
                        *("attention_weights", "attention"),
                    )
                ),
            ),
        ),
    )
}


def build(
    name: str,
    folder: Path,
    *,
    compiler: Sequence[str] = ("clang",),
    replays: bool = False,
    sanitisers: str = SANITISERS,
) -> str:
    """The program of a target. With `replays` it runs files and needs no libFuzzer."""
    target = TARGETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / (f"{name}-replay" if replays else name)
    chosen = ",".join(each for each in ("" if replays else "fuzzer", sanitisers) if each)
    stops = [f"-fsanitize={chosen}", "-fno-sanitize-recover=all"]
    flags = [*(_REPLAYED if replays else _FUZZED), *(stops if chosen else ["-fno-sanitize=all"])]
    common = [*compiler, *flags, f"-I{HERE}", f"-I{target.folder}"]
    objects = []
    for source in target.safe_sources:
        made = folder / f"{name}-{source.stem}.o"
        header = HERE / "safe_calls.h"
        subprocess.run([*common, "-include", header, "-c", "-o", made, source], check=True)
        objects.append(made)
    main = [HERE / "replay.c"] if replays else []
    subprocess.run([*common, "-o", program, *target.sources, *objects, *main, "-lm"], check=True)
    return str(program)
