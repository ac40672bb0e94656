"""The inspection of artifacts in the registry services, from one process to the next (PKG-1)."""

from __future__ import annotations

import hashlib

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.registry.passed_inspections import PassedInspections
from cellwall.runtime import registries
from registries import build_wheel

FILE, HARMLESS = build_wheel("zebra", "1.0", {"zebra.py": "VERSION = 1\n"})
HOSTILE = build_wheel("zebra", "1.0", {"zebra.py": "", "zebra.pth": "import zebra\n"})[1]


@pytest.fixture
def inspect(tmp_path, monkeypatch):
    """Inspects a wheel as a new process does; returns the verdict and the wheels that were read."""
    read = []
    real = registries.inspect_artifact

    def counted(*arguments, **options):
        read.append(arguments[3])
        return real(*arguments, **options)

    monkeypatch.setattr(registries, "inspect_artifact", counted)
    store = ArtifactStore(str(tmp_path / "artifacts"))

    def in_new_process(data, edition="one", name="zebra", **changes):
        digest = hashlib.sha256(data).hexdigest()
        with store.create("sha256", digest) as writer:
            writer.write(data)
        passed = PassedInspections(str(tmp_path / "inspected"), lambda: edition)
        site = registries.RegistrySite(registries.PypiRegistry(), ())
        host = registries.RegistryHost(site, None, store, passed, None, None, None, 0)
        fields = {"url": "", "filename": FILE, "version": "1.0"} | changes
        artifact = Artifact(algorithm="sha256", digest=digest, **fields)
        read.clear()
        with store.open("sha256", digest) as stream:
            verdict = host._inspect(artifact, name, stream)
        return None if verdict is None else verdict.verdict, list(read)

    return in_new_process


@pytest.mark.requirement("PKG-1")
def test_an_artifact_that_has_passed_is_not_inspected_by_the_next_process(inspect):
    assert inspect(HARMLESS) == (Verdict.ALLOW, [FILE])
    assert inspect(HARMLESS) == (None, [])
    assert inspect(HARMLESS, edition="two") == (Verdict.ALLOW, [FILE])
    # The index says something else of the same bytes.
    assert inspect(HARMLESS, metadata_sha256="0" * 64) == (Verdict.DENY, [FILE])
    assert inspect(HARMLESS, version="2.0")[0] is Verdict.DENY


@pytest.mark.requirement("PKG-1")
def test_a_refused_artifact_is_inspected_and_refused_each_time(inspect):
    for _ in range(2):
        assert inspect(HOSTILE) == (Verdict.DENY, [FILE])


@pytest.mark.requirement("PKG-1")
def test_an_artifact_that_was_not_read_to_its_end_is_inspected_each_time(inspect):
    # Questions about a popular package count as answered, so it is served all the same.
    long = "import base64\n" + "x = 1\n" * 200_000 + "exec(base64.b64decode(x))\n"
    filename, data = build_wheel("requests", "1.0", {"requests.py": long})
    for _ in range(2):
        found = inspect(data, name="requests", filename=filename)
        assert found == (Verdict.ALLOW, [filename])
