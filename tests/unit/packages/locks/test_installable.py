"""Locks that can be installed: their pins, and which locks are refused."""

from __future__ import annotations

import base64
import json

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.packages import Package
from cellwall.packages.locks.installable import (
    MAX_INSTALLED_BYTES,
    installable_package_lock,
    installable_pylock,
    packages_of,
    pins_of,
)

HASH = "ab" * 32
SHA512 = "sha512-" + base64.b64encode(bytes(64)).decode()
SHA1 = "sha1-" + base64.b64encode(bytes(20)).decode()
NPM_ENTRY = {"version": "1.0.0", "integrity": SHA512}
BUNDLED = {"version": "1.0.0", "inBundle": True}
HEAD = 'lock-version = "1.0"\ncreated-by = "test"\n'
WHEEL = (
    f'[{{ url = "https://evil.example/a-1.0-py3-none-any.whl", hashes = {{ sha256 = "{HASH}" }} }}]'
)


def package(name: str = "a", version: str | None = "1.0", **fields: str) -> str:
    lines = [f'name = "{name}"', *([f'version = "{version}"'] if version else [])]
    return "\n".join(["[[packages]]", *lines, *(f"{k} = {v}" for k, v in fields.items()), ""])


@pytest.mark.requirement("PKG-5")
def test_a_lock_becomes_pins_by_name_version_and_hash_and_no_address_of_it_is_used():
    other = WHEEL.replace("a-1.0", "b-2")
    marked = package("b", "2", wheels=other, marker="\"python_version < '3.12'\"")
    lock = installable_pylock((HEAD + package(wheels=WHEEL) + marked).encode())
    assert packages_of(lock) == (Package("a", "1.0"), Package("b", "2"))
    assert pins_of(lock).decode() == (
        f"a==1.0 \\\n    --hash=sha256:{HASH}\n"
        f'b==2 ; python_version < "3.12" \\\n    --hash=sha256:{HASH}\n'
    )


REFUSED = {
    "not TOML": b"{",
    "not text": b"\xff\xfe",
    "nothing": b"",
    "another version of the format": b'lock-version = "9.0"\ncreated-by = "x"\npackages = []\n',
    "no package": (HEAD + "packages = []\n").encode(),
    "a file without a hash": (
        HEAD + package(wheels='[{ url = "https://x/a.whl", hashes = {} }]')
    ).encode(),
    "a hash that is weak": (
        HEAD + package(wheels='[{ url = "https://x/a.whl", hashes = { md5 = "00" } }]')
    ).encode(),
    "a hash with words after it": (HEAD + package(wheels=WHEEL.replace(HASH, HASH + " -r x"))).encode(),
    "a name that is an option": (HEAD + package("--index-url=x", wheels=WHEEL)).encode(),
    "a name with a line break": (HEAD + package("a\\n--pre", wheels=WHEEL)).encode(),
    "a version that is none": (HEAD + package(version="1 --pre", wheels=WHEEL)).encode(),
    "no version": (HEAD + package(version=None, wheels=WHEEL)).encode(),
    "source only": (
        HEAD
        + package(sdist=f'{{ url = "https://x/a-1.tar.gz", hashes = {{ sha256 = "{HASH}" }} }}')
    ).encode(),
    "a folder": (HEAD + package(directory='{ path = "/etc" }')).encode(),
    "a repository": (
        HEAD + package(vcs='{ type = "git", url = "https://x/y", commit-id = "0" }')
    ).encode(),
    "an archive by its address": (
        HEAD + package(archive=f'{{ url = "https://x/y", hashes = {{ sha256 = "{HASH}" }} }}')
    ).encode(),
    "an extra of the lock": (HEAD + package(wheels=WHEEL, marker="\"'x' in extras\"")).encode(),
    "a marker with a line break": (
        HEAD + package(wheels=WHEEL, marker='"python_version != \'3\\n--pre\'"')
    ).encode(),
    "too large": b"#" * (MAX_INSTALLED_BYTES + 1),
    "too deep": b"x = " + b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_other_locks_are_refused(what):
    with pytest.raises(BadInput) as told:
        installable_pylock(REFUSED[what])
    assert told.value.code == "CW-BAD-LOCK"
    assert told.value.hint


def npm_lock(**packages: dict[str, object]) -> bytes:
    root = {"": {"dependencies": {"a": "^1"}}}
    entries = {f"node_modules/{name}": each for name, each in packages.items()}
    return json.dumps({"lockfileVersion": 3, "packages": {**root, **entries}}).encode()


REGISTRY = "https://registry.npmjs.org"
OTHER_PLACES = (
    *("file:evil.tgz", "evil.tgz", "git+ssh://git@a.example/a.git#0", "http://[", "ftp://x/a/-/a-1.0.0.tgz"),
    *(f"{REGISTRY}/evil/-/evil-1.0.0.tgz", f"{REGISTRY}/a/-/a-2.0.0.tgz", f"{REGISTRY}/a-1.0.0.tgz"),
)  # fmt: skip


@pytest.mark.requirement("PKG-5")
def test_a_lock_of_npm_may_name_the_own_place_of_a_package():
    for url in (f"{REGISTRY}/a/-/a-1.0.0.tgz", "https://mirror.example/npm/a/-/a-1.0.0.tgz"):
        found = installable_package_lock(npm_lock(a={**NPM_ENTRY, "resolved": url}))
        assert packages_of(found) == (Package("a", "1.0.0"),)
    alias = {**NPM_ENTRY, "name": "@b/c", "resolved": f"{REGISTRY}/@b/c/-/c-1.0.0.tgz"}
    assert packages_of(installable_package_lock(npm_lock(a=alias))) == (Package("@b/c", "1.0.0"),)


def test_a_lock_of_npm_names_its_packages():
    found = installable_package_lock(npm_lock(a=NPM_ENTRY, **{"a/node_modules/@b/c": BUNDLED}))
    assert packages_of(found) == (Package("a", "1.0.0"), Package("@b/c", "1.0.0"))
    assert dict(found.requirements) == {"a": "^1"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"{}", b'{"packages": 7}', b'{"packages": {}}', b"[" * 100_000),
        npm_lock(a={"version": "1.0.0"}),
        npm_lock(a={"version": "1.0.0", "integrity": SHA1}),
        npm_lock(a={"version": "1.0.0", "integrity": "sha512-x"}),
        npm_lock(a=NPM_ENTRY, b={"resolved": "../up", "link": True}),
        npm_lock(a=NPM_ENTRY).replace(b'{"":', b'{"members/b": {"version": "1.0.0"}, "":'),
        b" " * (MAX_INSTALLED_BYTES + 1),
        # npm installs what is at the URL, from a registry or not.
        *(npm_lock(a={**NPM_ENTRY, "resolved": url}) for url in OTHER_PLACES),
        npm_lock(a=NPM_ENTRY, b={**BUNDLED, "resolved": "file:evil.tgz"}),
    ],
)
def test_other_locks_of_npm_are_refused(content):
    with pytest.raises(BadInput) as told:
        installable_package_lock(content)
    assert told.value.code == "CW-BAD-LOCK"
