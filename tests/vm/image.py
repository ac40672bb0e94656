"""Makes what a virtual machine boots from: kernel, initramfs, root file system and job disk.

Everything but the job disk is kept below `.vm`, under a name that changes with its recipe. Packages
come from wherever the host's own apt gets them.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".vm"
USER, UID = "tester", 1000

_GUEST_PACKAGES = (
    "bubblewrap", "busybox-static", "dbus", "libpam-systemd", "python3", "systemd",
    "systemd-sysv", "udev", "util-linux",
)  # fmt: skip
_GUEST_HOOKS = (
    f'chroot "$1" useradd --create-home --uid {UID} --shell /bin/sh {USER}',
    f'mkdir -p "$1/var/lib/systemd/linger" && touch "$1/var/lib/systemd/linger/{USER}"',
    'mkdir -p "$1/job" && rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale"',
    # Not what is tested here, and slow under software emulation.
    *(
        f'ln -sf /dev/null "$1/etc/systemd/system/{unit}"'
        for unit in (
            "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
            "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
        )
    ),
)  # fmt: skip
_MODULES = ("virtio_pci", "virtio_mmio", "virtio_blk", "virtio_rng", "ext4", "overlay")
ROOT_BYTES, JOB_BYTES = 2 * 1024**3, 768 * 1024**2


class Unusable(Exception):
    """This host cannot run the tests; the text says why and what helps."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What differs between the processors we build for."""

    debian: str
    emulator: str
    emulator_package: str
    board: str
    emulated_cpu: str
    console: str

    @classmethod
    def of_host(cls) -> Machine:
        return cls.named(platform.machine())

    @classmethod
    def named(cls, name: str) -> Machine:
        match name:
            case "aarch64":
                board, cpu = "virt", "cortex-a72"  # `max` signs pointers, slow to emulate
                tool, package = "qemu-system-aarch64", "qemu-system-arm"
                return cls("arm64", tool, package, board, cpu, "ttyAMA0")
            case "x86_64":
                tool, package = "qemu-system-x86_64", "qemu-system-x86"
                return cls("amd64", tool, package, "q35", "max", "ttyS0")
            case other:
                raise Unusable(f"no virtual machine is described for {other}")

    def has_virtualization(self) -> bool:
        """Whether /dev/kvm runs this machine's kernel.

        On x86_64 a host may have the device while its processor shows neither VT-x nor AMD-V: such a
        hypervisor runs only guests that were made for it.
        """
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return False
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return flags is None or not {"vmx", "svm"}.isdisjoint(flags[1].split())


@dataclass(frozen=True, slots=True)
class Image:
    """The parts a machine boots from; the same for every scenario."""

    kernel: Path
    initramfs: Path
    root: Path


def build(machine: Machine) -> Image:
    """Make, or find in the cache, everything but the job."""
    CACHE.mkdir(exist_ok=True)
    install_tools(machine)
    kernel, modules = _kernel(machine)
    busybox = Path(shutil.which("busybox") or "/usr/bin/busybox")
    return Image(kernel, initramfs(modules, busybox), _root(machine))


def root_words() -> list[str]:
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        raise Unusable("the first run installs packages and makes a root file system: run as root")
    return ["sudo"]


def run_program(*words: str | Path, cwd: Path | None = None, quiet: bool = True) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, text=True, capture_output=quiet, check=False, timeout=1200,
    )  # fmt: skip
    if done.returncode != 0:
        raise Unusable(f"{words[0]} failed ({done.returncode}): {(done.stderr or '')[-2000:]}")
    return done.stdout or ""


