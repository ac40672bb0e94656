"""A kernel of Debian for virtual machines, unpacked below .vm and never installed."""

from __future__ import annotations

import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from cellwall.core.errors import CellwallError
from cellwall.sandbox.machines.guest_image import GuestKernel, find_kernel
from conftest import need

_CACHE = Path(__file__).resolve().parents[4] / ".vm"
_PACKAGES = {"x86_64": "linux-image-amd64", "aarch64": "linux-image-arm64"}


def debian_kernel() -> GuestKernel:
    """The newest kernel of the package that Debian's hosts have; on x86_64 unpacked, since an
    emulated processor needs as long to unpack it as for the rest of the boot."""
    given = os.environ.get("CELLWALL_TEST_KERNEL")
    if given:
        return find_kernel(given)
    package = _PACKAGES.get(platform.machine())
    need(package and shutil.which("apt-get") and shutil.which("dpkg-deb"), "Debian's packages")
    folder = _CACHE / f"machine-kernel-{package}"
    if not (folder / "done").exists():
        _fetch(str(package), folder)
    (kernel,) = (folder / "files/boot").glob("vmlinuz-*")
    with suppress(CellwallError):
        return find_kernel(str(kernel))
    raise AssertionError(f"no modules beside {kernel}")


def _fetch(package: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    depends = _output("apt-cache", "depends", package)
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    need(found, f"the package {package}; run apt-get update")
    assert found is not None
    # apt's own download user need not be able to write to the checkout.
    _output("apt-get", "-o", "APT::Sandbox::User=root", "download", found[1], cwd=folder)
    (archive,) = folder.glob("*.deb")
    _output("dpkg-deb", "-x", str(archive), str(folder / "files"))
    archive.unlink()
    (kernel,) = (folder / "files/boot").glob("vmlinuz-*")
    plain = unpacked(kernel.read_bytes())
    if plain is not None:
        kernel.write_bytes(plain)
    (folder / "done").touch()


def unpacked(image: bytes) -> bytes | None:
    """The ELF file in a bzImage that is packed with xz, as Debian's is; None for another image."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return None
    sectors = image[0x1F1]
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if not payload.startswith(b"\xfd7zXZ"):
        return None
    plain = lzma.LZMADecompressor().decompress(payload)
    return plain if plain.startswith(b"\x7fELF") else None


def _output(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout
