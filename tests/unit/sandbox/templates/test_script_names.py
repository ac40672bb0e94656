"""A name that an installer would take for a path is found, however the file is written."""

from __future__ import annotations

import pytest

from cellwall.sandbox.templates.script_names import may_name_a_path

EVIL = "/home/ann/.bashrc = m:f"


@pytest.mark.parametrize(
    "text",
    [
        f"[console_scripts]\n{EVIL}",
        f"[gui_scripts]\r\n{EVIL}\r\n",
        f"[ console_scripts ]\n{EVIL}",
        f"[console_scripts] # why\n{EVIL}",
        f"[console_scripts]\na = b\n [other]\n{EVIL}",  # some take it for a part of `a`
        f"[console_scripts]\na = m:f\x0b[other]\n{EVIL}",
        "[console_scripts]\na = !! ../x = m:f",  # the maker of scripts looks for a name in all of it
        "[console_scripts]\n..\\x = m:f",
        f"[other]\n[console_scripts]\n{EVIL}",
        EVIL,
    ],
)
def test_a_program_whose_name_is_a_path_is_found(text: str) -> None:
    assert may_name_a_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# see https://example.org\n[console_scripts]\ntiny = tiny.cli:main [all]\n",
        "[console_scripts]\ntiny=tiny:main\n\n[pygments.formatters]\n/.ext = tiny:Formatter\n",
    ],
)
def test_other_programs_and_sections_are_left_alone(text: str) -> None:
    assert not may_name_a_path(text)
