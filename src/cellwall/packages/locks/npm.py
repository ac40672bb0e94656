"""`package-lock.json` of npm 7 and newer (lockfileVersion 2 and 3)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from cellwall.packages.locks.model import (
    BadLock,
    Lock,
    LockedFile,
    LockedPackage,
    bounded,
    check_counts,
    digest,
    locked_name,
    origin_of,
    table,
    text,
)
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import one_spelling

PUBLIC_HOSTS = frozenset({"registry.npmjs.org"})
_FOLDER = "node_modules/"
_NEEDS = ("dependencies", "optionalDependencies", "peerDependencies")
_ROOT_NEEDS = (*_NEEDS, "devDependencies")
_MAX_DEPTH = 60
_VERSION = re.compile(r"[=v\s]*\d+\.\d+\.\d+[0-9A-Za-z.+_-]*\s*", re.ASCII)


def parse_package_lock(data: bytes) -> Lock:
    """The lock in the bytes of a `package-lock.json`."""
    try:
        document = table(json.loads(data), "package-lock.json")
    except (ValueError, RecursionError):
        raise BadLock("package-lock.json is not JSON") from None
    if "packages" not in document:
        raise BadLock(
            "package-lock.json has lockfileVersion 1, which names no tree of packages",
            hint="Write it anew with npm 7 or newer: npm install --package-lock-only.",
        )
    entries = table(document["packages"], "`packages`")
    tree = {text(key, "a path"): table(each, "a package") for key, each in entries.items()}
    if any(key.count("/") > _MAX_DEPTH for key in tree):
        raise BadLock(f"package-lock.json is nested deeper than {_MAX_DEPTH} folders")
    check_counts(len(tree), sum(map(_count_needs, tree.values())))
    direct = {
        ref
        for key, entry in tree.items()
        if _FOLDER not in key
        for ref in _needed(tree, key, entry, _ROOT_NEEDS)
    }
    packages = [
        _package(tree, key, entry, is_direct=key in direct)
        for key, entry in tree.items()
        if not _is_local(key, entry)
    ]
    return Lock(
        "package-lock.json",
        bounded(packages),
        requirements=_requirements(tree.get("", {})),
        local=tuple(key for key, each in tree.items() if key and _is_local(key, each)),
    )


def is_tarball_of(package: LockedPackage, url: str) -> bool:
    """Whether a URL is that of this package and version in a registry of npm."""
    try:
        path = unquote(urlsplit(url).path).lower()
    except ValueError:
        return False
    version = one_spelling(Ecosystem.NPM, package.version or "").lower()
    filename = f"{package.name.rpartition('/')[2]}-{version}.tgz"
    return path.endswith(f"/{package.name}/-/{filename}")


def _is_local(key: str, entry: Mapping[str, Any]) -> bool:
    """Whether the package is a folder of the project, which no registry has."""
    return _FOLDER not in key or entry.get("link") is True


def _requirements(root: Mapping[str, Any]) -> dict[str, str]:
    wanted = table(root.get("dependencies") or {}, "`dependencies`")
    return {text(name, "a package name"): text(each, "a version") for name, each in wanted.items()}


def _count_needs(entry: Mapping[str, Any]) -> int:
    return sum(len(table(entry.get(kind) or {}, f"`{kind}`")) for kind in _ROOT_NEEDS)


def _package(
    tree: Mapping[str, Mapping[str, Any]], key: str, entry: Mapping[str, Any], *, is_direct: bool
) -> LockedPackage:
    # An alias has the real name in `name`.
    named = entry.get("name") or key.rpartition(_FOLDER)[2]
    name = locked_name(Ecosystem.NPM, named)
    version = text(entry.get("version"), f"the version of {name}")
    # Attack: npm reads what is no version as a range, another package (`npm:evil@1.0.0`) or a URL.
    if _VERSION.fullmatch(version) is None:
        raise BadLock(f"the version of {name} is not a version")
    url = text(entry.get("resolved") or "", f"`resolved` of {name}")
    hashes = tuple(_hashes(text(entry.get("integrity") or "", f"`integrity` of {name}")))
    licence = entry.get("license")
    filename = url.partition("?")[0].rpartition("/")[2]
    return LockedPackage(
        key,
        Ecosystem.NPM,
        name,
        version,
        (LockedFile(filename, url, hashes),) if url or hashes else (),
        tuple(dict.fromkeys(_needed(tree, key, entry, _NEEDS))),
        is_direct=is_direct,
        origin=origin_of(url, PUBLIC_HOSTS) if url else "",
        licence=text(licence, f"the licence of {name}") if isinstance(licence, str) else "",
        is_bundled=entry.get("inBundle") is True,
    )


def _needed(
    tree: Mapping[str, Mapping[str, Any]],
    key: str,
    entry: Mapping[str, Any],
    kinds: tuple[str, ...],
) -> Iterator[str]:
    """Node's own search for each dependency: the package's folder, then each folder above."""
    folders = _search_path(key)
    for kind in kinds:
        for name in table(entry.get(kind) or {}, f"`{kind}`"):
            found = next((each + name for each in folders if each + name in tree), None)
            # A link leads to a package of the workspace, which no registry has.
            if found is not None and tree[found].get("link") is not True:
                yield found


def _search_path(key: str) -> list[str]:
    parts = key.split("/") if key else []
    above = (parts[:count] for count in range(len(parts), -1, -1))
    return ["/".join([*each, _FOLDER]) for each in above if each[-1:] != ["node_modules"]]


def _hashes(integrity: str) -> Iterator[tuple[str, str]]:
    """Subresource integrity: `sha512-BASE64`, several separated by spaces, options after `?`."""
    for each in integrity.split():
        algorithm, _, encoded = each.partition("?")[0].partition("-")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadLock("an `integrity` is malformed") from None
        yield digest(algorithm, raw.hex())
