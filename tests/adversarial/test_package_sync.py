"""`packages sync` into directories that an attacker has prepared (PKG-1, PKG-5)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import need
from interfaces.test_cli_process import cellwall
from registries import build_tarball
from tiny_index import tiny_index, use_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("cold", reason="every sync has a cell of its own"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    with tiny_index(folder) as registries:
        registries.add_npm("@zoo/lines", "1.2.0")
        yield registries, folder


@pytest.fixture
def index(served, monkeypatch):
    use_config(monkeypatch, served[1])
    return served[0]


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    return folder


def sync(lock, app):
    return cellwall("packages", "sync", str(lock), "--workspace", str(app), "--json")


@pytest.fixture
def pylock(index, tmp_path):
    lock = tmp_path / "pylock.toml"
    made = cellwall("packages", "lock", "tiny", "-o", str(lock))
    assert made.returncode == 0, made.stderr
    return lock


@pytest.mark.requirement("PKG-5")
def test_a_prepared_environment_is_not_taken_for_the_packages_of_the_lock(pylock, app):
    assert sync(pylock, app).returncode == 0
    (site,) = app.glob(".venv/lib/*/site-packages")
    module = site / "tiny" / "__init__.py"
    honest = module.read_text()
    module.write_text("ANSWER = 'changed'\n")
    (site / "evil.pth").write_text("import os\n")
    done = sync(pylock, app)
    assert done.returncode == 0, done.stdout
    assert module.read_text() == honest
    assert not (site / "evil.pth").exists()
    assert os.listdir(app) == [".venv"]


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("target", [".", "../outside"])
def test_a_link_in_the_place_of_the_environment_is_replaced(pylock, app, tmp_path, target):
    for folder in (app / "src", tmp_path / "outside"):
        folder.mkdir()
        (folder / "keep.txt").write_text("mine")
    for name in (".venv", ".cellwall-sync", ".cellwall-cache"):
        (app / name).symlink_to(target)
    done = sync(pylock, app)
    assert done.returncode == 0, done.stdout
    assert not (app / ".venv").is_symlink()
    assert list(app.glob(".venv/lib/*/site-packages/tiny"))
    assert os.listdir(tmp_path / "outside") == os.listdir(app / "src") == ["keep.txt"]
    assert sorted(os.listdir(app)) == [".venv", "src"]


@pytest.mark.requirement("PKG-1", "PKG-5")
def test_a_prepared_cache_does_not_replace_the_registry(index, tmp_path, app):
    """npm takes a file that its cache has by its hash, and asks no registry about the package."""
    need(shutil.which("npm"), "npm")
    _, data = build_tarball("zoo-evil", "1.0.0", {"index.js": "module.exports = 'evil'\n"})
    (tmp_path / "evil.tgz").write_bytes(data)
    cache = [
        "npm",
        "cache",
        "add",
        str(tmp_path / "evil.tgz"),
        "--cache",
        str(app / ".cellwall-cache"),
    ]
    subprocess.run(cache, check=True, capture_output=True, timeout=120)
    evil = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    lock = write_npm_lock(app, "zoo-evil", "1.0.0", evil)
    assert sync(lock, app).returncode == 125
    assert not (app / "node_modules").exists()
    assert not (app / ".cellwall-cache").exists()


@pytest.mark.requirement("PKG-4", "PKG-5")
def test_no_file_of_the_workspace_changes_what_npm_installs(index, app):
    need(shutil.which("npm"), "npm")
    _, data = build_tarball("@zoo/lines", "1.2.0", {"index.js": "module.exports = 'evil'\n"})
    (app / "evil.tgz").write_bytes(data)
    evil = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    other = npm_lock("@zoo/lines", "1.2.0", evil)
    other["packages"]["node_modules/@zoo/lines"]["resolved"] = "file:evil.tgz"
    # npm prefers this one to package-lock.json.
    (app / "npm-shrinkwrap.json").write_text(json.dumps(other))
    settings = ["@zoo:registry=https://evil.example/", "registry=https://evil.example/"]
    settings += ["dry-run=true", "ignore-scripts=false", "package-lock=false", "offline=true"]
    (app / ".npmrc").write_text("\n".join(settings))
    honest = index.npm["@zoo/lines"]["versions"]["1.2.0"]["dist"]["integrity"]
    lock = write_npm_lock(app, "@zoo/lines", "1.2.0", honest)
    (app / "node_modules").symlink_to(".")
    done = sync(lock, app)
    assert done.returncode == 0, done.stdout
    assert (app / "node_modules/@zoo/lines/index.js").read_text() == "module.exports = 1\n"


def write_npm_lock(app, name, version, integrity):
    lock = app / "package-lock.json"
    lock.write_text(json.dumps(npm_lock(name, version, integrity)))
    (app / "package.json").write_text(json.dumps({"dependencies": {name: version}}))
    return lock


def npm_lock(name, version, integrity):
    entry = {
        "version": version,
        "resolved": f"https://registry.npmjs.org/{name}/-/{name.rpartition('/')[2]}-{version}.tgz",
        "integrity": integrity,
    }
    root = {"dependencies": {name: version}}
    return {
        "name": "app",
        "lockfileVersion": 3,
        "requires": True,
        "packages": {"": root, f"node_modules/{name}": entry},
    }