def install_tools(machine: Machine) -> None:
    wanted = {
        machine.emulator: machine.emulator_package,
        "mmdebstrap": "mmdebstrap",
        "mke2fs": "e2fsprogs",
        "busybox": "busybox-static",
        "cpio": "cpio",
    }
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [package for tool, package in wanted.items() if not shutil.which(tool, path=search)]
    if missing:
        if shutil.which("apt-get") is None:
            raise Unusable(f"install these first: {', '.join(missing)}")
        say(f"installing {', '.join(missing)}")
        run_program(*root_words(), "apt-get", "update", "-qq")
        run_program(
            *root_words(), "apt-get", "install", "-qqy", "--no-install-recommends", *missing
        )


def _kernel(machine: Machine) -> tuple[Path, Path]:
    """Debian's kernel for clouds, unpacked and never installed."""
    folder = CACHE / f"kernel-{codename()}-{machine.debian}"
    if not (folder / "done").exists():
        say("fetching a kernel")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        depends = run_program("apt-cache", "depends", f"linux-image-cloud-{machine.debian}")
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if found is None:
            raise Unusable("apt knows no linux-image-cloud package; this test needs Debian's")
        # apt's own download user need not be able to write to the checkout.
        run_program("apt-get", "-o", "APT::Sandbox::User=root", "download", found[1], cwd=folder)
        (package,) = folder.glob("*.deb")
        run_program("dpkg-deb", "-x", package, folder / "files")
        package.unlink()
        (folder / "done").touch()
    (kernel,) = (folder / "files/boot").glob("vmlinuz-*")
    (modules,) = folder.glob("files/**/lib/modules/*")
    return kernel, modules


def _module_files(modules: Path) -> Iterator[tuple[str, bytes]]:
    """The modules we need and those they need, in an order in which they can be loaded."""
    paths = {
        path.name.split(".ko")[0].replace("-", "_"): path for path in sorted(modules.rglob("*.ko*"))
    }
    done: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in paths:  # not a file: built into the kernel
            return
        done.add(name)
        data = paths[name].read_bytes()
        if paths[name].suffix == ".xz":
            data = lzma.decompress(data)
        found = re.search(rb"\0(?:depends)=([^\0]*)\0", data)
        soft = re.findall(rb"\0softdep=pre: ([^\0]*)\0", data)
        needs = (found[1].decode().split(",") if found else []) + [
            word for text in soft for word in text.decode().split()
        ]
        for need in filter(None, needs):
            yield from visit(need.replace("-", "_"))
        yield name, data

    for name in _MODULES:
        yield from visit(name)


def initramfs(modules: Path, busybox: Path) -> Path:
    """A file system in memory that loads the modules and mounts the disks."""
    init = (HERE / "inside/initramfs-init").read_bytes()
    target = CACHE / f"initramfs-{key([modules.name, *_MODULES, init.decode()])}.gz"
    if target.exists():
        return target
    folder = CACHE / "initramfs"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin/busybox")
    (folder / "init").write_bytes(init)
    (folder / "init").chmod(0o755)
    order = []
    for name, data in _module_files(modules):
        (folder / f"modules/{name}.ko").write_bytes(data)
        order.append(name)
    (folder / "modules/order").write_text("\n".join(order) + "\n")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    packed = subprocess.run(
        ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
        input="\n".join(names).encode(), cwd=folder, capture_output=True, check=True,
    ).stdout  # fmt: skip
    target.write_bytes(gzip.compress(packed, 1, mtime=0))
    shutil.rmtree(folder)
    return target


def _root(machine: Machine) -> Path:
    name = f"root-{codename()}-{machine.debian}"
    target = CACHE / f"{name}-{key([*_GUEST_PACKAGES, *_GUEST_HOOKS])}.ext4"
    if target.exists():
        return target
    say("making a root file system (some minutes, once)")
    for old in CACHE.glob(f"{name}-*"):
        old.unlink()
    root = root_words()
    folder, unfinished = CACHE / "root", target.with_suffix(".part")
    run_program(*root, "rm", "-rf", folder)
    options = CACHE / "apt.conf"
    options.write_text(run_program("apt-config", "dump", "Acquire"))
    hooks = [f"--customize-hook={hook}" for hook in _GUEST_HOOKS]
    run_program(
        *root, "mmdebstrap", "--variant=minbase", f"--architectures={machine.debian}",
        f"--include={','.join(_GUEST_PACKAGES)}", f"--aptopt={options}", *hooks,
        codename(), folder, *apt_sources(),
    )  # fmt: skip
    make_disk(folder, unfinished, ROOT_BYTES, as_root=root)
    run_program(*root, "chown", str(os.getuid()), unfinished)
    run_program(*root, "rm", "-rf", folder)
    unfinished.rename(target)
    return target


