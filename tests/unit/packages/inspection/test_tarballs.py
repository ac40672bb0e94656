"""npm packages that run code when they are installed (PKG-1, PKG-3)."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import read_archive
from cellwall.packages.inspection.tarballs import inspect_tarball


def inspect(manifest, **files):
    data = io.BytesIO()
    raw = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in {"package.json": raw, **files}.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data.seek(0)
    members = read_archive(data, "x.tgz", len(data.getvalue()))
    return [(each.code, each.verdict) for each in inspect_tarball(members, "@zoo/zebra", "1.0.0")]


def manifest(**changes):
    return {"name": "@zoo/zebra", "version": "1.0.0", **changes}


def test_an_ordinary_package_has_no_finding():
    ordinary = manifest(scripts={"test": "x", "prepare": "y"}, bin={"zebra": "cli.js"})
    assert inspect(ordinary, **{"index.js": b"1"}) == []


@pytest.mark.requirement("PKG-3")
@pytest.mark.parametrize("script", ["preinstall", "install", "postinstall"])
def test_an_install_script_is_asked_about(script):
    assert inspect(manifest(scripts={script: "node x.js"})) == [("install-script", Verdict.ASK)]


def test_a_build_file_runs_a_compiler_without_any_script():
    assert inspect(manifest(), **{"binding.gyp": b"{}"}) == [("install-script", Verdict.ASK)]


@pytest.mark.requirement("PKG-1")
def test_a_command_of_the_system_may_not_be_replaced():
    assert inspect(manifest(bin={"git": "x.js", "zebra": "y.js"})) == [
        ("system-command", Verdict.DENY)
    ]


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "data",
    [manifest(name="other"), manifest(version="2.0.0"), b"", b"{", b"[]", b'"x"', b"[" * 50_000, {"scripts": 5}],
)  # fmt: skip
def test_a_manifest_of_another_package_or_none_is_found(data):
    assert inspect(data)[0] == ("metadata", Verdict.DENY)


def test_native_code_is_named():
    assert inspect(manifest(), **{"build/x.node": b""}) == [("native-code", Verdict.ALLOW)]
