"""CycloneDX documents, checked against the schema of version 1.6 (PKG-1)."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema.validators import Draft7Validator

from cellwall.packages.locks.model import Lock, LockedFile, LockedPackage
from cellwall.packages.names import Ecosystem
from cellwall.packages.sbom import InstallCause, render_lock_sbom

A = ("sha256", "a" * 64)


def package(name, version="1.0", *dependencies, ref=None, kind=Ecosystem.NPM, **more):
    return LockedPackage(ref or f"{name}@{version}", kind, name, version, dependencies=dependencies, **more)  # fmt: skip


# Of what the schema says of texts, jsonschema checks the formats only with packages that take two
# seconds to import: jsonschema-rs knows these formats as well.
for name in ("date-time", "idn-email", "iri-reference"):
    is_of_format = jsonschema_rs.validator_for({"format": name}, validate_formats=True).is_valid
    Draft7Validator.FORMAT_CHECKER.checks(name)(is_of_format)


def problem_of(document: str):
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(document)


def rendered(*packages, has_graph=True, **more):
    data = render_lock_sbom(Lock("test", packages, has_graph), subject="app", **more)
    problem = problem_of(data.decode())
    assert problem is None, problem
    return json.loads(data)


@pytest.mark.requirement("PKG-1")
def test_the_document_has_hashes_licences_causes_and_the_graph():
    url = "https://user:secret@registry.npmjs.org:8443/@zoo/zebra/-/zebra 1.0.tgz?token=secret"
    file = LockedFile("zebra-1.0.tgz", url, (("sha512", "b" * 128),))
    zebra = package("@zoo/zebra", "1.0", "ms@2", files=(file,), licence="mit", is_direct=True)
    again = package("ms", "2", ref="deep/ms@2", licence="SEE LICENSE IN x")
    document = rendered(
        zebra,
        package("ms", "2", licence="SEE LICENSE IN x"),
        again,
        causes={"pkg:npm/%40zoo/zebra@1.0": (InstallCause("act_1", "evt_1"),)},
    )
    first, second = document["components"]
    assert first == {
        "type": "library",
        "bom-ref": "pkg:npm/%40zoo/zebra@1.0",
        "name": "@zoo/zebra",
        "purl": "pkg:npm/%40zoo/zebra@1.0",
        "version": "1.0",
        "hashes": [{"alg": "SHA-512", "content": "b" * 128}],
        "externalReferences": [
            {
                "type": "distribution",
                # Credentials and queries may be secrets.
                "url": "https://registry.npmjs.org:8443/@zoo/zebra/-/zebra%201.0.tgz",
                "hashes": [{"alg": "SHA-512", "content": "b" * 128}],
            }
        ],
        "licenses": [{"expression": "MIT"}],
        "properties": [
            {"name": "cellwall:action", "value": "act_1"},
            {"name": "cellwall:audit-id", "value": "evt_1"},
        ],
    }
    assert second["licenses"] == [{"license": {"name": "SEE LICENSE IN x"}}]
    assert document["dependencies"] == [
        {"ref": "cellwall:subject", "dependsOn": ["pkg:npm/%40zoo/zebra@1.0"]},
        {"ref": "pkg:npm/%40zoo/zebra@1.0", "dependsOn": ["pkg:npm/ms@2"]},
        {"ref": "pkg:npm/ms@2", "dependsOn": []},
    ]


@pytest.mark.parametrize(
    "hostile",
    [
        package("a", None),
        package("a", '1 ?#/%"<>é'),
        package("a", licence='"; DROP <x>'),
        package("a", files=(LockedFile("x", "http://[", (A,)), LockedFile("y", "file:///etc", (A,)))),
        package("a", files=(LockedFile("x", "https://h/<>\\^`{|}é", (A,)),)),
        package("a", files=(LockedFile(hashes=(A,)), LockedFile(hashes=(("sha256", "c" * 64),)))),
        package("a", origin="git+ssh://example.com/r"),
        package("a", "1.0", "a@1.0"),
    ],
)  # fmt: skip
def test_whatever_a_lock_holds_the_document_is_valid(hostile):
    document = rendered(hostile)
    assert len(document["components"]) == 1
    assert "/etc" not in json.dumps(document)


def test_several_hashes_without_urls_are_all_listed():
    both = (LockedFile(hashes=(A,)), LockedFile(hashes=(("sha256", "c" * 64),)))
    (found,) = rendered(package("a", files=both), has_graph=False)["components"]
    assert [each["value"] for each in found["properties"]] == [
        "sha256:" + "a" * 64,
        "sha256:" + "c" * 64,
    ]


def test_an_empty_lock_gives_a_valid_document():
    document = rendered(has_graph=False)
    assert document["components"] == []
    assert "dependencies" not in document


@pytest.mark.parametrize("url", ["http://user:secret@[::1]:8080/x.tgz", "http://[", "file:///x"])
def test_an_address_that_the_schema_does_not_take_is_left_out(url):
    (component,) = rendered(package("zebra", files=(LockedFile("x.tgz", url, (A,)),)))["components"]
    assert "externalReferences" not in component
    assert component["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]


def test_the_formats_of_the_schema_are_checked():
    """The control: a document with an address that is none is invalid."""
    file = LockedFile("x.tgz", "https://example.com/x.tgz", (A,))
    document = rendered(package("zebra", files=(file,)))
    (reference,) = document["components"][0]["externalReferences"]
    reference["url"] = "https://example.com/a b"
    assert "iri-reference" in str(problem_of(json.dumps(document)))
