"""`./dev release --dry-run`: everything that a release consists of, in dist/, and checked.

(1) the source archive; (2) a wheel for each platform; (3) the platform of each wheel; (4) the bill
of materials; (5) the wheel of this machine in an empty environment of each Python that is here,
with smoke tests; (6) the C parts of the wheels, for the other machine by qemu; (7) checksums.

What is not committed is refused: a file of the folder would be a file of the release. A step that
this host cannot do fails, and `--no-smoke` is the word for leaving out (5) and (6).

Nothing is uploaded: a person does that with `uv publish dist/*.whl dist/*.tar.gz`.
The same commit gives the same bytes (SOURCE_DATE_EPOCH is the time of the commit).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from release import emulation, smoke
from release.bill_of_materials import check_sbom, write_sbom
from release.wheel_check import problems, source_files

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = (
    "manylinux_2_28_aarch64",
    "manylinux_2_28_x86_64",
    "musllinux_1_2_aarch64",
    "musllinux_1_2_x86_64",
)


def say(text: str) -> None:
    """One line of progress."""
    print(f"release: {text}", flush=True)


def find_uv() -> str:
    """The one of `./dev`, or of the host."""
    own = ROOT / ".tools/uv/bin/uv"
    return str(own) if own.exists() else shutil.which("uv") or sys.exit("release: uv is missing")


def uncommitted_files(root: Path) -> list[str]:
    """What the last commit does not have, ignored files left out; none without git."""
    asked = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=False
    )
    return asked.stdout.splitlines() if asked.returncode == 0 else []


def commit_time() -> int:
    """Of the last commit; without git, that of the change log."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (
        int(asked.stdout) if asked.returncode == 0 else int((ROOT / "CHANGELOG.md").stat().st_mtime)
    )


def build_all(
    uv: str, source: Path, dist: Path, epoch: int, platforms: tuple[str, ...]
) -> list[Path]:
    """The source archive, and from it the wheels: nothing else can get into them."""
    base = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    base["ZIG_GLOBAL_CACHE_DIR"] = str(ROOT / ".tools/zig-cache")
    command = [uv, "build", "--quiet", "--out-dir", str(dist), "--no-create-gitignore"]
    subprocess.run([*command, "--sdist", str(source)], check=True, env=base)
    (archive,) = dist.glob("*.tar.gz")
    say(f"(1) {archive.name}")
    made = [archive]
    for name in platforms:
        start = time.monotonic()
        before = set(dist.glob("*.whl"))
        environment = {**base, "CELLWALL_WHEEL_PLATFORM": name}
        subprocess.run([*command, "--wheel", str(archive)], check=True, env=environment)
        (wheel,) = set(dist.glob("*.whl")) - before
        say(f"(2) {wheel.name} in {time.monotonic() - start:.0f} s")
        made.append(wheel)
    return made


def write_checksums(dist: Path, files: list[Path]) -> None:
    """As sha256sum(1) reads them."""
    lines = (
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(files)
    )
    (dist / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def try_wheels(uv: str, wheels: list[Path]) -> list[str]:
    """(5) Returns what failed."""
    own = next((e for e in wheels if f"manylinux_2_28_{platform.machine()}" in e.name), None)
    pythons, failed = smoke.find_pythons(), []
    if own is None or not pythons:
        return ["no wheel was tried: none is for this machine, or no Python is here"]
    for version in smoke.PYTHONS:
        if version not in pythons:
            say(f"(5) Python {version}: not on this host, not tried")
            continue
        try:
            with smoke.installed(uv, pythons[version], own) as programs:
                count = smoke.run_smoke_tests(programs)
            say(f"(5) Python {version}: {count} smoke tests passed")
        except (smoke.SmokeFailed, subprocess.SubprocessError) as error:
            failed.append(f"Python {version}: {error}")
    return failed


def main() -> int:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(
        prog="./dev release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dry-run", action="store_true", required=True, help="build and check only"
    )
    parser.add_argument("--out", default=str(ROOT / "dist"), help="the folder (default: dist)")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="only these wheels")
    parser.add_argument("--no-smoke", action="store_true", help="without (5) and (6)")
    options = parser.parse_args()
    if uncommitted := uncommitted_files(ROOT):
        shown = ", ".join(each[3:] for each in uncommitted[:5])
        sys.exit(f"release: commit or remove these first, they would be released: {shown}")
    uv, epoch, dist = find_uv(), commit_time(), Path(options.out)
    dist.mkdir(parents=True, exist_ok=True)
    for old in (*dist.glob("cellwall-*"), *dist.glob("SHA256SUMS")):
        old.unlink()
    made = build_all(uv, ROOT, dist, epoch, tuple(options.platform or PLATFORMS))
    wheels = made[1:]
    sources = source_files(str(made[0]))
    failed = [
        f"{each.name}: {why}" for each in wheels for why in problems(str(each), sources=sources)
    ]
    say(f"(3) {len(wheels)} wheels, {len(failed)} problems")
    bill = dist / f"{made[0].name.removesuffix('.tar.gz')}.cdx.json"
    write_sbom(uv, ROOT, bill, epoch=epoch)
    count, unnamed = check_sbom(bill)
    failed += unnamed
    say(f"(4) {bill.name}: {count} components, {len(unnamed)} problems")
    if not options.no_smoke:
        failed += try_wheels(uv, wheels)
        failed += emulation.try_other_machines(wheels, say)
    write_checksums(dist, [*made, bill])
    say(f"(7) SHA256SUMS of {len(made) + 1} files in {dist}")
    for each in failed:
        say(f"FAILED {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
