"""The verdict on the entries of a lock (PKG-5)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.lock_audit import LockRules, audit_package, judge_in_index
from cellwall.packages.locks.model import LockedFile, LockedPackage
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import parse_advisory
from cellwall.packages.registry.judged_index import JudgedIndex

A, B = ("sha256", "a" * 64), ("sha256", "b" * 64)
PACKAGE = LockedPackage("zebra@1.0", Ecosystem.PYPI, "zebra", "1.0", (LockedFile(hashes=(A,)),))
ALLOWED = PackageVerdict(Ecosystem.PYPI, "zebra", "1.0", ())
RULES = LockRules()


def advisory(identifier, *events):
    record = {
        "id": identifier,
        "modified": "2026-01-01T00:00:00Z",
        "summary": "s",
        "affected": [
            {
                "package": {"ecosystem": "PyPI", "name": "zebra"},
                "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
            }
        ],
    }
    return parse_advisory(json.dumps(record).encode())


def index(versions=("1.0",), digests=None, verdict=ALLOWED):
    return JudgedIndex(
        "zebra",
        verdict,
        {each: PackageVerdict(Ecosystem.PYPI, "zebra", each, ()) for each in versions},
        {},
        str,
        {},
        digests={"1.0": frozenset({A})} if digests is None else digests,
    )


def codes(audited):
    return [each.code for each in audited.reasons]


def test_a_pinned_package_with_the_hash_of_the_registry_is_allowed():
    found = audit_package(PACKAGE, ALLOWED, (), RULES, index=index())
    assert (found.verdict, found.reasons) == (Verdict.ALLOW, ())


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("hashes", [(B,), (A, B)])
def test_a_hash_that_the_registry_does_not_have_is_denied(hashes):
    changed = replace(PACKAGE, files=tuple(LockedFile(hashes=(each,)) for each in hashes))
    found = audit_package(changed, ALLOWED, (), RULES, index=index())
    assert (found.verdict, codes(found)) == (Verdict.DENY, ["hash-changed"])
    assert audit_package(changed, ALLOWED, (), RULES).verdict is Verdict.ALLOW  # offline


def test_another_spelling_of_the_version_is_compared_too():
    spelled = replace(PACKAGE, version="1.0.0", files=(LockedFile(hashes=(B,)),))
    judged = judge_in_index(spelled, index())
    assert judged.version == "1.0"
    assert codes(audit_package(spelled, judged, (), RULES, index=index())) == ["hash-changed"]


def test_a_vulnerability_is_asked_about_with_the_version_that_fixes_it():
    note = Reason(
        EvidenceStep.FEED, Verdict.ALLOW, "vulnerable", "has a known vulnerability: GHSA-1"
    )
    judged = replace(ALLOWED, reasons=(note,))
    known = [
        advisory("GHSA-1", {"introduced": "0"}, {"fixed": "0.5"}, {"introduced": "0.9"}, {"fixed": "1.2"}),
        advisory("GHSA-2", {"introduced": "0"}),
    ]  # fmt: skip
    found = audit_package(PACKAGE, judged, known, RULES)
    assert found.verdict is Verdict.ASK
    assert [(each.id, each.fixed) for each in found.advisories] == [("GHSA-1", "1.2"), ("GHSA-2", None)]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": None}, "unpinned"),
        ({"origin": "git+https://example.com/r.git"}, "origin"),
        ({"files": ()}, "no-hash"),
        ({"files": (LockedFile(hashes=(("md5", "0" * 32),)),)}, "no-hash"),
    ],
)
def test_an_entry_that_the_lock_does_not_hold_firmly_is_asked_about(changes, code):
    found = audit_package(replace(PACKAGE, **changes), ALLOWED, (), RULES)
    assert (found.verdict, codes(found)) == (Verdict.ASK, [code])


def test_a_mirror_of_the_configuration_is_the_registry():
    mirrored = replace(PACKAGE, origin="https://mirror.example", files=(LockedFile(hashes=(B,)),))
    rules = LockRules(("https://mirror.example",))
    assert codes(audit_package(mirrored, ALLOWED, (), rules, index=index())) == ["hash-changed"]
    # The public registry says nothing about the files of another place.
    assert codes(audit_package(mirrored, ALLOWED, (), RULES, index=index())) == ["origin"]


def test_a_version_that_the_registry_does_not_have_is_denied():
    judged = judge_in_index(replace(PACKAGE, version="9.9"), index())
    assert judged.verdict is Verdict.DENY
    assert judged.reasons[-1].text == "zebra 9.9 is not on pypi"


def test_a_package_that_the_registry_does_not_have_keeps_the_answer_of_the_registry():
    unknown = Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unknown", "zebra is not on pypi")
    missing = index((), verdict=replace(ALLOWED, reasons=(unknown,)))
    assert judge_in_index(PACKAGE, missing).reasons == (unknown,)


HOSTED = "https://files.pythonhosted.org/packages/ab/"
FILES = {
    "zebra-1.0-py3-none-any.whl": True,
    "Zebra-1.0.0.tar.gz": True,
    "zebra-1.0.tar.bz2": True,
    "evil-1.0-py3-none-any.whl": False,
    "zebra-2.0-py3-none-any.whl": False,
    "zebra_evil-1.0.tar.gz": False,
    "evil-1.0.tar.bz2": False,
}


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("filename", FILES)
def test_a_file_of_another_package_or_version_is_asked_about(filename):
    named = LockedFile(filename, f"{HOSTED}{filename}", (A,))
    hidden = LockedFile("zebra-1.0-py3-none-any.whl", f"{HOSTED}{filename}", (A,))
    for file in (named, hidden, LockedFile(url=f"{HOSTED}{filename}", hashes=(A,))):
        found = audit_package(replace(PACKAGE, files=(file,)), ALLOWED, (), RULES)
        assert codes(found) == ([] if FILES[filename] else ["other-file"])


TARBALLS = {
    ("zebra", "zebra/-/zebra-1.0.0.tgz"): True,
    ("@a/zebra", "@a/zebra/-/zebra-1.0.0.tgz"): True,
    ("@a/zebra", "@a%2fzebra/-/zebra-1.0.0.tgz"): True,
    ("zebra", "evil/-/evil-1.0.0.tgz"): False,
    ("zebra", "zebra/-/zebra-1.0.1.tgz"): False,
    ("zebra", "evil/-/zebra-1.0.0.tgz"): False,
    ("zebra", "evil/-/evil-1.0.0.tgz?/zebra/-/zebra-1.0.0.tgz"): False,
    ("zebra", "evil/-/evil-1.0.0.tgz#/zebra/-/zebra-1.0.0.tgz"): False,
}


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize(("name", "path"), TARBALLS)
def test_a_tarball_of_another_package_of_npm_is_asked_about(name, path):
    file = LockedFile(url=f"https://registry.npmjs.org/{path}", hashes=(("sha512", "a" * 128),))
    package = LockedPackage("r", Ecosystem.NPM, name, "1.0.0", (file,))
    judged = PackageVerdict(Ecosystem.NPM, name, "1.0.0", ())
    found = audit_package(package, judged, (), RULES)
    assert codes(found) == ([] if TARBALLS[name, path] else ["other-file"])
