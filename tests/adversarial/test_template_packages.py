"""The packages of a template that was built before, when the verdict on one has changed (PKG)."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime

import pytest

import cellwall
from cellwall.packages.feed import Feed
from conftest import audit_records
from registries import serve_registries, write_registry_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("cold", reason="judged outside of both kinds of cells"),
]

SCRIPT = ["python3", "-c", "import zebra_atlas; print(zebra_atlas.VERSION)"]
DENY = '[permissions]\ndeny = ["Install(pypi:quagga-lines)"]\n'


@pytest.fixture(scope="module")
def registries():
    with serve_registries() as served:
        served.add_wheel("zebra-atlas", "1.0", requires=["quagga-lines>=1"])
        served.add_wheel("quagga-lines", "1.5")
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


@pytest.fixture
def run(config, policy):
    def in_cell(**options):
        return cellwall.run_command(
            SCRIPT, packages=["zebra-atlas"], config=config, timeout=120, **options
        )

    # Built here, and used again by every test.
    first = in_cell()
    assert first.stdout == "1.0\n", first.outcome
    return in_cell


def refusal_of(execution):
    error = execution.outcome.error
    assert error is not None, execution.outcome
    return execution.outcome.status.value, error.code, error.message.partition(": ")[2]


@pytest.mark.requirement("PKG-1")
def test_the_second_sandbox_takes_nothing_from_the_registry(run, registries):
    registries.seen.clear()
    assert run().stdout == "1.0\n"
    assert registries.seen == []


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_a_package_that_a_rule_denies_by_now_is_not_in_a_new_sandbox(run, policy):
    policy.write_text(DENY)
    policy.chmod(0o600)
    assert refusal_of(run()) == ("denied", "CW-PACKAGE-REFUSED", "the user rules deny this")
    assert any(record["body"].get("code") == "CW-PACKAGE-REFUSED" for record in audit_records())
    policy.unlink()
    assert run().stdout == "1.0\n"


@pytest.mark.requirement("PKG-1")
def test_a_package_that_is_known_to_be_malicious_by_now_is_not_in_a_new_sandbox(
    run, state_home, tmp_path
):
    def learn(version):
        package = {"ecosystem": "PyPI", "name": "quagga-lines"}
        now = datetime.now(UTC).isoformat()
        record = {"id": "MAL-1", "modified": now}
        record["affected"] = [{"package": package, "versions": [version]}]
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.writestr("MAL-1.json", json.dumps(record))
        feed = Feed(f"{state_home}/packages")
        feed.import_archive(str(tmp_path / "all.zip"), source="test")

    learn("9.9")
    assert run().stdout == "1.0\n"
    learn("1.5")
    text = "MAL-1 reports quagga-lines 1.5 as malicious"
    assert refusal_of(run()) == ("denied", "CW-PACKAGE-REFUSED", text)


@pytest.mark.requirement("PKG-2")
def test_a_broken_policy_file_denies_the_packages_of_a_template(run, policy):
    policy.write_text("[permissions\n")
    policy.chmod(0o600)
    assert run().outcome.error is not None
    policy.unlink()
    assert run().stdout == "1.0\n"
