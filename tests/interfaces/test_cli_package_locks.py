"""`cellwall packages lock | sync`: real uv and npm in cells, from a registry on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import audit_records, need
from interfaces.test_cli_process import cellwall
from tiny_index import tiny_index, use_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    with tiny_index(folder) as registries:
        registries.add_wheel("zebra-atlas", "1.0", requires=["tiny"])
        registries.add_npm("@zoo/zebra", "1.0.0", dependencies={"zoo-lines": "^1"})
        registries.add_npm("zoo-lines", "1.2.0")
        yield registries, folder


@pytest.fixture
def index(served, monkeypatch):
    use_config(monkeypatch, served[1])
    return served[0]


def told(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def refusal(done: subprocess.CompletedProcess) -> str:
    assert (done.returncode, done.stderr) == (125, b""), done.stdout
    return json.loads(done.stdout)["error"]["code"]


@pytest.mark.requirement("PKG-4", "PKG-5")
def test_a_workspace_is_installed_from_a_lock_of_pypi(index, tmp_path, state_home):
    lock, app = tmp_path / "pylock.toml", tmp_path / "app"
    app.mkdir()
    (app / "uv.toml").write_text('index-url = "https://evil.example/simple"\n')
    (app / "keep.txt").write_text("mine")
    made = cellwall("packages", "lock", "zebra-atlas", "-o", str(lock))
    assert (made.returncode, made.stdout.decode()) == (0, f"{lock}: 2 locked\n"), made.stderr
    assert made.stderr == b"cellwall: resolving\n"
    digests = [entry["files"][0]["hashes"]["sha256"] for entry in index.pypi.values()]
    assert all(digest in lock.read_text() for digest in digests)
    found = told(cellwall("packages", "sync", str(lock), "--workspace", str(app), "--json"))
    packages = {"tiny": "1.0", "zebra-atlas": "1.0"}
    assert found == {"ecosystem": "pypi", "workspace": str(app), "packages": packages}
    assert sorted(os.listdir(app)) == [".venv", "keep.txt", "uv.toml"]
    used = [".venv/bin/python", "-c", "import tiny, zebra_atlas; print(tiny.ANSWER)"]
    ran = cellwall("run", "--workspace", f"{app}:ro", "--", *used)
    assert ran.stdout == b"42\n", ran.stderr
    causes = [r["body"]["package"] for r in audit_records() if "package" in r["body"]]
    assert set(causes) == {"pkg:pypi/tiny@1.0", "pkg:pypi/zebra-atlas@1.0"}
    # A changed hash is refused, and the packages stay as they were.
    lock.write_text(lock.read_text().replace(digests[0], "00" * 32))
    shutil.rmtree(app / ".venv")
    refused = cellwall("packages", "sync", str(lock), "--workspace", str(app), "--json")
    assert refusal(refused) == "CW-TEMPLATE-HASH"
    assert not list(app.glob(".venv/lib/*/site-packages/tiny"))
    assert not (app / ".cellwall-cache").exists()
    assert os.listdir(os.path.join(state_home, "workspaces")) == []


@pytest.mark.requirement("PKG-4", "PKG-5")
def test_a_workspace_is_installed_from_a_lock_of_npm_and_a_changed_hash_is_refused(index, tmp_path):
    need(shutil.which("npm"), "npm")
    lock, app = tmp_path / "package-lock.json", tmp_path / "app"
    app.mkdir()
    (app / ".npmrc").write_text("ignore-scripts=false\nregistry=https://evil.example/\n")
    words = ["packages", "lock", "--ecosystem", "npm", "@zoo/zebra@^1", "-o", str(lock), "--json"]
    assert told(cellwall(*words))["packages"] == {"@zoo/zebra": "1.0.0", "zoo-lines": "1.2.0"}
    sync = ["packages", "sync", str(lock), "--workspace", str(app), "--json"]
    assert told(cellwall(*sync))["packages"]["zoo-lines"] == "1.2.0"
    assert Path(app, "node_modules/@zoo/zebra/package.json").exists()
    assert not (app / ".cellwall-cache").exists()
    # The person's own lock is not replaced by another one.
    content = lock.read_text()
    digest = index.npm["zoo-lines"]["versions"]["1.2.0"]["dist"]["integrity"]
    lock.write_text(content.replace(digest, "sha512-" + "A" * 86 + "=="))
    assert refusal(cellwall(*sync)) == "CW-BAD-LOCK"
    (app / "package-lock.json").unlink()
    assert refusal(cellwall(*sync)) == "CW-TEMPLATE-HASH"
    assert not (app / ".cellwall-cache").exists()
