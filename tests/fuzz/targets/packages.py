"""What registries, package managers and users hand over: archives, indices, locks, advisories."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from contextlib import suppress

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import UnsafeArchive, read_archive
from cellwall.packages.inspection.artifact import inspect_artifact
from cellwall.packages.licenses import judge_license
from cellwall.packages.locks.installable import (
    installable_package_lock,
    installable_pylock,
    pins_of,
)
from cellwall.packages.locks.model import BadLock
from cellwall.packages.locks.npm import parse_package_lock
from cellwall.packages.locks.pylock import parse_pylock
from cellwall.packages.locks.requirements import parse_requirements
from cellwall.packages.locks.uv import parse_uv_lock
from cellwall.packages.locks.workspace import read_workspace_lock
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.osv import BadAdvisory, parse_advisory
from cellwall.packages.registry import messages, npm, pypi
from cellwall.sandbox.files.tar_reader import TarArchive, TarBytes
from fuzz.targets import target, text_of

_ZIP = (
    b"PK\3\4",
    b"PK\1\2",
    b"PK\5\6",
    b"PK\6\6",
    b"PK\6\7",
    b"\xff\xff\xff\xff",
    b".dist-info/RECORD",
    b".py",
)
_TAR = (
    b"ustar\x0000",
    b"ustar  \0",
    b"././@LongLink",
    b"25 path=a/b\n",
    b"GNU.sparse.",
    b"\x1f\x8b\x08",
    bytes(64),
)


@target("packages.inspection", tokens=(*_ZIP, *_TAR), max_bytes=4096)
def package_archive(data: bytes) -> None:
    """Wheels, source archives and npm tarballs: a verdict for any bytes, and zipfile reads the same"""
    kinds = (
        (Ecosystem.PYPI, "thing-1.0-py3-none-any.whl"),
        (Ecosystem.PYPI, "thing-1.0.tar.gz"),
        (Ecosystem.NPM, "thing-1.0.0.tgz"),
    )
    ecosystem, filename = kinds[data[0] % 3 if data else 0]
    data = data[1:]
    with tempfile.TemporaryFile() as stream:
        stream.write(data)
        found = inspect_artifact(ecosystem, "thing", "1.0", filename, stream, rank=None)
    assert found.verdict in Verdict
    try:
        members = read_archive(io.BytesIO(data), filename, len(data))
        read = {each.name: each.read(each.size) for each in members}
    except UnsafeArchive:
        return
    if filename.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert read == {name: archive.read(name) for name in archive.namelist()}


@target("sandbox.files.tar_reader", tokens=_TAR, max_bytes=4096)
def uploaded_tar(data: bytes) -> None:
    """Tar archives that are uploaded into a sandbox: relative paths without `..`, or a refusal"""
    archive = TarArchive(TarBytes(io.BytesIO(data)))
    total = 0
    try:
        for member in archive.members(most=100):
            parts = member.path.split("/")
            assert not member.path.startswith("/")
            assert ".." not in parts
            if member.size_bytes > 1 << 20:
                return
            total += sum(map(len, archive.content()))
            assert total <= 1032 * (len(data) + 512)
    except CellwallError as error:
        assert error.code.startswith("CW-")  # noqa: PT017


_JSON_TOKENS = (
    b'{"',
    b'":',
    b'"}',
    b"[",
    b"]",
    b"null",
    b"true",
    b"1e999",
    b"\\ud800",
    b"NaN",
    b"-0",
    b"9999999999",
)


@target("packages.registry.pypi", tokens=(
    b'"files":[', b'"filename":"thing-1.0-py3-none-any.whl"', b'"url":"', b'"hashes":{"sha256":"', b'"yanked":',
    b'"upload-time":"2026-01-01T00:00:00Z"', b'"requires-python":">=3"', b'"core-metadata":', b'"size":', b'"provenance":',
    b'"project-status":{"status":"', b'<a href="thing-1.0.tar.gz#sha256=', b"<meta name=pypi:project-status content=",
    b'"releases":{', b'"digests":{"sha256":', b'"info":{', b'"license_expression":', b'"classifiers":[', *_JSON_TOKENS,
))  # fmt: skip
def pypi_index(data: bytes) -> None:
    """Indices of PyPI in JSON and HTML: facts, and a page that reads as the same index, or one error"""
    kinds = (pypi.JSON_TYPE, pypi.HTML_TYPE)
    kind, data = kinds[data[0] % 2 if data else 0], data[1:]
    with suppress(pypi.BadIndex):
        pypi.parse_license("thing", data)
    try:
        index = pypi.parse_index("thing", data, kind, "https://pypi.org/simple/thing/")
    except pypi.BadIndex:
        return
    with suppress(pypi.BadIndex):
        pypi.add_upload_times(index, data)
    facts = pypi.project_facts(index)
    shown = pypi.filter_index(index, facts.releases)
    for kind, page in (
        (pypi.JSON_TYPE, pypi.render_json(shown)),
        (pypi.HTML_TYPE, pypi.render_html(shown)),
    ):
        again = pypi.parse_index("thing", page, kind, "https://pypi.org/simple/thing/")
        assert [(each.filename, each.sha256, each.url) for each in again.files] == [
            (each.filename, each.sha256, each.url) for each in shown.files
        ]


@target("packages.registry.npm", "packages.licenses", tokens=(
    b'"name":"thing"', b'"versions":{"1.0.0":{', b'"version":"1.0.0"', b'"dist":{', b'"tarball":"https://', b'"integrity":"sha512-',
    b'"dist-tags":{"latest":"', b'"time":{', b'"scripts":{"install":', b'"deprecated":', b'"_npmUser":{"name":', b'"maintainers":[',
    b'"license":"MIT"', b'"attestations":', *_JSON_TOKENS,
))  # fmt: skip
def npm_index(data: bytes) -> None:
    """Indices of npm: facts and a document for clients that reads as the same index, or one error"""
    try:
        found = npm.parse_packument("thing", data)
        facts = npm.project_facts(found)
    except pypi.BadIndex:
        return
    for release in facts.releases.values():
        judge_license(release.license, ("GPL-3.0-only",))
    shown = npm.filter_packument(found, found.versions)
    again = npm.parse_packument("thing", npm.render_packument(shown, is_abbreviated=False))
    assert again.versions.keys() == found.versions.keys()
    json.loads(npm.render_packument(shown, is_abbreviated=True))


_LOCK_TOKENS = (
    b'lock-version = "1.0"', b"[[packages]]", b'name = "thing"', b'version = "1.0"', b"wheels = [", b"hashes = {sha256 = ",
    b'url = "https://', b"[[package]]", b"source = { registry = ", b"sdist = {", b'"lockfileVersion":3', b'"packages":{',
    b'"node_modules/a":{', b'"resolved":"https://registry.npmjs.org/', b'"integrity":"sha512-', b'"dependencies":{',
    b"thing==1.0 --hash=sha256:", b" \\\n", b"    # via", b"-r ", b"-e ", b"--index-url ", b"; python_version < '3'", *_JSON_TOKENS,
)  # fmt: skip
_LOCKS = (
    parse_pylock,
    parse_uv_lock,
    parse_requirements,
    parse_package_lock,
    read_workspace_lock,
    installable_pylock,
    installable_package_lock,
)


@target("packages.locks", tokens=_LOCK_TOKENS, max_bytes=4096)
def lock_file(data: bytes) -> None:
    """Lock files of pip, uv and npm: packages with canonical names, or one error"""
    parse = _LOCKS[data[0] % len(_LOCKS) if data else 0]
    try:
        lock = parse(data[1:])
    except BadLock as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    for package in getattr(lock, "packages", ()):
        assert canonical_name(package.ecosystem, package.name) == package.name
        assert package.purl.isascii()
    if parse is installable_pylock:
        pins_of(lock)


@target("packages.osv", tokens=(
    b'"id":"MAL-2024-1"', b'"modified":"2026-01-01T00:00:00Z"', b'"affected":[{', b'"package":{"ecosystem":"PyPI","name":"a"}',
    b'"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"}', b'{"fixed":"', b'"versions":["', b'"withdrawn":', b'"npm"',
    b'"last_affected":"', *_JSON_TOKENS,
))  # fmt: skip
def osv_advisory(data: bytes) -> None:
    """OSV advisories: answers for any version, or one error"""
    try:
        found = parse_advisory(data)
    except BadAdvisory:
        return
    for affected in found.affected:
        for version in ("1.0", "1.0.0-rc.1", None, "not a version"):
            affected.covers(version)
            if version is not None:
                affected.fixed_in(version)


@target("packages.names", "packages.licenses", "packages.registry.messages", tokens=(
    b"@scope/", b"MIT", b" OR ", b" AND ", b" WITH ", b"(", b")", b"bytes=", b"-", b'W/"', "é".encode(), b"..", b"_", b"GPL-2.0+",
), max_bytes=6000)  # fmt: skip
def package_words(data: bytes) -> None:
    """Names of packages, SPDX expressions and Range headers: one spelling, or the declared error"""
    text = text_of(data)
    for ecosystem in Ecosystem:
        try:
            name = canonical_name(ecosystem, text)
        except BadInput as error:
            assert str(error).isprintable()  # noqa: PT017
        else:
            assert canonical_name(ecosystem, name) == name
    judge_license(text, ("GPL-3.0-only",))
    bounds = messages._bounds(text.strip(), 1000)
    if bounds is not None:
        assert bounds[0] >= 0
        assert bounds[1] <= 1000
    split = pypi.split_filename(text)
    assert split is None or pypi.split_filename(f"{split[0]}-{split[1]}.tar.gz") is not None
