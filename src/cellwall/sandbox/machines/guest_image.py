"""What a machine boots from: a kernel of the host's distribution, and an initramfs made here.

The initramfs holds `cellwall-cell` as its only program, and the few drivers that the machine's
devices need. It holds no data of a run, so that all machines share it.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cellwall.core.errors import LayerMissing

# What a machine cannot do without: bus, link to the relay, shared files. Random numbers come from
# the host where the driver is there.
_NEEDED = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p")
_USEFUL = ("virtio_rng",)
_SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")
_MAX_MODULE_BYTES = 64 * 1024 * 1024
_PACKED_BELOW = ("kernel", "updates")
_DIRECTORY, _FILE = 0o040755, 0o100644
_PROGRAM = 0o100755
CELL_IN_MACHINE = "/cell"


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """A kernel image of the host, and the directory of its modules."""

    path: str
    modules: str

    @property
    def release(self) -> str:
        return os.path.basename(self.modules)


def find_kernel(configured: str | None, *, boot: str = "/boot") -> GuestKernel:
    """The configured kernel, or the newest of /boot whose modules are there."""
    if configured is not None:
        found = _kernel_at(configured)
        if found is None:
            raise _no_kernel(f"sandbox.machine_kernel names no kernel with modules: {configured}")
        return found
    names = [name for name in _listed(boot) if name.startswith("vmlinuz-")]
    for name in sorted(names, key=_version, reverse=True):
        found = _kernel_at(os.path.join(boot, name))
        if found is not None:
            return found
    raise _no_kernel("this host has no Linux kernel for a virtual machine in /boot")


def _kernel_at(path: str) -> GuestKernel | None:
    """The modules of PREFIX/boot/vmlinuz-RELEASE lie in PREFIX/lib/modules/RELEASE."""
    release = os.path.basename(path).removeprefix("vmlinuz-")
    prefix = os.path.dirname(os.path.dirname(path))
    for place in ("lib/modules", "usr/lib/modules"):
        modules = os.path.join(prefix, place, release)
        if os.path.isfile(path) and os.path.isdir(modules):
            return GuestKernel(path, modules)
    return None


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _version(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def _no_kernel(why: str) -> LayerMissing:
    return LayerMissing(
        why,
        hint="Install one with its modules: apt-get install linux-image-amd64 (or -arm64; kernels "
        "for clouds lack the 9p driver), or name it in sandbox.machine_kernel.",
        code="CW-LAYER-KERNEL",
    )


def initramfs(kernel: GuestKernel, cell_program: bytes) -> bytes:
    """The archive; equal input gives equal bytes. Reads the modules."""
    paths = _module_paths(kernel.modules)
    built_in = _built_in(kernel.modules)
    names = load_order(
        (*_NEEDED, *_USEFUL), frozenset(paths), lambda name: _dependencies(_module(paths[name]))
    )
    missing = [name for name in _NEEDED if name not in names and name not in built_in]
    if missing:
        raise _no_kernel(f"the kernel for virtual machines lacks the driver {missing[0]}")
    files: dict[str, tuple[int, bytes]] = {
        **dict.fromkeys(("dev", "proc", "sys", "root", "modules"), (_DIRECTORY, b"")),
        CELL_IN_MACHINE.lstrip("/"): (_PROGRAM, cell_program),
    }
    for name in names:
        files[f"modules/{name}.ko"] = (_FILE, _module(paths[name]))
    order = "".join(f"{name}.ko\n" for name in names)
    files["modules/order"] = (_FILE, order.encode())
    return cpio(files)


def load_order(
    wanted: tuple[str, ...], present: frozenset[str], needs: Callable[[str], list[str]]
) -> list[str]:
    """The modules and what they need, each after its own needs. Pure but for `needs`."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or name not in present:
            return  # not a file: built into the kernel, or checked by the caller
        seen.add(name)
        for need in needs(name):
            visit(need)
        order.append(name)

    for name in wanted:
        visit(name)
    return order


def _module_paths(modules: str) -> Mapping[str, str]:
    return dict(_walk(modules))


def _walk(modules: str) -> Iterator[tuple[str, str]]:
    for below in _PACKED_BELOW:
        for folder, _, names in os.walk(os.path.join(modules, below)):
            for name in names:
                stem, dot, suffix = name.partition(".ko")
                if dot and f".ko{suffix}" in _SUFFIXES:
                    yield stem.replace("-", "_"), os.path.join(folder, name)


def _built_in(modules: str) -> frozenset[str]:
    try:
        with open(os.path.join(modules, "modules.builtin"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return frozenset()
    return frozenset(os.path.basename(line).partition(".ko")[0].replace("-", "_") for line in lines)


def _module(path: str) -> bytes:
    """The unpacked module."""
    with open(path, "rb") as file:
        data = file.read(_MAX_MODULE_BYTES)
    try:
        unpacked = _unpack(data, path)
    except (lzma.LZMAError, zlib.error, OSError, EOFError) as error:
        raise _damaged() from error
    if not unpacked:
        raise _damaged()
    return unpacked


def _unpack(data: bytes, path: str) -> bytes:
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith(".gz"):
        return gzip.decompress(data)
    if path.endswith(".zst"):
        return _unpack_zstandard(data)
    return data


def _damaged() -> LayerMissing:
    return _no_kernel("a driver of the kernel for virtual machines is damaged")


def _unpack_zstandard(data: bytes) -> bytes:
    import zstandard  # noqa: PLC0415  # late: few distributions pack their drivers so

    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_MODULE_BYTES)
    except zstandard.ZstdError as error:
        raise _damaged() from error


def _dependencies(module: bytes) -> list[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    names = found[1].decode("ascii", "replace").split(",") if found else []
    return [name.replace("-", "_") for name in names if name]


def cpio(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """An archive in the format `newc`: path -> mode and content. Pure."""
    parts: list[bytes] = []
    for number, (path, (mode, content)) in enumerate((*files.items(), ("TRAILER!!!", (0, b"")))):
        name = path.encode() + b"\0"
        numbers = (number + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in numbers) + name
        parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]
    return b"".join(parts)
