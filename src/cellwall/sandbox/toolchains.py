"""Languages that are compiled inside the cell, where the host has the toolchain (LANG-1).

The compiler is untrusted like the program that it makes: both run in the same cell, under the same
limits. Only toolchains in the system's directories are visible inside; one below a home is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_SHELL = "/bin/sh"
# The binary lies in a new directory of /tmp: code may have left links anywhere else. The status is
# that of the compiler if it fails, else that of the program.
_COMPILE_AND_RUN = (
    "folder=$(mktemp -d) || exit 125; "
    '{} && "$folder/main"; status=$?; rm -rf "$folder"; exit $status'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """How to compile and run one language. `$1` is the compiler and `$2` the source."""

    compilers: tuple[str, ...]
    """Names of programs; the first that is found."""
    code_path: str
    script: str
    package: str
    """Debian's package, for the hint."""
    env: tuple[tuple[str, str], ...] = ()


TOOLCHAINS = {
    "c": Toolchain(
        compilers=("cc", "gcc", "clang"),
        code_path="/code/main.c",
        script=_COMPILE_AND_RUN.format('"$1" -O1 -o "$folder/main" "$2" -lm -pthread'),
        package="gcc libc6-dev",
    ),
    "cpp": Toolchain(
        compilers=("c++", "g++", "clang++"),
        code_path="/code/main.cpp",
        script=_COMPILE_AND_RUN.format('"$1" -O1 -o "$folder/main" "$2" -pthread'),
        package="g++",
    ),
    "go": Toolchain(
        compilers=("go",),
        code_path="/code/main.go",
        script=_COMPILE_AND_RUN.format('"$1" build -o "$folder/main" "$2"'),
        package="golang-go",
        # One file without a module, no other version of Go, and caches outside the workspace.
        env=(
            ("GO111MODULE", "off"),
            ("GOTOOLCHAIN", "local"),
            ("GOPATH", "/tmp/.go"),
            ("GOCACHE", "/tmp/.go-build"),
        ),
    ),
    "java": Toolchain(
        compilers=("java",),
        code_path="/code/Main.java",
        # A source file as the argument is compiled in memory (JEP 330). The JVM of a short program
        # spends its time at its start: the quick compiler and collector suit it.
        script='exec "$1" -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$2"',
        package="default-jdk-headless",
    ),
    "rust": Toolchain(
        compilers=("rustc",),
        code_path="/code/main.rs",
        script=_COMPILE_AND_RUN.format('"$1" --edition 2021 -o "$folder/main" "$2"'),
        package="rustc",
    ),
}


def compiler_of(toolchain: Toolchain, find: Callable[[str], str | None]) -> str | None:
    """The compiler on this host; `find` looks for a program in the system's directories."""
    return next(filter(None, map(find, toolchain.compilers)), None)


def command_of(toolchain: Toolchain, compiler: str) -> tuple[str, ...]:
    """The command that compiles and runs the code at `code_path`, its last word."""
    return (_SHELL, "-c", toolchain.script, "sh", compiler, toolchain.code_path)
