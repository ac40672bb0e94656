"""Names of npm that imitate by a mark of JavaScript or by a scope (PKG-1)."""

from __future__ import annotations

import pytest

from cellwall.packages.names import Ecosystem, NameTrick
from cellwall.packages.popular import name_index


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("ethersjs", "ethers"), ("react-router-dom.js", "react-router-dom"), ("lodash-js", "lodash"),
        ("js-lodash", "lodash"), ("node-fetch2", "node-fetch"), ("cross-env.js", "cross-env"), ("axois-js", "axios"),
        ("axioss", "axios"), ("types-node", "@types/node"), ("@babel-core", "@babel/core"),
        ("@lodash/lodash", "lodash"), ("@reactjs/react", "react"), ("@typescript-eslints/parser", "@typescript-eslint/parser"),
        ("@typescript_eslinter/eslint", "@typescript-eslint/types"),
    ],
)  # fmt: skip
def test_an_imitation_is_found_with_its_target(name, target):
    assert target in [each.target for each in name_index(Ecosystem.NPM).resemblances(name)]


@pytest.mark.parametrize(
    "name", ["@mycorp/lodash", "@acme/utils", "my-app-js", "babel-core", "@types/node"]
)
def test_scopes_of_others_and_ranked_names_are_not_flagged(name):
    found = name_index(Ecosystem.NPM).resemblances(name)
    assert NameTrick.SCOPE not in [each.trick for each in found]
    assert found == ()
