"""`cellwall packages`: judge, audit, list and explain packages (PKG-1, PKG-5)."""

from __future__ import annotations

import json
import zipfile

import anyio
import pytest

from cellwall.admin.templates import Environment, Templates
from cellwall.core.network import EgressContext
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.inventory import InstalledPackage
from cellwall.packages.names import Ecosystem
from cellwall.runtime.package_record import PackageRecord
from cellwall.runtime.wiring import open_app
from interfaces.test_cli_process import error_code, in_process
from registries import serve_registries, write_registry_config


@pytest.fixture(scope="module")
def registries():
    with serve_registries() as served:
        served.add_wheel("zebra-atlas", "1.0", requires=["quagga-lines"])
        served.add_wheel("quagga-lines", "1.5")
        served.add_npm("zoo-keeper", "1.0.0")
        yield served


@pytest.fixture
def config(tmp_path, registries):
    return "--config", write_registry_config(tmp_path / "config.toml", registries.base)


@pytest.fixture
def feed(tmp_path, config):
    """A feed that knows one malicious and one vulnerable package."""
    records = [
        _record("MAL-2026-1", "npm", "evil-keeper", [{"introduced": "0"}]),
        _record("GHSA-1", "PyPI", "quagga-lines", [{"introduced": "0"}, {"fixed": "1.6"}]),
        _record("MAL-2026-2", "PyPI", "evil-atlas", [{"introduced": "0"}]),
    ]
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for each in records:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    done = in_process("packages", "feed", "import", str(path), *config, "--json")
    assert json.loads(done.stdout) == {
        "advisories": 3,
        "withdrawn": 0,
        "unreadable": 0,
        "older": False,
    }
    return path


def _record(identifier, ecosystem, name, events):
    package = {"ecosystem": ecosystem, "name": name}
    affected = [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]
    return {"id": identifier, "modified": "2026-11-01T00:00:00Z", "affected": affected}


def lock_text(registries, *, zebra=None):
    """A requirements.txt with the hashes of the registry, or with another one."""
    served = {
        name: project["files"][0]["hashes"]["sha256"] for name, project in registries.pypi.items()
    }
    return (
        f"zebra-atlas==1.0 --hash=sha256:{zebra or served['zebra-atlas']}\n    # via -r in.txt\n"
        f"quagga-lines==1.5 --hash=sha256:{served['quagga-lines']}\n    # via zebra-atlas\n"
    )


@pytest.mark.usefixtures("feed")
def test_verify_and_feed_status_answer_in_text_and_json(config):
    done = in_process("packages", "verify", "--json", *config, "zebra-atlas")
    (found,) = json.loads(done.stdout)
    contract = {key: found[key] for key in ("name", "verdict", "reasons", "suggestion")}
    assert (done.returncode, contract) == (
        0,
        {"name": "zebra-atlas", "verdict": "allow", "reasons": [], "suggestion": None},
    )
    assert in_process("packages", "verify", *config, "evil-atlas").returncode == 4
    status = json.loads(in_process("packages", "feed", "status", "--json", *config).stdout)
    (source,) = status["sources"]
    assert (source["source"], source["malicious"]) == ("file all.zip (pypi)", 2)
    assert source["ecosystems"] == ["npm", "pypi"]
    assert {name: each["fresh"] for name, each in status["feeds"].items()} == {
        "pypi": True,
        "npm": True,
    }
    snapshot = status["snapshots"]["npm"]
    assert (snapshot["day"], snapshot["versions"] > snapshot["names"]) == ("2026-04-06", True)
    assert snapshot["source"].startswith("hulud-party-scanner ")
    shown = in_process("packages", "feed", "status", *config).stdout.decode()
    assert "2 malicious" in shown
    assert "packages, 2026-04-06 (hulud-party-scanner 1.5.0 (ISC))" in shown


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("profile", "code"), [("paranoid", 4), ("production", 3), ("development", 3)]
)
def test_a_missing_feed_is_answered_as_the_profile_says(profile, code):
    words = ("packages", "verify", "--offline", "--profile", profile, "requests")
    assert in_process(*words).returncode == code
    status = in_process("packages", "feed", "status", "--profile", profile)
    verdict = {3: "ask", 4: "deny"}[code]
    assert f"the feed about pypi is missing: packages are answered with {verdict}" in (
        status.stdout.decode()
    )


