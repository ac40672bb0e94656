"""Trees of earlier installations, when the verdict, the index or the tree has changed since (PKG)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import cellwall
from cellwall.core.types import RunCommand
from cellwall.packages.feed import Feed
from cellwall.runtime import package_installs, wiring
from conftest import audit_records
from interfaces.test_cli_process import DEADLINE_S, PROGRAM
from interfaces.test_package_installs import Stalling
from registries import serve_registries, write_registry_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("cold", reason="judged outside of both kinds of cells"),
]

DENY = '[permissions]\ndeny = ["Install(pypi:quagga-lines)"]\n'
PROGRAM_OF_ZEBRA = "[console_scripts]\nzebra = zebra_atlas:main\n"
BOTH = {("zebra-atlas", "1.0"), ("quagga-lines", "1.5")}


@pytest.fixture
def registries():
    with serve_registries() as served:
        files = {
            "zebra_atlas.py": "VERSION = '1.0'\ndef main(): print('striped')\n",
            "zebra_atlas-1.0.dist-info/entry_points.txt": PROGRAM_OF_ZEBRA,
        }
        served.add_wheel("zebra-atlas", "1.0", files, requires=["quagga-lines>=1"])
        served.add_wheel("quagga-lines", "1.5")
        served.add_wheel("okapi-maps", "1.0")
        yield served


@pytest.fixture
def config(tmp_path, registries):
    return write_registry_config(
        tmp_path / "config.toml", registries.base, 'without_feed = "allow"'
    )


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """The path of the user's policy, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "cellwall").mkdir()
    return tmp_path / "cellwall" / "policy.toml"


def uv_connections():
    """A package manager in a cell connects to the registry; the use of a tree does not."""
    return sum(record["body"].get("host") == "pypi.org" for record in audit_records())


@pytest.fixture
def install(config, policy, state_home):
    """Installs in a new sandbox; returns the result, and whether an earlier tree was used."""

    def in_sandbox(*, anew=False, then=None):
        if anew:  # as a new process, which has no index
            wiring.close_shared(state_home)
        before = uv_connections()
        with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
            done = sbx.packages.install("zebra-atlas")
            if then is not None:
                then(sbx, done)
        return {(each.name, each.version) for each in done.installed}, uv_connections() == before

    assert in_sandbox() == (BOTH, False)
    return in_sandbox


@pytest.mark.requirement("PKG-1", "PKG-5")
def test_the_second_sandbox_gets_the_same_as_the_first(config, install):
    """Files, programs, lock and record."""
    seen = []

    def look(sbx, done):
        assert sbx.run_code("import zebra_atlas; zebra_atlas.VERSION").value == "1.0"
        assert sbx.commands.run("zebra").stdout == "striped\n"
        recorded = sbx.run_code(
            "import importlib.metadata as m; [str(f) for f in m.files('zebra-atlas') if not f.locate().exists()]"
        )
        assert recorded.value == []
        served = [
            (r["body"]["file"], r["body"]["sha256"])
            for r in audit_records()
            if r["body"].get("event") == "package-served"
            and r["action_id"] == done.outcome.action_id
        ]
        listed = sbx.commands.run(
            "cd .local; find . -type f ! -name '*.pyc' | sort | xargs sha256sum"
        ).stdout
        seen.append((sorted(served), sbx.files.read("pylock.toml"), listed))
        # An environment that exists is not replaced by a tree.
        before = uv_connections()
        sbx.packages.install("okapi-maps").raise_for_status()
        assert uv_connections() > before
        assert sbx.run_code("import okapi_maps, zebra_atlas; okapi_maps.VERSION").value == "1.0"

    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        look(sbx, sbx.packages.install("zebra-atlas").raise_for_status())
    wiring.close_shared(os.environ["CELLWALL_HOME"])
    for path in os.scandir(f"{os.environ['CELLWALL_HOME']}/packages/trees"):
        os.unlink(path)
    assert install(then=look) == (BOTH, False)
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 2


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_a_tree_with_a_package_that_a_rule_denies_by_now_is_not_used(install, policy):
    policy.write_text(DENY)
    policy.chmod(0o600)
    assert install() == (set(), False)
    policy.unlink()
    assert install() == (BOTH, True)


