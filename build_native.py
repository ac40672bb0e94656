"""Builds what is written in C when Cellwall is installed: `cellwall-cell`, as a program and as a
library, and the guard's passes over text.

The host's C compiler is used where it can link statically; where there is none, the build asks for
`ziglang`, a compiler that installs like any Python package, so that `pip install` works on a
machine without gcc. See docs/adr/0001-native-cell.md
and docs/adr/0013-compiled-passes.md.
"""

from __future__ import annotations

import os
import platform
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
NOT_IN_LIBRARY = ("join.c", "main.c", "pids.c", "prefork.c", "reaper.c", "shim.c")
GLIBC = "2.28"  # what the oldest supported distribution has
ZIG = "ziglang>=0.13,<0.16"


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


def build(command: list[str], sources: list[Path], target: Path) -> None:
    """Written aside and moved over: a running sandbox may hold the old one open."""
    fresh = target.with_suffix(".new")
    subprocess.run([*command, "-o", str(fresh), *map(str, sources)], check=True)
    fresh.chmod(0o755)
    fresh.replace(target)


class NativeBuilder(BuildHookInterface[Any]):
    """Compiles the C sources next to the Python modules that use them."""

    def dependencies(self) -> list[str]:
        return [] if host_compiler() else [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        machine = platform.machine()
        if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
            raise RuntimeError("Cellwall needs Linux on x86_64 or aarch64.")
        native = Path(self.root, "src/cellwall/sandbox/linux")
        sources = sorted((native / "cell").glob("*.c"))
        library_sources = [path for path in sources if path.name not in NOT_IN_LIBRARY]
        compiler = host_compiler()
        zig = [sys.executable, "-m", "ziglang", "cc", "-target"]
        program = [compiler] if compiler else [*zig, f"{machine}-linux-musl"]
        library = [compiler] if compiler else [*zig, f"{machine}-linux-gnu.{GLIBC}"]
        build([*program, *PROGRAM], sources, native / "cellwall-cell")
        build([*library, *LIBRARY], library_sources, native / "cellwall-cell.so")
        passes = Path(self.root, "src/cellwall/guard/ctext")
        build([*library, *LIBRARY], sorted(passes.glob("*.c")), passes / "cellwall-passes.so")
        build_data["tag"] = f"py3-none-linux_{machine}"
        build_data["pure_python"] = False
