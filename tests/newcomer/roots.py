"""Root file systems of fresh distributions, made by debootstrap and kept in a cache.

Packages come from wherever the host's own apt gets them. For a distribution that is not the host's
the address is the default of debootstrap's own script. What the host needs to reach its mirrors
(authorities, proxies, pip's configuration) is copied when a root is made or entered; no address is
written here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

USER, UID = "newcomer", 1000
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_PACKAGES = ("ca-certificates", "git")
_AUTHORITIES = Path("/usr/local/share/ca-certificates")
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/uv/uv.toml")
_NETWORK_VARIABLES = re.compile(
    r"(?:https?|all|no|ftp)_proxy|PIP_\w+|UV_\w+|SSL_CERT_(?:FILE|DIR)|\w+_CA_BUNDLE|\w+_CA_CERTS"
    r"|npm_config_registry",
    re.IGNORECASE,
)
_NEEDED_BYTES = 4 * 1024**3
_MAX_BUILD_S = 3600


class Unavailable(Exception):
    """A root or a host cannot be had on this machine; the text says why, and what helps."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One release, as debootstrap knows it."""

    codename: str
    title: str
    script: str
    keyring: str
    keyring_package: str
    components: str = "main"


_DEBIAN_KEYS = ("debian-archive-keyring", "debian-archive-keyring")
_UBUNTU_KEYS = ("ubuntu-archive-keyring", "ubuntu-keyring")
DISTRIBUTIONS = {
    each.codename: each
    for each in (
        Distribution("bookworm", "Debian 12", "sid", *_DEBIAN_KEYS),
        Distribution("trixie", "Debian 13", "sid", *_DEBIAN_KEYS),
        # bubblewrap is in main, but python3-venv needs packages of universe.
        Distribution("noble", "Ubuntu 24.04", "gutsy", *_UBUNTU_KEYS, "main,universe"),
    )
}


def default_cache() -> Path:
    """Not below the checkout: a root is no part of a clone, and of hundreds of megabytes."""
    return Path(os.environ.get("CELLWALL_NEWCOMER_CACHE", "/var/tmp/cellwall-newcomer"))


def root_of(distribution: Distribution, cache: Path) -> Path:
    """The distribution's pristine root, made if the cache has none."""
    target = cache / "roots" / distribution.codename
    if (target / "etc/debian_version").exists():
        return target
    if shutil.which("debootstrap") is None:
        raise Unavailable("debootstrap is missing; as root: apt-get install -y debootstrap")
    if os.geteuid() != 0:
        raise Unavailable("debootstrap needs root; run this test as root")
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < _NEEDED_BYTES:
        raise Unavailable(
            f"{target.parent} has {free >> 20} MiB free, {_NEEDED_BYTES >> 20} needed"
        )
    fresh = target.with_suffix(f".{os.getpid()}")  # two runs may make it at once
    mirror = _host_mirror(distribution) or _default_mirror(distribution)
    log = target.parent / f"{distribution.codename}.log"
    words = [
        "nice", "-n", "10", "debootstrap", "--variant=minbase", "--force-check-gpg",
        f"--keyring={_keyring(distribution, cache)}", f"--include={','.join(_PACKAGES)}",
        f"--components={distribution.components}",
        distribution.codename, str(fresh), mirror, str(_SCRIPTS / distribution.script),
    ]  # fmt: skip
    with log.open("wb") as stream:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            timeout=_MAX_BUILD_S, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line[:2] == "E:"]
        remove_tree(fresh)
        raise Unavailable(f"debootstrap failed: {lines[-1] if lines else 'no reason told'} ({log})")
    _finish(fresh, distribution, mirror)
    if target.exists():
        remove_tree(fresh)
    else:
        fresh.rename(target)
    return target


def remove_tree(path: Path) -> None:
    """Unmount what lies below first: a killed debootstrap leaves the host's /sys and /proc there."""
    for point in reversed(_mounts_below(path)):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    if left := _mounts_below(path):
        raise Unavailable(f"{left[0]} is still mounted; as root: umount {left[0]}")
    shutil.rmtree(path, ignore_errors=True)


