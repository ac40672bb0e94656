"""SPDX expressions of registries, and the licenses that an administrator denies (PKG-1)."""

from __future__ import annotations

import pytest

from cellwall.packages.licenses import LicenseState, judge_license, npm_license, pypi_license

DENIED = ("AGPL-*", "SSPL-1.0")


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("expression", "state"),
    [
        ("MIT", "accepted"),
        ("agpl-3.0-only", "denied"),
        ("AGPL-3.0", "denied"),
        ("(MIT OR AGPL-3.0-only)", "accepted"),
        ("MIT AND AGPL-3.0-only", "denied"),
        ("MIT OR Apache-2.0 AND SSPL-1.0", "accepted"),
        ("(MIT OR Apache-2.0) AND SSPL-1.0", "denied"),
        ("Apache-2.0 WITH LLVM-exception", "accepted"),
        ("AGPL-3.0-or-later WITH Classpath-exception-2.0", "denied"),
        ("AGPL-3.0-only AND Whatever", "denied"),
        ("UNLICENSED", "unknown"),
        ("Whatever", "unknown"),
        ("MIT MIT", "unknown"),
        ("MIT OR", "unknown"),
        ("(" * 900 + "MIT", "unknown"),
        ("(MIT", "unknown"),
        (")", "unknown"),
        ("WITH", "unknown"),
        ("MIT\x00", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
        ("MIT OR " * 500 + "MIT", "unknown"),
    ],
)
def test_an_expression_is_accepted_if_some_choice_needs_no_denied_license(expression, state):
    assert judge_license(expression, DENIED) is LicenseState(state)


@pytest.mark.parametrize(
    ("info", "expression"),
    [
        ({"license_expression": "MIT", "license": "other"}, "MIT"),
        ({"classifiers": ["License :: OSI Approved :: MIT License", "Topic :: x"]}, "MIT"),
        (
            {
                "classifiers": [
                    "License :: OSI Approved :: MIT License",
                    "License :: OSI Approved :: GNU Affero General Public License v3",
                ]
            },
            "AGPL-3.0-only AND MIT",
        ),
        ({"classifiers": ["License :: OSI Approved :: BSD License"]}, None),
        ({"license": "BSD-3-Clause"}, "BSD-3-Clause"),
        ({"license": "Copyright (c) 2020 …"}, None),
        ({"classifiers": None, "license": 7, "license_expression": ["MIT"]}, None),
    ],
)
def test_pypi_names_the_license_in_one_of_three_fields(info, expression):
    assert pypi_license(info) == expression


@pytest.mark.parametrize(
    ("entry", "expression"),
    [
        ({"license": "MIT"}, "MIT"),
        ({"license": {"type": "ISC"}}, "ISC"),
        ({"license": "SEE LICENSE IN LICENSE.md"}, None),
        ({"license": ["MIT"]}, None),
        ({}, None),
    ],
)
def test_npm_names_the_license_in_the_version(entry, expression):
    assert npm_license(entry) == expression