@pytest.mark.requirement("PKG-1")
def test_a_tree_with_a_package_that_is_malicious_by_now_is_not_used(install, state_home, tmp_path):
    def learn(version):
        package = {"ecosystem": "PyPI", "name": "quagga-lines"}
        record = {"id": "MAL-1", "modified": datetime.now(UTC).isoformat()}
        record["affected"] = [{"package": package, "versions": [version]}]
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.writestr("MAL-1.json", json.dumps(record))
        Feed(f"{state_home}/packages").import_archive(str(tmp_path / "all.zip"), source="test")

    learn("9.9")
    assert install() == (BOTH, True)
    learn("1.5")
    assert install()[1] is False  # although the index is younger than a minute
    assert install(anew=True) == (set(), False)


@pytest.mark.requirement("PKG-1")
def test_a_newer_version_is_installed_in_place_of_the_tree(install, registries):
    assert install(anew=True) == (BOTH, True)
    registries.add_wheel("quagga-lines", "1.6")
    newer = {("zebra-atlas", "1.0"), ("quagga-lines", "1.6")}
    assert install(anew=True) == (newer, False)
    assert install() == (newer, True)


@pytest.mark.requirement("PKG-5")
def test_a_tree_that_was_changed_is_not_used(install, state_home):
    (entry,) = os.scandir(f"{state_home}/packages/trees")
    with open(entry.path, "r+b") as file:
        content = file.read()
        file.seek(content.index(b"striped"))
        file.write(b"stripes")

    def look(sbx, _done):
        assert sbx.commands.run("zebra").stdout == "striped\n"

    assert install(then=look) == (BOTH, False)
    assert install(then=look) == (BOTH, True)


@pytest.mark.requirement("PKG-1")
def test_a_tree_belongs_to_its_state_folder(install, config, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    assert install() == (BOTH, True)
    monkeypatch.setenv("CELLWALL_HOME", str(other))
    try:
        assert install() == (BOTH, False)
    finally:
        wiring.close_shared(str(other))


def test_sandboxes_use_one_tree_at_once(install, config):
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        before = uv_connections()
        with ThreadPoolExecutor(3) as threads:
            others = [threads.submit(install) for _ in range(2)]
            own = threads.submit(sbx.packages.install, "zebra-atlas")
            assert [each.result()[0] for each in others] == [BOTH, BOTH]
            own.result().raise_for_status()
        assert uv_connections() == before
        # Two at once in one sandbox: one environment, whole.
        assert sbx.commands.run("zebra").stdout == "striped\n"


def test_a_process_that_is_killed_meanwhile_leaves_no_environment(
    install, config, registries, tmp_path
):
    project = tmp_path / "project"
    project.mkdir()
    words = [PROGRAM, "packages", "install", "--config", config, "--workspace", str(project)]
    pages = registries.pypi = Stalling(registries.pypi, "quagga-lines")
    with subprocess.Popen([*words, "zebra-atlas"], stderr=subprocess.PIPE) as process:
        assert pages.asked.wait(DEADLINE_S)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    pages.released.set()
    assert not {"pylock.toml", ".cellwall-packages"} & {each.name for each in project.iterdir()}
    done = subprocess.run(
        [*words, "zebra-atlas"], capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"Installed 2 packages" in done.stderr
    assert {"pylock.toml", ".cellwall-packages"} <= {each.name for each in project.iterdir()}


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("is_kept", [True, False], ids=["by the tree", "by the package manager"])
def test_a_lock_names_no_package_that_could_not_be_put_in_its_place(
    config, install, monkeypatch, is_kept
):
    """The cell that fills the workspace fails behind the lock, as on a full disk."""
    make_step, steps = package_installs._cell_action, []

    def fail_last(action, operation, base, step):
        steps.append(step)
        made = make_step(action, operation, base, step)
        if step in ("fill", "commit"):
            made = replace(made, operation=RunCommand(("/bin/false",), "/"))
        return made

    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        if not is_kept:
            sbx.packages.install("okapi-maps").raise_for_status()
        before = sbx.files.read("pylock.toml") if sbx.files.exists("pylock.toml") else ""
        with monkeypatch.context() as broken:
            broken.setattr(package_installs, "_cell_action", fail_last)
            assert sbx.packages.install("zebra-atlas").outcome.status != "ok"
        assert steps == (["fill"] if is_kept else ["stage", "commit"])
        after = sbx.files.read("pylock.toml") if sbx.files.exists("pylock.toml") else ""
        assert after == before
        sbx.packages.install("zebra-atlas").raise_for_status()  # the control
        assert "zebra" in sbx.files.read("pylock.toml")
