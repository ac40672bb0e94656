"""Variables that change what a command is cannot be set; everyday ones can."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from cellwall.parsing.shell.words import UNKNOWN, Assignment, Word
from cellwall.policy.variables import trouble
from unit.policy.policies import policy, verdict

pytestmark = pytest.mark.requirement("POL-2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "x.so"),
        ("PATH", "/tmp"),
        ("BASH_ENV", "x"),
        ("IFS", ","),
        ("PS4", "$(id)"),
        ("NULLCMD", "id"),
        ("READNULLCMD", "id"),
        ("PROMPT_COMMAND", "id"),
        ("GIT_SSH_COMMAND", "id"),
        ("GIT_PAGER", "id"),
        ("PAGER", "sh -c id"),
        ("EDITOR", "id"),
        ("PYTHONSTARTUP", "x.py"),
        ("PYTHONPATH", "/tmp/evil"),
        ("PYTHONPATH", "src:/tmp"),
        ("PYTHONPATH", "../evil"),
        ("PYTHONPATH", UNKNOWN),
        ("NODE_OPTIONS", "--require ./x"),
        ("NODE_OPTIONS", "--max-old-space-size=1 --require ./x"),
        ("PERL5OPT", "-Mx"),
        ("LESSOPEN", "|id"),
        ("TAR_OPTIONS", "--to-command=id"),
        ("MAKEFLAGS", "--eval=x"),
        ("npm_config_script_shell", "x"),
        ("https_proxy", "http://evil"),
        ("HOME", "/tmp"),
        ("CELLWALL_HOME", "/tmp"),
        ("FROB_COMMAND", "id"),
        ("frob_command", "id"),
        ("FROBCMD", "id"),
        ("PRE_FROB_COMMAND_X", "id"),
        ("FROB_EVAL", "id"),
        ("FROB_PROGRAM", "./x"),
        ("FROB_INTERPRETER", "./x"),
        ("FROB_EXECUTABLE_PATH", "./x"),
        ("FROB_HOOK", "./x"),
        ("FROB_HANDLER", UNKNOWN),
        ("FROB", "/bin/sh"),
        ("FROB", "sh -c id"),
        ("FROB", "python3 x.py"),
        ("FROB_OPTS", "--exec id"),
        ("FROB_OPTS", "-v --pager=x"),
    ],
)
def test_dangerous_variables_are_refused(name, value):
    assert name in (trouble(Assignment(name, Word(value))) or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NODE_ENV", "test"),
        ("CI", "1"),
        ("PORT", "3000"),
        ("DEBUG", "*"),
        ("PYTHONPATH", "src"),
        ("PYTHONPATH", ".:src/lib"),
        ("RUN_SLOW", "1"),
        ("LOG_LEVEL", "debug"),
        ("MODE", "shell"),
        ("SCOPE", "@acme"),
        ("TITLE", "a shell of a nut"),
        ("CFLAGS", "-O2 -Wall"),
        ("CHROME_BIN", "/usr/bin/chromium"),
        ("PUPPETEER_EXECUTABLE_PATH", "/usr/bin/chromium"),
        ("HOOK_TIMEOUT", "30"),
        ("PYTHONUNBUFFERED", "1"),
        ("GIT_PAGER", "cat"),
        ("GIT_AUTHOR_NAME", "Ann"),
        ("NODE_OPTIONS", "--max-old-space-size=4096"),
        ("FOO", UNKNOWN),
    ],
)
def test_everyday_variables_are_not(name, value):
    assert trouble(Assignment(name, Word(value))) is None


def test_each_entry_that_refuses_has_a_reason():
    text = resources.files("cellwall.policy").joinpath("variables.toml").read_text("utf-8")
    assert all(each["reason"] or each.get("harmless") for each in tomllib.loads(text)["variable"])


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("FROB_COMMAND=id; export FROB_COMMAND; frob", "deny"),
        ("export FROB_COMMAND; FROB_COMMAND=id; frob", "deny"),
        ("FROB_COMMAND=id; declare -x FROB_COMMAND; frob", "deny"),
        ("for FROB_COMMAND in id; do export FROB_COMMAND; frob; done", "deny"),
        ("FROB='sh -c id'; export FROB; frob", "deny"),
        ("env FROB_COMMAND=id frob", "deny"),
        ("FROB_COMMAND=id; frob", "allow"),  # a variable of the shell alone
        ("FOO=1; export FOO; frob", "allow"),
        ("PYTHONPATH=src; export PYTHONPATH; frob", "allow"),
        ("export NODE_ENV; frob", "allow"),
    ],
)
def test_a_variable_counts_once_the_text_gives_it_to_programs(command: str, word: str):
    assert verdict(policy(["Bash(frob *)", "Bash(frob)"]), command) == word