def _mounts_below(path: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(p for p in (line.split()[4] for line in lines) if Path(p).is_relative_to(path))


def copy_root(source: Path, target: Path) -> None:
    """A root that one host may change. It lies on the disk's file system, as a fresh machine's."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)


def network_environment() -> dict[str, str]:
    """Variables by which the host reaches its mirrors, without folders that only the host has."""
    return {
        name: value
        for name, value in os.environ.items()
        if _NETWORK_VARIABLES.fullmatch(name)
        and not (value.startswith("/") and Path(value).is_dir() and value != "/etc/ssl/certs")
    }


def _finish(root: Path, distribution: Distribution, mirror: str) -> None:
    for name in filter(os.path.exists, _NETWORK_FILES):
        place = root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copy(name, place)
    for found in _AUTHORITIES.glob("*.crt"):
        shutil.copy(found, root / str(_AUTHORITIES).lstrip("/"))
    sources = root / "etc/apt/sources.list"
    sources.write_text("\n".join(_sources(distribution, mirror)) + "\n")
    for words in (
        ["update-ca-certificates"],
        ["apt-get", "clean"],
        ["useradd", "--create-home", "--uid", str(UID), "--user-group", "-s", "/bin/bash", USER],
    ):
        if words[0] == "useradd":  # Ubuntu's base has a user of that number in some releases
            subprocess.run(["chroot", root, "userdel", "--remove", "ubuntu"], **_QUIET)
        done = subprocess.run(["chroot", root, *words], **_QUIET)
        if done.returncode != 0:
            raise Unavailable(f"{words[0]} failed in the root of {distribution.title}")


_QUIET: Mapping[str, object] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
    "check": False,
    "timeout": 300,
}


def _sources(distribution: Distribution, mirror: str) -> Iterator[str]:
    """The release and the suites beside it that the host's own sources have."""
    components = distribution.components.replace(",", " ")
    yield f"deb {mirror} {distribution.codename} {components}"
    for uri, suite in _apt_sources():
        host = suite.partition("-")[0]
        if suite != host and _host_mirror(distribution) is not None:
            yield f"deb {uri} {suite.replace(host, distribution.codename, 1)} {components}"


def _apt_sources() -> list[tuple[str, str]]:
    """Address and suite of each of the host's own sources of the host's own distribution."""
    if shutil.which("apt-get") is None:
        return []
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(REPO_URI) $(RELEASE)"],
        capture_output=True, text=True, check=False, timeout=60,
    ).stdout  # fmt: skip
    found = [line.split() for line in told.splitlines() if line.startswith("Packages ")]
    codename = _release_of_host().get("VERSION_CODENAME", "")
    wanted = {(words[1], words[2]) for words in found if len(words) == 3}
    return sorted(pair for pair in wanted if codename and pair[1].startswith(codename))


def _host_mirror(distribution: Distribution) -> str | None:
    """Where the host gets packages of this distribution, if it is the host's own."""
    if _release_of_host().get("ID") != distribution.title.split()[0].lower():
        return None
    codename = _release_of_host().get("VERSION_CODENAME")
    return next((uri for uri, suite in _apt_sources() if suite == codename), None)


def _default_mirror(distribution: Distribution) -> str:
    """The one that debootstrap's script names for this processor."""
    machine = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    script = _SCRIPTS / distribution.script
    if not script.exists():
        raise Unavailable(f"this debootstrap has no script for {distribution.title}")
    # The script is a shell program that calls `default_mirror` for the architecture and the suite.
    program = (
        "default_mirror() { mirror=$1; }\n"
        'mirror_style() { echo "$mirror"; exit; }\n'
        "doing_variant() { return 1; }; keyring() { :; }; download_style() { :; }\n"
        "finddebs_style() { :; }; variants() { :; }; force_md5() { :; }\n"
        f"ARCH={machine} SUITE={distribution.codename}\n. {script}\n"
    )
    told = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False)
    if not told.stdout.strip():
        raise Unavailable(f"debootstrap's script names no mirror for {distribution.title}")
    return told.stdout.strip()


def _keyring(distribution: Distribution, cache: Path) -> Path:
    """The distribution's keys: of the host, or from the package of them that a Debian root knows."""
    name = f"{distribution.keyring}.gpg"
    for folder in (Path("/usr/share/keyrings"), cache / "keyrings"):
        if (folder / name).exists():
            return folder / name
    for codename in ("trixie", "bookworm"):
        root = cache / "roots" / codename
        if (root / "etc/debian_version").exists() and _fetch_keyring(distribution, root, cache):
            return cache / "keyrings" / name
    raise Unavailable(
        f"the keys of {distribution.title} are missing; as root: "
        f"apt-get install {distribution.keyring_package}"
    )


def _fetch_keyring(distribution: Distribution, root: Path, cache: Path) -> bool:
    """Have a Debian root's apt, which checks signatures, fetch the package; take the file out."""
    folder = cache / "keyrings"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"scratch.{os.getpid()}"
    try:
        copy_root(root, scratch)
        for words in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-yq", "--no-install-recommends", distribution.keyring_package],
        ):
            done = subprocess.run(
                ["chroot", scratch, *words],
                **_QUIET,
                env=_apt_environment(),  # type: ignore[call-overload]
            )
            if done.returncode != 0:
                return False
        shutil.copy(scratch / f"usr/share/keyrings/{distribution.keyring}.gpg", folder)
        return True
    finally:
        remove_tree(scratch)


def _apt_environment() -> dict[str, str]:
    search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**network_environment(), "PATH": search, "DEBIAN_FRONTEND": "noninteractive"}


def _release_of_host() -> Mapping[str, str]:
    try:
        lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    except OSError:
        return {}
    pairs: Sequence[tuple[str, str, str]] = [line.partition("=") for line in lines]
    return {name: value.strip('"') for name, _, value in pairs}
