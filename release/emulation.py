"""The C parts of each wheel, run: on this machine, or by qemu for the other one.

`cellwall-cell` starts, both libraries load and answer, and the kept inputs of the fuzzers run
through the same sources compiled for that machine. No Python of the other machine is needed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from release.wheel_check import LIBRARIES, PROGRAM

ROOT = Path(__file__).resolve().parents[1]
_USAGE_EXIT = 125
_WITHIN_S = 300
_LOADERS = {
    ("manylinux", "x86_64"): ("/usr/x86_64-linux-gnu", "lib/ld-linux-x86-64.so.2"),
    ("manylinux", "aarch64"): ("/usr/aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1"),
    ("musllinux", "x86_64"): ("/", "lib/ld-musl-x86_64.so.1"),
    ("musllinux", "aarch64"): ("/", "lib/ld-musl-aarch64.so.1"),
}
"""Where loader and libc of a platform are: for the other machine, Debian's cross packages."""


def try_other_machines(wheels: list[Path], say: Callable[[str], None]) -> list[str]:
    """(6) Returns what failed; a wheel that cannot be tried has failed."""
    failed: list[str] = []
    replayed = {platform.machine()}  # here the ordinary tests do it, under the sanitisers
    for wheel in wheels:
        kind, machine = _platform_of(wheel)
        start = _start(machine)
        if start is None:
            failed.append(f"{wheel.name}: not tried, qemu-{machine}-static is missing")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="cellwall-release-") as folder:
                place = Path(folder)
                done = [*_try_program(wheel, place, start)]
                tried = _try_libraries(place, kind, machine, start)
                done += [] if tried is None else tried
                if machine not in replayed:
                    replayed.add(machine)
                    done += _replay(place, machine, start)
        except subprocess.SubprocessError as error:
            failed.append(f"{wheel.name}: {error}")
            continue
        failed += [f"{wheel.name}: {each}" for each in done]
        loaded = "its libraries need a libc that is not here" if tried is None else "libraries load"
        say(f"(6) {wheel.name}: the program starts, {loaded}; {len(done)} problems")
    return failed


def _platform_of(wheel: Path) -> tuple[str, str]:
    name = wheel.stem
    return ("musllinux" if "musllinux" in name else "manylinux"), (
        "x86_64" if name.endswith("x86_64") else "aarch64"
    )


def _start(machine: str) -> list[str] | None:
    if machine == platform.machine():
        return []
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    return None if emulator is None else [emulator]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=_WITHIN_S
    )


def _try_program(wheel: Path, place: Path, start: list[str]) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        for name in (PROGRAM, *LIBRARIES):
            archive.extract(name, place)
    program = place / PROGRAM
    program.chmod(0o755)
    done = _run([*start, str(program)])
    if done.returncode != _USAGE_EXIT or "started by Cellwall" not in done.stderr:
        yield f"cellwall-cell: exit {done.returncode}: {done.stderr[-300:]}"


def _try_libraries(place: Path, kind: str, machine: str, start: list[str]) -> list[str] | None:
    """None where the machine's libc is not here."""
    prefix, loader = _LOADERS[kind, machine]
    is_own = machine == platform.machine() and kind == "manylinux"
    if not is_own and not Path(prefix, loader).exists():
        return None
    libc = "gnu.2.28" if kind == "manylinux" else "musl"
    probe = place / "probe"
    _compile(machine, libc, ["-o", str(probe), str(ROOT / "release/probe.c"), "-ldl", "-dynamic"])
    where = ["-L", prefix] if start and prefix != "/" else []
    done = _run([*start, *where, str(probe), *(str(place / each) for each in reversed(LIBRARIES))])
    return (
        []
        if done.stdout == "1 0 0 1\n"
        else [f"libraries: exit {done.returncode}: {done.stdout}{done.stderr[-300:]}"]
    )


def _replay(place: Path, machine: str, start: list[str]) -> list[str]:
    sys.path.insert(0, str(ROOT / "tests"))
    from fuzz import corpus, native  # noqa: PLC0415  # of the tests

    failed = []
    for name in native.TARGETS:
        inputs = []
        for number, data in enumerate(corpus.read(name)):
            path = place / f"{name}-{number}"
            path.write_bytes(data)
            inputs.append(str(path))
        compiler = [*_zig(), "-target", f"{machine}-linux-musl", "-static"]
        program = native.build(name, place, compiler=compiler, replays=True, sanitisers="")
        done = _run([*start, program, *inputs])
        if done.returncode != 0:
            failed.append(f"{name}: exit {done.returncode}: {done.stderr[-300:]}")
    return failed


def _compile(machine: str, libc: str, arguments: list[str]) -> None:
    subprocess.run([*_zig(), "-target", f"{machine}-linux-{libc}", "-O1", *arguments], check=True)


def _zig() -> list[str]:
    """The compiler of the wheels; `./dev release` installs the package."""
    return [sys.executable, "-m", "ziglang", "cc"]