def apt_sources() -> list[Path]:
    below = Path("/etc/apt/sources.list.d")
    places = [Path("/etc/apt/sources.list"), *below.glob("*.list"), *below.glob("*.sources")]
    return [place for place in places if place.exists()]


def codename() -> str:
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=\"?(\w+)", release, re.MULTILINE)
    if found is None or "ID=debian" not in release.splitlines():
        raise Unusable("this test builds its machines from the packages of a Debian host")
    return found[1]


def make_disk(folder: Path, target: Path, size: int, *, as_root: Sequence[str] = ()) -> None:
    target.unlink(missing_ok=True)
    mke2fs = shutil.which("mke2fs") or "/usr/sbin/mke2fs"
    run_program(*as_root, mke2fs, "-q", "-t", "ext4", "-d", folder, target, f"{size // 1024}k")


def key(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


_SITE = "lib/python3/site-packages"
"""As deep as in an installation: a wheel names its programs by the way from there to bin."""


def job_disk(target: Path) -> None:
    """Cellwall as it is in this checkout, what it imports, and the tests."""
    if not (ROOT / "src/cellwall/sandbox/linux/cellwall-cell").exists():
        raise Unusable("cellwall-cell is not built: run ./dev setup")
    folder = target.with_suffix(".d")
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/cellwall", folder / _SITE / "cellwall", ignore=ignore)
    shutil.copytree(HERE / "inside", folder, ignore=ignore, dirs_exist_ok=True)
    shutil.copy(ROOT / "docs/guides/serve.md", folder)
    (site,) = (ROOT / ".venv/lib").glob("python3.*/site-packages")
    (folder / "python-version").write_text(site.parent.name.removeprefix("python"))
    for distribution in _needed(site):
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            # Programs lie in the folder of the interpreter: ../../../bin/NAME.
            is_program = ".." in file.parts
            place = folder / "bin" / file.name if is_program else folder / _SITE / file
            if "__pycache__" not in file.parts and source.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)
    # Compiling pydantic takes half a minute under emulation. The machine's clock is not ours, so
    # the compiled files are not to be checked against the time of their source.
    mode = ("--invalidation-mode", "unchecked-hash")
    run_program(ROOT / ".venv/bin/python", "-m", "compileall", "-q", *mode, folder / _SITE)
    make_disk(folder, target, JOB_BYTES)
    shutil.rmtree(folder)


def _needed(site: Path) -> list[Distribution]:
    """What Cellwall requires, and what that requires; not the tools of developers."""
    present = {_plain(item.name): item for item in distributions(path=[str(site)])}
    needed: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("cellwall", "")]  # a name, and an extra of it or none
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name not in present:
            continue
        seen.add((name, extra))
        needed[name] = present[name]
        for line in present[name].requires or ():
            requirement, _, marker = line.partition(";")
            of_extra = re.search(r"extra\s*==\s*[\"']([\w.-]+)", marker)
            if (of_extra[1] if of_extra else "") == extra:
                words = re.findall(r"[\w.-]+", re.split(r"[^\w.\-\[\], ]", requirement)[0])
                waiting += [(_plain(words[0]), each) for each in ("", *words[1:])]
    if "cellwall" not in needed:
        raise Unusable("cellwall is not installed in .venv: run ./dev setup")
    return [item for name, item in needed.items() if name != "cellwall"]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)
