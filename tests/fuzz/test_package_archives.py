"""Whatever bytes an artifact has, the inspection answers with a verdict and reads what pip reads."""

from __future__ import annotations

import io
import tempfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import UnsafeArchive, read_archive
from cellwall.packages.inspection.artifact import inspect_artifact
from cellwall.packages.names import Ecosystem
from registries import build_sdist, build_tarball, build_wheel
from unit.packages.inspection.malware import JAVASCRIPT, PYTHON

_SOURCES = {f"thing/{name}.py": source for name, (source, _) in list(PYTHON.items())[:6]}
_SCRIPTS = {f"{name}.js": source for name, (source, _) in list(JAVASCRIPT.items())[:4]}
SEEDS = {
    Ecosystem.PYPI: [build_wheel("thing", "1.0", _SOURCES), build_sdist("thing", "1.0", _SOURCES)],
    Ecosystem.NPM: [build_tarball("thing", "1.0.0", _SCRIPTS)],
}
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from([b"PK\5\6", b"PK\1\2", b"PK\3\4", b"PK\6\6", b"\xff\xff\xff\xff", bytes(8)]),
        ),
        st.sampled_from([0, 1, 4, 8, 100]),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


def edit(data, edits):
    """Replace some bytes at each of these places by others."""
    for place, new, removed in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + removed :]
    return data


@pytest.mark.requirement("PKG-1", "RED-2")
@settings(max_examples=150, deadline=None)
@given(st.sampled_from([(e, *seed) for e, seeds in SEEDS.items() for seed in seeds]), EDITS)
def test_a_damaged_artifact_gets_a_verdict(seed, edits):
    ecosystem, filename, data = seed
    with tempfile.TemporaryFile() as stream:
        stream.write(edit(data, edits))
        found = inspect_artifact(ecosystem, "thing", "1.0", filename, stream, rank=None)
    assert found.verdict in Verdict


@pytest.mark.requirement("PKG-1", "RED-2")
@settings(max_examples=200, deadline=None)
@given(EDITS)
def test_an_accepted_zip_file_has_the_content_that_zipfile_reads(edits):
    data = edit(SEEDS[Ecosystem.PYPI][0][1], edits)
    try:
        members = read_archive(io.BytesIO(data), "thing-1.0-py3-none-any.whl", len(data))
        read = {each.name: each.read(each.size) for each in members}
    except UnsafeArchive:
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert read == {name: archive.read(name) for name in archive.namelist()}
