"""Makes what a virtual machine with a processor of the other kind boots from.

On aarch64 that is x86_64, and the other way round: the C program, the system-call numbers of the
filter and the cold path are run there, not only compiled. Debian's packages are unpacked and not
configured, since their scripts are programs of that processor. Wheels come from PyPI, the C parts
from a cross compiler.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import image
import unpacked

_PACKAGES = ("bash", "bubblewrap", "libstdc++6", "python3")
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fstack-protector-strong", "-s")
_NOT_IN_LIBRARY = (
    "guest.c", "join.c", "link.c", "main.c", "pids.c", "prefork.c", "reaper.c", "relay.c", "shim.c",
)  # fmt: skip
_PLATFORM = "manylinux_2_28"


def machine_and_name() -> tuple[image.Machine, str]:
    """The other processor."""
    name = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    return image.Machine.named(name), name


def build(machine: image.Machine) -> image.Image:
    """Make, or find in the cache, everything but the job."""
    return unpacked.build(machine, "other", _PACKAGES)


def job_disk(target: Path, name: str) -> None:
    """Cellwall as it is in this checkout, built for that processor, and what it imports."""
    folder = target.with_suffix(".d")
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "python"
    version = _install_wheels(python, name)
    ignore = shutil.ignore_patterns("__pycache__", "cellwall-cell", "*.so")
    shutil.copytree(image.ROOT / "src/cellwall", python / "cellwall", ignore=ignore)
    shutil.copytree(image.HERE / "inside", folder, dirs_exist_ok=True)
    _compile(python / "cellwall", name)
    (folder / "python-version").write_text(version)
    (folder / "machine").write_text(name)
    mode = ("--invalidation-mode", "unchecked-hash")
    image.run_program(image.ROOT / ".venv/bin/python", "-m", "compileall", "-q", *mode, python)
    image.make_disk(folder, target, image.JOB_BYTES)
    shutil.rmtree(folder)


def _install_wheels(target: Path, name: str) -> str:
    (site,) = (image.ROOT / ".venv/lib").glob("python3.*/site-packages")
    version = site.parent.name.removeprefix("python")
    uv = image.ROOT / ".tools/uv/bin/uv"
    program = str(uv) if uv.exists() else "uv"
    wanted = image.run_program(
        program, "export", "--locked", "--no-dev", "--no-emit-project", "-q", cwd=image.ROOT
    )
    listed = image.CACHE / "other-requirements.txt"
    listed.write_text(wanted)
    image.run_program(
        program, "pip", "install", "-q", "--target", target,
        "--python-platform", f"{name}-{_PLATFORM}", "--python-version", version,
        "--only-binary", ":all:", "-r", listed,
    )  # fmt: skip
    return version


def _compile(package: Path, name: str) -> None:
    compiler = f"{name}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        debian = "amd64" if name == "x86_64" else "arm64"
        triple = name.replace("_", "-")
        packages = (f"gcc-{triple}-linux-gnu", f"libc6-dev-{debian}-cross")
        image.say(f"installing {', '.join(packages)}")
        image.run_program(
            *image.root_words(), "apt-get", "install", "-qqy", "--no-install-recommends", *packages
        )
    native, passes = package / "sandbox/linux", package / "guard/ctext"
    survey = package / "sandbox/files/survey.c"
    sources = sorted((native / "cell").glob("*.c"))
    shared = ("-shared", "-fPIC", "-fvisibility=hidden")
    library = [path for path in sources if path.name not in _NOT_IN_LIBRARY]
    for options, target, files in (
        (("-static",), native / "cellwall-cell", sources),
        (shared, native / "cellwall-cell.so", library),
        (shared, survey.with_name("cellwall-survey.so"), [survey]),
        (shared, passes / "cellwall-passes.so", sorted(passes.glob("*.c"))),
    ):
        image.run_program(compiler, *_FLAGS, *options, "-o", target, *files)
        os.chmod(target, 0o755)  # a program
