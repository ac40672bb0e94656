"""SBOM and lock file of what was served (PKG-1, PKG-5)."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from cellwall.packages.inventory import InstalledPackage, render_pylock, render_sbom
from cellwall.packages.names import Ecosystem

WHEEL = InstalledPackage(
    Ecosystem.PYPI, "zebra-atlas", "1.0", "zebra_atlas-1.0-py3-none-any.whl",
    "https://files.pythonhosted.org/x/zebra_atlas-1.0-py3-none-any.whl", "sha256", "a" * 64, 10, "act-1",
)  # fmt: skip
TARBALL = InstalledPackage(
    Ecosystem.NPM, "@zoo/zebra", "1.0.0", "zebra-1.0.0.tgz", "https://r/zebra-1.0.0.tgz", "sha512", "b" * 128, 5
)  # fmt: skip


@pytest.mark.requirement("PKG-1")
def test_an_sbom_names_each_artifact_once_with_its_hash_and_cause():
    document = json.loads(render_sbom([WHEEL, TARBALL, WHEEL]))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    found = {each["purl"]: each for each in document["components"]}
    assert set(found) == {"pkg:npm/%40zoo/zebra@1.0.0", "pkg:pypi/zebra-atlas@1.0"}
    wheel = found["pkg:pypi/zebra-atlas@1.0"]
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert wheel["properties"] == [{"name": "cellwall:action", "value": "act-1"}]


@pytest.mark.requirement("PKG-5")
def test_a_lock_file_holds_the_wheels_with_their_hashes():
    lock = tomllib.loads(render_pylock([WHEEL, TARBALL]).decode())
    assert lock["lock-version"] == "1.0"
    (package,) = lock["packages"]
    assert (package["name"], package["version"]) == ("zebra-atlas", "1.0")
    assert package["wheels"] == [
        {"name": WHEEL.filename, "url": WHEEL.url, "size": 10, "hashes": {"sha256": "a" * 64}}
    ]


def test_without_packages_both_documents_are_valid_and_empty():
    assert json.loads(render_sbom([]))["components"] == []
    assert "packages" not in tomllib.loads(render_pylock([]).decode())


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("text", ["\U0001f600", "\x7f", '\x00\x1f\n\\"', "\u2028\u0085é"])
def test_a_lock_file_can_be_read_whatever_the_registry_names(text):
    odd = replace(WHEEL, url=f"https://x/{text}/{WHEEL.filename}")
    (package,) = tomllib.loads(render_pylock([odd]).decode())["packages"]
    assert package["wheels"][0]["url"] == odd.url


def test_a_half_of_a_character_does_not_prevent_a_lock_file():
    (package,) = tomllib.loads(render_pylock([replace(WHEEL, url="x\ud800")]).decode())["packages"]
    assert package["wheels"][0]["url"] == "x?"
