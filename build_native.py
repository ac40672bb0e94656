"""Builds what is written in C when Cellwall is installed: `cellwall-cell`, as a program and as a
library, the survey of directories, and the guard's passes over text.

The host's C compiler is used where it can link statically; where there is none, the build asks for
`ziglang`, a compiler that installs like any Python package, so that `pip install` works on a
machine without gcc. A release sets CELLWALL_WHEEL_PLATFORM (`manylinux_2_28_x86_64`): zig then
builds the wheel for that platform, whatever the host has. See docs/adr/0001-native-cell.md and
docs/adr/0013-compiled-passes.md.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fstack-protector-strong", "-s"]
PROGRAM = [*FLAGS, "-static"]
LIBRARY = [*FLAGS, "-shared", "-fPIC", "-fvisibility=hidden"]
# Clang would join a product and a sum, so that the guard's scores had other last digits than GCC's.
PASSES = [*LIBRARY, "-O3", "-ffp-contract=off"]
NOT_IN_LIBRARY = (
    "guest.c", "join.c", "link.c", "main.c", "pids.c", "prefork.c", "reaper.c", "relay.c", "shim.c",
)  # fmt: skip
GLIBC = "2.28"  # what the oldest supported distribution has
ZIG = "ziglang>=0.13,<0.16"
MACHINES = ("x86_64", "aarch64")


def host_compiler() -> str | None:
    """The host's C compiler if it can make a static program with kernel headers."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(
                "#include <linux/openat2.h>\n#include <linux/seccomp.h>\n#include <stdio.h>\n"
                'int main(void) { return puts("") < 0; }\n'
            )
            command = [found, *PROGRAM, "-o", str(Path(folder, "probe")), str(source)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return found
    return None


def compilers() -> tuple[list[str], list[str], str]:
    """How a static program and a library are compiled, and the platform of the wheel."""
    named = os.environ.get("CELLWALL_WHEEL_PLATFORM", "")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target"]
    if named:
        match = re.fullmatch(r"(manylinux_(\d+)_(\d+)|musllinux_1_2)_(x86_64|aarch64)", named)
        if match is None:
            raise RuntimeError(f"CELLWALL_WHEEL_PLATFORM is {named}, which no wheel is built for.")
        libc = f"gnu.{match[2]}.{match[3]}" if match[2] else "musl"
        program = [*zig, f"{match[4]}-linux-musl"]
        return program, [*zig, f"{match[4]}-linux-{libc}"], named
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise RuntimeError("Cellwall needs Linux on x86_64 or aarch64.")
    compiler = host_compiler()
    program = [compiler] if compiler else [*zig, f"{machine}-linux-musl"]
    library = [compiler] if compiler else [*zig, f"{machine}-linux-gnu.{GLIBC}"]
    return program, library, f"linux_{machine}"


def build(command: list[str], sources: list[Path], target: Path) -> None:
    """Written aside and moved over: a running sandbox may hold the old one open."""
    fresh = target.with_suffix(".new")
    subprocess.run([*command, "-o", str(fresh), *map(str, sources)], check=True)
    fresh.chmod(0o755)
    fresh.replace(target)


class NativeBuilder(BuildHookInterface[Any]):
    """Compiles the C sources next to the Python modules that use them."""

    def dependencies(self) -> list[str]:
        is_release = bool(os.environ.get("CELLWALL_WHEEL_PLATFORM"))
        return [ZIG] if is_release or not host_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        program, library, wheel_platform = compilers()
        native = Path(self.root, "src/cellwall/sandbox/linux")
        sources = sorted((native / "cell").glob("*.c"))
        library_sources = [path for path in sources if path.name not in NOT_IN_LIBRARY]
        build([*program, *PROGRAM], sources, native / "cellwall-cell")
        build([*library, *LIBRARY], library_sources, native / "cellwall-cell.so")
        files = Path(self.root, "src/cellwall/sandbox/files")
        build([*library, *LIBRARY], [files / "survey.c"], files / "cellwall-survey.so")
        passes = Path(self.root, "src/cellwall/guard/ctext")
        build([*library, *PASSES], sorted(passes.glob("*.c")), passes / "cellwall-passes.so")
        build_data["tag"] = f"py3-none-{wheel_platform}"
        build_data["pure_python"] = False
