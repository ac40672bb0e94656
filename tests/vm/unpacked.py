"""A root file system of Debian's packages, unpacked and not configured, with the kernel among them.

For machines whose programs this host cannot run, or of another release: no script of a package is
needed for a few programs and a shell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import image

_USUAL = ("busybox-static", "coreutils", "dash", "libc-bin", "mount", "util-linux")
_LINKS = ("bin", "sbin", "lib", "lib64")  # to /usr, made by a script of their package
_PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
)
_GROUP = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def build(
    machine: image.Machine, label: str, packages: Sequence[str], *, release: str | None = None
) -> image.Image:
    """Make, or find in the cache, everything but the job; `release`: another than the host's."""
    image.CACHE.mkdir(exist_ok=True)
    image.install_tools(machine)
    folder = image.CACHE / f"{label}-{machine.debian}"
    wanted = (*_USUAL, *packages, f"linux-image-cloud-{machine.debian}")
    root = image.CACHE / f"{folder.name}-{image.key((*wanted, *_LINKS))}.ext4"
    if not root.exists():
        image.say(f"unpacking a root file system: {folder.name}")
        _unpack(machine, folder, wanted, release)
        unfinished = root.with_suffix(".part")
        image.make_disk(folder, unfinished, image.ROOT_BYTES, as_root=image.root_words())
        unfinished.rename(root)
    (kernel,) = (folder / "boot").glob("vmlinuz-*")
    (modules,) = (folder / "lib/modules").iterdir()
    return image.Image(kernel, image.initramfs(modules, folder / "bin/busybox"), root)


def _unpack(
    machine: image.Machine, folder: Path, packages: Sequence[str], release: str | None
) -> None:
    root = image.root_words()
    image.run_program(*root, "rm", "-rf", folder)
    options = image.CACHE / "apt.conf"
    options.write_text(image.run_program("apt-config", "dump", "Acquire"))
    codename = image.codename()
    sources = [_source(release)] if release else image.apt_sources()
    image.run_program(
        *root, "mmdebstrap", "--variant=extract", f"--architectures={machine.debian}",
        f"--include={','.join(packages)}", f"--aptopt={options}", release or codename, folder,
        *sources,
    )  # fmt: skip
    for name in ("proc", "sys", "run", "root", "job"):
        (folder / name).mkdir(exist_ok=True)
    for name in _LINKS:
        if not (folder / name).exists() and (folder / "usr" / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    if not (folder / "bin/sh").exists():
        (folder / "bin/sh").symlink_to("dash")
    (folder / "etc/passwd").write_text(_PASSWD)
    (folder / "etc/group").write_text(_GROUP)


def _source(release: str) -> str:
    """From wherever the host's own packages come."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in image.apt_sources())
    found = re.search(r"https?://\S+/debian(?=[\s/]|$)", re.sub(r"#.*", "", text))
    if found is None:
        raise image.Unusable("the host's apt names no mirror of Debian")
    return f"deb [signed-by={_KEYS}] {found[0]} {release} main"
