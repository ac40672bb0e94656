"""Texts of languages that are not read here: a command in them that rules deny is denied."""

from __future__ import annotations

import pytest

from unit.policy.policies import policy, verdict

EVERYTHING = policy(allow=["Bash(*)"], deny=["Bash(curl *)"])


@pytest.mark.requirement("POL-2", "POL-4")
@pytest.mark.parametrize(
    "command",
    [
        "pwsh -c 'curl x'",
        "pwsh -Command 'curl x'",
        "nu -c 'curl x'",
        "erl -eval 'os:cmd(\"curl x\")'",
        "ocaml -e 'Sys.command \"curl x\"'",
        "raku -e 'shell \"curl x\"'",
        "maxima --batch-string='system(\"curl x\")'",
        "ed <<< '!curl x'",
        "m4 <<< 'syscmd(curl x)'",
        "unheard-of -c 'curl x'",
        "unheard-of --eval='curl x'",
    ],
)
def test_a_denied_command_in_a_text_that_is_run_is_denied(command: str):
    assert verdict(EVERYTHING, command) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "pwsh -c 'Get-Date'",
        "erl -eval 'io:format(\"hi\")'",
        "raku -e 'say \"hi\"'",
        "bc <<< '1+1'",
        "mysql -e 'select 1'",
        "unheard-of -c config.toml",
        "unheard-of --run unit",
        "git commit -m 'add curl x'",
    ],
)
def test_any_other_text_is_allowed(command: str):
    assert verdict(EVERYTHING, command) == "allow"
