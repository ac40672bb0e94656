"""Names of templates: those there are, those that may be made, and what is told about others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, CellwallError
from cellwall.sandbox.templates import definitions
from cellwall.sandbox.templates.definitions import TemplateDefinition


@pytest.fixture
def web(state_home):
    Path(state_home, "templates").mkdir()
    definitions.write(state_home, "web", TemplateDefinition(("requests",)))
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
        definitions.check_new_name(name, TemplateDefinition(("requests",)))


@pytest.mark.parametrize("name", ["python", "python-data", "uv", "packages-0123456789abcdef"])
def test_names_of_our_own_are_not_given_away(name):
    with pytest.raises(BadInput) as told:
        definitions.check_new_name(name, TemplateDefinition(("requests",)))
    assert told.value.code == "CW-TEMPLATE-NAME"


def test_a_request_without_a_name_is_named_by_its_content():
    name = definitions.name_of(("a", "b"))
    assert definitions.check_new_name(name, TemplateDefinition(("a", "b"))) == name
    assert name != definitions.name_of(("a",))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"packages": "requests"}', '{"packages": ["-r /etc/passwd"]}'),
        '{"packages": [], "pins": 7}',
    ],
)
def test_a_damaged_definition_is_told_and_never_reaches_an_installer(web, text):
    Path(web, "templates", "web.json").write_text(text)
    with pytest.raises(CellwallError) as told:
        definitions.read(web, "web")
    assert told.value.code == "CW-TEMPLATE-DAMAGED"


def test_a_definition_by_a_lock_is_read_as_it_was_written(web):
    locked = TemplateDefinition((), b"a==1 \\\n    --hash=sha256:00\n")
    definitions.write(web, "web", locked)
    assert definitions.read(web, "web") == locked
    assert locked.name.startswith(definitions.REQUEST_PREFIX)


def test_the_hashes_of_the_shipped_templates_are_those_of_their_files():
    text = definitions.shipped_requirements("python-data").decode()
    assert definitions.shipped_hashes() == set(re.findall("[0-9a-f]{64}", text))