@pytest.mark.requirement("PKG-5")
@pytest.mark.usefixtures("feed")
def test_audit_finds_changed_hashes_malicious_and_vulnerable_entries(tmp_path, registries, config):
    lock = tmp_path / "requirements.txt"
    lock.write_text(lock_text(registries))
    done = in_process("packages", "audit", *config, str(lock))
    # A known vulnerability is asked about.
    assert done.returncode == 3, done.stderr
    assert done.stdout.decode() == (
        "ask   quagga-lines 1.5  (requirements.txt)\n"
        "      quagga-lines 1.5 has a known vulnerability: GHSA-1\n"
        "      GHSA-1: fixed in 1.6\n"
        "2 packages: 1 allow, 1 ask\n"
    )
    lock.write_text(lock_text(registries, zebra="0" * 64))
    other = tmp_path / "package-lock.json"
    other.write_text(
        json.dumps(
            {
                "packages": {
                    "": {"dependencies": {"evil-keeper": "1"}},
                    "node_modules/evil-keeper": {"version": "1.0.0"},
                }
            }
        )
    )
    done = in_process("packages", "audit", *config, "--json", str(lock), str(other))
    report = json.loads(done.stdout)
    assert (done.returncode, report["counts"]) == (4, {"allow": 0, "ask": 1, "deny": 2})
    found = {each["name"]: each for each in report["packages"]}
    assert found["zebra-atlas"]["codes"] == ["hash-changed"]
    assert found["quagga-lines"]["advisories"] == [
        {"id": "GHSA-1", "malicious": False, "fixed": "1.6"}
    ]
    assert "malicious" in found["evil-keeper"]["codes"]
    offline = in_process("packages", "audit", "--offline", "--json", *config, str(lock))
    assert json.loads(offline.stdout)["counts"] == {"allow": 1, "ask": 1, "deny": 0}


def test_a_missing_feed_is_named_once_and_asked_about(tmp_path, registries, config):
    lock = tmp_path / "requirements.txt"
    lock.write_text(lock_text(registries))
    done = in_process("packages", "audit", *config, "--offline", str(lock))
    assert done.returncode == 3
    assert done.stdout.decode().splitlines() == [
        "the feed of malicious packages is missing; run: cellwall packages feed update",
        "2 packages: 2 ask",
    ]


def test_sources_that_cannot_be_read_are_refused_with_a_hint(tmp_path, config):
    broken = tmp_path / "uv.lock"
    broken.write_text("[")
    cases = {
        ("audit",): "CW-USAGE",
        ("audit", str(broken)): "CW-BAD-LOCK",
        ("audit", str(broken), "--template", "x"): "CW-USAGE",
        ("audit", "--sandbox", "sbx_" + "0" * 20): "CW-NO-RECORD",
        ("why", "requests", "--offline", "--lock", str(broken)): "CW-BAD-LOCK",
        ("why", "../x", "--offline"): "CW-BAD-PACKAGE",
    }
    for words, code in cases.items():
        done = in_process("packages", *words, *config)
        assert (done.returncode, error_code(done)) == (125, code), words


@pytest.fixture
def recorded(config):
    """The audit log of an action that got one package and was refused another."""
    app = open_app(config=config[1])
    record = PackageRecord(app.audit)
    who = EgressContext(
        action_id="act_" + "1" * 20, principal="user", interface="cli", session_id="sbx_" + "2" * 20
    )
    anyio.run(
        record.note_install,
        InstalledPackage(
            Ecosystem.PYPI, "zebra-atlas", "1.0", "zebra_atlas-1.0-py3-none-any.whl", "", "sha256", "a" * 64, 9
        ),
        who,
    )  # fmt: skip
    reason = Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unknown", "zebra-atlsa is not on pypi")
    refused = PackageVerdict(Ecosystem.PYPI, "zebra-atlsa", None, (reason,), "zebra-atlas")
    anyio.run(record.note_refusal, refused, who)
    return who


