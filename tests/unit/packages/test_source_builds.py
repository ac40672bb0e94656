"""Decisions about builds from source: the version, the requirements, the result (PKG-3)."""

from __future__ import annotations

import io
import json
import platform

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.names import Ecosystem
from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.registry.judged_index import JudgedIndex, SourceArchive
from cellwall.packages.source_builds import (
    BuildRefused,
    BuildSystem,
    build_requirements,
    check_wheel_name,
    choose_source,
    hook_requirements,
    read_build,
)
from registries import build_sdist

pytestmark = pytest.mark.requirement("PKG-3")

PYTHON = "3.11"
LEGACY = BuildSystem(("setuptools>=40.8.0",))


def artifact(filename, version):
    return Artifact(f"https://x/{filename}", filename, version, "sha256", "a" * 64)


def index(wheels=(), sources=()):
    """`wheels` as (version, tags), `sources` as (version, requires_python)."""
    shown = [artifact(f"thing-{version}-{tags}.whl", version) for version, tags in wheels]
    return JudgedIndex(
        "thing",
        PackageVerdict(Ecosystem.PYPI, "thing", None, ()),
        {version: PackageVerdict(Ecosystem.PYPI, "thing", version, ()) for version, _ in sources},
        {each.url: each for each in shown},
        str,
        {},
        sources={
            version: SourceArchive(artifact(f"thing-{version}.tar.gz", version), python)
            for version, python in sources
        },
    )


@pytest.mark.parametrize(
    ("wheels", "sources", "versions", "chosen"),
    [
        ((), ["1.0", "2.0", "3.0a1"], "", "2.0"),
        ((), ["1.0", "2.0"], "<2", "1.0"),
        ((), ["1.0", "2.0"], "==3.*", None),
        ((), ["3.0a1"], "", "3.0a1"),
        ([("1.0", "py3-none-any")], ["2.0"], "", None),
        ([("1.0", "py3-none-any")], ["2.0"], ">=2", "2.0"),
        ([("1.0", "cp311-cp311-win_amd64")], ["1.0"], "", "1.0"),
        ([("1.0", "cp39-cp39-manylinux_2_17_x86_64")], ["1.0"], "", "1.0"),
        ([("1.0", "not-a-wheel")], ["1.0"], "", "1.0"),
    ],
)
def test_the_newest_source_is_chosen_where_no_wheel_meets_the_request(
    wheels, sources, versions, chosen
):
    found = index(wheels, [(version, None) for version in sources])
    assert choose_source(found, versions, PYTHON) == chosen


def test_a_source_for_another_python_is_not_chosen():
    found = index(sources=[("1.0", ">=3.8"), ("2.0", ">=3.99"), ("3.0", "nonsense")])
    assert choose_source(found, "", PYTHON) == "1.0"


def read(files):
    filename, data = build_sdist("thing", "1.0", files)
    return read_build(io.BytesIO(data), filename, len(data), PYTHON)


@pytest.mark.parametrize(
    ("project", "system"),
    [
        (None, LEGACY),
        ("[tool.x]\n", LEGACY),
        ("not toml [", LEGACY),
        ('[build-system]\nrequires = ["wheel"]\n', BuildSystem(("wheel",))),
        (
            (
                "[build-system]\nrequires = [\"A_b[y,x]>=1 ; python_version>'3'\", "
                "\"c ; python_version<'3'\"]\n"
                'build-backend = "own.it:made"\nbackend-path = ["in"]\n'
            ),
            BuildSystem(("a-b[x,y]>=1",), "own.it:made", ("in",)),
        ),
    ],
)
def test_the_build_system_of_an_archive_is_read(project, system):
    assert read({} if project is None else {"pyproject.toml": project}) == system


@pytest.mark.parametrize(
    "project",
    [
        '[build-system]\nrequires = ["x"]\nbuild-backend = "os; evil"\n',
        '[build-system]\nrequires = ["x"]\nbuild-backend = 1\n',
        '[build-system]\nrequires = ["x"]\nbuild-backend = "x"\nbackend-path = "in"\n',
        '[build-system]\nrequires = ["x"]\nbuild-backend = "x"\nbackend-path = [1]\n',
        "x = '" + "y" * (2 << 20) + "'\n",
    ],
)
def test_a_build_system_that_cannot_be_used_is_refused(project):
    with pytest.raises(BuildRefused):
        read({"pyproject.toml": project})


@pytest.mark.parametrize(
    "texts",
    [
        "x",
        {"x": 1},
        [1],
        ["x @ https://evil.example/x.whl"],
        ["x @ file:///etc"],
        ["./x"],
        ["-r /etc/passwd"],
        ["--index-url=https://evil.example"],
        ["git+https://evil.example/x"],
        ["x===1"],
        ["x" * 300],
        ["x"] * 51,
    ],
)
def test_a_build_requirement_that_is_no_name_of_the_index_is_refused(texts):
    with pytest.raises(BuildRefused):
        build_requirements(texts, PYTHON)
    with pytest.raises(BuildRefused):
        hook_requirements(json.dumps(texts).encode(), PYTHON)


def test_an_answer_of_a_hook_that_is_no_json_is_refused():
    assert hook_requirements(b'["wheel", "wheel"]', PYTHON) == ("wheel",)
    for data in (b"", b"[", b"\xff", b"[" * 100_000):
        with pytest.raises(BuildRefused):
            hook_requirements(data, PYTHON)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["thing-1.0.tar.gz"],
        ["thing-1.0-py3-none-any.whl", "thing-1.0-py3-none-linux.whl"],
        ["other-1.0-py3-none-any.whl"],
        ["thing-2.0-py3-none-any.whl"],
        ["thing-1.0-py3-none-any.whl\n"],
        ["thing.whl"],
        ["thing-1.0-cp311-cp311-win_amd64.whl"],
        ["thing-1.0-cp39-cp39-linux_x86_64.whl"],
    ],
)
def test_a_result_that_is_not_the_one_wheel_is_refused(names):
    with pytest.raises(BuildRefused):
        check_wheel_name(names, "thing", "1.0", PYTHON)


def test_the_one_wheel_of_the_project_is_taken():
    for tags in ("py3-none-any", f"cp311-cp311-linux_{platform.machine()}"):
        name = f"Thing-1.0.0-{tags}.whl"
        assert check_wheel_name([name], "thing", "1.0", PYTHON) == name


def test_for_a_person_a_version_that_an_installation_builds_is_no_refusal():
    verdict = index(sources=[("1.0", None)]).summary
    assert verdict.verdict is Verdict.ALLOW
