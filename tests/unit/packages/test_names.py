"""The popular name that a name imitates (PKG-1)."""

from __future__ import annotations

import pytest

from cellwall.core.errors import BadInput
from cellwall.packages.names import MAX_NAME_CHARACTERS, Ecosystem, NameIndex, canonical_name
from cellwall.packages.popular import famous_twin, imported_package, name_index, popular_names


def resemblances(ecosystem, name):
    """`name_index` builds an index on its first call; at the import, every test worker would."""
    return name_index(ecosystem).resemblances(name)


@pytest.mark.requirement("PKG-1")
def test_names_that_imitate_a_popular_one_are_found_with_the_popular_name():
    expected = {
        "reqeusts": "requests",  # transposition
        "requsts": "requests",  # omission
        "requestss": "requests",  # repetition
        "requezts": "requests",  # neighbouring key
        "r3quests": "requests",  # digit for a letter
        "request": "requests",  # plural
        "python-requests": "requests",  # prefix
        "requests2": "requests",  # version
        "nunpy": "numpy",
        "fast-api": "fastapi",  # separator
        "dateutil-python": "python-dateutil",  # word order
        "beautifulsup4": "beautifulsoup4",
        "beautifulsoop": "beautifulsoup4",
        "torchtriton": "torch",  # combination
        "rnatplotlib": "matplotlib",  # rn for m
        "tensorfolw": "tensorflow",
    }
    found = {
        name: resemblances(Ecosystem.PYPI, canonical_name(Ecosystem.PYPI, name))
        for name in expected
    }
    assert {name: each[0].target if each else None for name, each in found.items()} == expected


@pytest.mark.requirement("PKG-1")
def test_names_that_imitate_a_popular_npm_package_are_found():
    expected = {
        "loadsh": "lodash",
        "1odash": "lodash",
        "crossenv": "cross-env",
        "axois": "axios",
        "types-node": "@types/node",  # scope confusion
        "@type/node": "@types/node",
        "reactt": "react",
    }
    found = {
        name: resemblances(Ecosystem.NPM, canonical_name(Ecosystem.NPM, name)) for name in expected
    }
    assert {name: each[0].target if each else None for name, each in found.items()} == expected


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("ecosystem", Ecosystem)
def test_no_popular_package_is_taken_for_a_squat(ecosystem):
    index = name_index(ecosystem)
    names = popular_names(ecosystem).names
    assert [n for n in names if index.resemblances(n)] == []
    twins = [n for n in names if famous_twin(ecosystem, n)]
    assert len(twins) <= 6, "of 15,000 and 20,000"


@pytest.mark.requirement("PKG-1")
def test_misspelt_famous_names_are_flagged_although_they_look_ordinary():
    """`panda` is ranked for its misspelt downloads; `lodas` could be a plural."""
    assert famous_twin(Ecosystem.PYPI, "panda") == "pandas"
    assert [each.target for each in name_index(Ecosystem.NPM).resemblances("lodas")] == ["lodash"]
    for ecosystem, name in ((Ecosystem.PYPI, "pandas"), (Ecosystem.NPM, "lodash")):  # the control
        assert famous_twin(ecosystem, name) is None
        assert name_index(ecosystem).resemblances(name) == ()


@pytest.mark.slow
def test_at_most_one_in_twenty_less_popular_packages_is_flagged():
    """The lower half of the ranking stands for ordinary packages that no list names."""
    names = popular_names(Ecosystem.PYPI).names
    upper, lower = names[: len(names) // 2], names[len(names) // 2 :]
    index = NameIndex(upper)
    flagged = [name for name in lower if index.resemblances(name)]
    assert len(flagged) < len(lower) * 0.05


def test_placeholders_and_products_are_asked_about():
    names = ("my-package", "your-module", "package-name", "python", "ethereum", "cv2")
    found = {
        name: [each.trick.value for each in resemblances(Ecosystem.PYPI, name)]
        for name in names[:2]
    }
    assert found == {"my-package": ["placeholder"], "your-module": ["placeholder"]}
    assert all(resemblances(Ecosystem.PYPI, name) for name in names[3:])


def test_an_unrelated_name_resembles_nothing():
    assert resemblances(Ecosystem.PYPI, "zebrafish-atlas-viewer") == ()


def test_the_name_of_an_import_leads_to_its_package():
    assert imported_package(Ecosystem.PYPI, "yaml") == "pyyaml"
    assert imported_package(Ecosystem.PYPI, "requests") is None


@pytest.mark.parametrize(
    ("ecosystem", "name", "canonical"),
    [
        (Ecosystem.PYPI, "Zope.Interface", "zope-interface"),
        (Ecosystem.PYPI, "a__b--c..d", "a-b-c-d"),
        (Ecosystem.NPM, "@Types/Node", "@types/node"),
        (Ecosystem.NPM, "lodash.merge", "lodash.merge"),
    ],
)
def test_a_name_has_one_spelling(ecosystem, name, canonical):
    assert canonical_name(ecosystem, name) == canonical


@pytest.mark.parametrize("ecosystem", Ecosystem)
@pytest.mark.parametrize(
    "name",
    ["", "-x", "--legacy-peer-deps", "r\u0435quests", "a b", "a/b/c", "../a", "a\n", "a\0", "git+https://x/y",
     "x" * (MAX_NAME_CHARACTERS + 1), "@/x", "@scope/", "a;b", "a==1", "file:x"],
)  # fmt: skip
def test_what_no_registry_takes_as_a_name_is_refused(ecosystem, name):
    with pytest.raises(BadInput) as error:
        canonical_name(ecosystem, name)
    assert error.value.code == "CW-BAD-PACKAGE"


def test_an_empty_ranking_flags_nothing():
    assert NameIndex(()).resemblances("requests") == ()