def test_an_sbom_of_an_action_names_the_audit_record(recorded, tmp_path, config):
    for option, subject in (("--action", recorded.action_id), ("--session", recorded.session_id)):
        done = in_process("packages", "sbom", option, subject)
        document = json.loads(done.stdout)
        (component,) = document["components"]
        assert component["purl"] == "pkg:pypi/zebra-atlas@1.0"
        assert component["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
        values = {each["name"]: each["value"] for each in component["properties"]}
        assert values["cellwall:action"] == recorded.action_id
        shown = in_process("audit", "show", values["cellwall:audit-id"], "--json")
        assert b"package-served" in shown.stdout
    target = tmp_path / "sbom.json"
    done = in_process("packages", "sbom", "--session", recorded.session_id, "-o", str(target))
    assert (done.returncode, done.stdout) == (0, b"")
    assert json.loads(target.read_bytes())["bomFormat"] == "CycloneDX"
    lines = in_process("audit", "search", "--text", "zebra").stdout.decode()
    assert "package-served pypi zebra-atlas 1.0 sha256:aaaa" in lines
    assert "package-refused pypi zebra-atlsa (deny) zebra-atlsa is not on pypi" in lines
    audited = in_process(
        "packages", "audit", "--offline", "--json", "--sandbox", recorded.session_id, *config
    )
    assert [each["name"] for each in json.loads(audited.stdout)["packages"]] == ["zebra-atlas"]


@pytest.mark.usefixtures("feed")
def test_why_tells_the_path_the_actions_and_the_verdict(recorded, tmp_path, registries, config):
    lock = tmp_path / "requirements.txt"
    lock.write_text(lock_text(registries))
    done = in_process("packages", "why", "quagga_lines", "--lock", str(lock), *config)
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [
        "requirements.txt: zebra-atlas 1.0 -> quagga-lines 1.5",
        "the audit log has no action that asked for quagga-lines",
        "today: allow",
        "      quagga-lines 1.5 has a known vulnerability: GHSA-1",
    ]
    done = in_process("packages", "why", "zebra-atlas", "--json", *config)
    report = json.loads(done.stdout)
    (action,) = report["actions"]
    assert (action["action"], action["result"], action["version"]) == (
        recorded.action_id,
        "installed",
        "1.0",
    )
    done = in_process("packages", "why", "zebra-atlsa", *config)
    shown = done.stdout.decode()
    assert done.returncode == 4
    assert f"refused by {recorded.action_id}" in shown
    assert "      zebra-atlsa is not on pypi\n      use instead: zebra-atlas\n" in shown
    assert "today: deny\n" in shown


def test_the_packages_of_a_template_are_audited_without_hashes(config, monkeypatch):
    for name, code in (("../x", "CW-NO-TEMPLATE"), ("python-data", "CW-TEMPLATE-NOT-BUILT")):
        assert error_code(in_process("packages", "sbom", "--template", name)) == code
    built = Environment("python-data", "/x", "3.11", 1, (("Requests", "2.32.3"),))
    monkeypatch.setattr(Templates, "find", lambda *_: built)
    done = in_process(
        "packages", "audit", "--offline", "--json", "--template", "python-data", *config
    )
    (found,) = json.loads(done.stdout)["packages"]
    assert (found["name"], found["version"], found["codes"]) == ("requests", "2.32.3", ["feed"])
    document = json.loads(in_process("packages", "sbom", "--template", "python-data").stdout)
    assert document["components"][0]["purl"] == "pkg:pypi/requests@2.32.3"
