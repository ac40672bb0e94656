"""Names of templates: those there are, those that may be made, and what is told about others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, CellwallError
from cellwall.sandbox.templates import definitions


@pytest.fixture
def web(state_home):
    Path(state_home, "templates").mkdir()
    definitions.write(state_home, "web", ("requests",))
    return state_home


def test_an_unknown_name_is_told_with_similar_ones_and_the_command(web):
    with pytest.raises(BadInput) as told:
        definitions.check_name(web, "wbe")
    assert told.value.code == "CW-NO-TEMPLATE"
    assert told.value.hint == (
        "Did you mean web? There are: python, python-data, web. Build one with: cellwall template "
        "build NAME --with PACKAGE"
    )


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../web", "web/..", "web.json", "WEB", "a b", "web\n", "-w", "a" * 300]
)
def test_no_other_name_becomes_a_path(web, name):
    with pytest.raises(BadInput):
        definitions.check_name(web, name)
    with pytest.raises(BadInput):
        definitions.check_new_name(name, ("requests",))


@pytest.mark.parametrize("name", ["python", "python-data", "packages-0123456789abcdef"])
def test_names_of_our_own_are_not_given_away(name):
    with pytest.raises(BadInput) as told:
        definitions.check_new_name(name, ("requests",))
    assert told.value.code == "CW-TEMPLATE-NAME"


def test_a_request_without_a_name_is_named_by_its_content():
    name = definitions.name_of(("a", "b"))
    assert definitions.check_new_name(name, ("a", "b")) == name
    assert name != definitions.name_of(("a",))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"packages": "requests"}', '{"packages": ["-r /etc/passwd"]}']
)
def test_a_damaged_definition_is_told_and_never_reaches_pip(web, text):
    Path(web, "templates", "web.json").write_text(text)
    with pytest.raises(CellwallError) as told:
        definitions.requirements(web, "web")
    assert told.value.code == "CW-TEMPLATE-DAMAGED"
