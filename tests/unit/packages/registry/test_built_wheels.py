"""The wheels that were built from sources, by the hash of the source (PKG-3)."""

from __future__ import annotations

import hashlib
import os

import pytest

from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.built_wheels import BuiltWheel, BuiltWheels

pytestmark = pytest.mark.requirement("PKG-3")

SOURCE, OTHER = "a" * 64, "b" * 64
NAME = "thing-1.0-py3-none-any.whl"


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
def builds(tmp_path, store):
    return BuiltWheels(str(tmp_path / "built"), store)


def stored(store, data=b"wheel"):
    digest = hashlib.sha256(data).hexdigest()
    with store.create("sha256", digest) as writer:
        writer.write(data)
    return BuiltWheel(NAME, digest, len(data))


def test_a_wheel_is_found_by_its_source_and_a_later_build_replaces_it(builds, store):
    assert (builds.by_source(), builds.revision) == ({}, 0)
    first, second = stored(store), stored(store, b"again")
    builds.add(SOURCE, first)
    assert builds.by_source() == {SOURCE: (first,)}
    before = builds.revision
    builds.add(OTHER, first)
    builds.add(SOURCE, second)
    assert builds.by_source() == {SOURCE: (second,), OTHER: (first,)}
    assert builds.revision != before


def test_a_wheel_whose_bytes_are_gone_is_not_shown(builds, store, tmp_path):
    wheel = stored(store)
    builds.add(SOURCE, wheel)
    os.unlink(tmp_path / "artifacts" / f"sha256-{wheel.sha256}")
    assert builds.by_source() == {}


def test_a_damaged_entry_and_a_file_of_others_are_not_shown(builds, store, tmp_path):
    builds.add(SOURCE, stored(store))
    folder = tmp_path / "built"
    for text in ("", "[]", '{"sha256": "../x", "size": 1}', '{"sha256": null}'):
        (folder / f"{SOURCE}-{NAME}.json").write_text(text)
        assert builds.by_source() == {}
    (folder / "notes.txt").write_text("x")
    assert builds.by_source() == {}


@pytest.mark.parametrize("name", ["../x.whl", "x.txt", "a/b.whl", "x" * 200 + ".whl"])
def test_a_name_that_leads_elsewhere_is_not_written(builds, name):
    with pytest.raises(ValueError, match="wheel"):
        builds.add(SOURCE, BuiltWheel(name, OTHER, 1))
    assert builds.by_source() == {}
