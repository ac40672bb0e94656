"""The general rule for programs that have no model."""

from __future__ import annotations

import pytest

from cellwall.policy.commands.catalog import find_model
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.unmodelled import is_typed_command
from unit.policy.commands.opening import opened

PLAIN = [
    "frob",
    "frob build --jobs 4 src",
    "frob -c 3 -e production",
    "frob --config conf/prod.json --verbose",
    "frob test --filter name --format json",
    "frob -m 'a message of several words'",
    "frob https://example.com/a?b=c",
    "frob push origin HEAD:main",
    "frob --code 200",
    "frob a.py b/c.ts 'd e.txt'",
    "frob deploy --env staging --tag v1.2.3",
    "frob --require ./setup.js --load lib/x",
    "frob --with 3 --then next --on-error continue",
    "frob --log-level debug --cache-size 10",
    "frob install git curl python3",
    "frob diff --stat",
    "frob rm -r remote/x",
    "frob -- a.txt b.txt",
    "frob --title 'find the python in it'",
]
SPELLED = [
    ("frob /bin/sh", "/bin/sh"),
    ("frob -n 5 bash", "bash"),
    ("frob --with=/bin/dash", "--with"),
    ("frob /usr/bin/id", "/usr/bin/id"),
    ("frob python3 -c x", "python3"),
    ("frob --exec id", "--exec"),
    ("frob --eval=1", "--eval"),
    ("frob --post-hook=x", "--post-hook"),
    ("frob --pager less", "--pager"),
    ("frob --config /tmp/x.conf", "--config"),
    ("frob --config ../x.conf", "--config"),
    ("frob --grep-bin ./x", "--grep-bin"),
    ("frob -c 'a b'", "-c"),
    ("frob -e'a(b)'", "-ea(b)"),
    ("frob shell", "shell"),
    ("frob -o ProxyCommand=x", "ProxyCommand=x"),
    ("frob -oProxyCommand=x", "-oProxyCommand"),
    ("frob '!id'", "!id"),
    ("frob 'id|'", "id|"),
    ("frob @list", "@list"),
    ("frob /dev/tcp/h/1", "/dev/tcp/h/1"),
    ("frob ./x.so.1", "./x.so.1"),
    ("frob '%(id)'", "%(id)"),
    ("frob --proxycommand id", "--proxycommand"),
    ("frob --execfile=x", "--execfile"),
    ("frob --postcmd id", "--postcmd"),
    ("frob --on-exit ./x", "--on-exit"),
    ("frob --on_change='a b'", "--on_change"),
    ("frob --pre ./x", "--pre"),
    ("frob --ssh=./x", "--ssh"),
    ("frob --with 'python x.py'", "python x.py"),
    ("frob --require /tmp/x", "--require"),
    ("frob --rc ../x", "--rc"),
    ("frob --shell", "--shell"),
    ("frob python x.py", "python"),
    ("frob curl http://example.com", "curl"),
    ("frob run -- make test", "make"),
]


def test_the_program_of_these_tests_has_no_model():
    assert find_model("frob") is None


@pytest.mark.requirement("POL-3")
@pytest.mark.parametrize("command", PLAIN)
def test_ordinary_arguments_need_no_more_than_a_rule_for_the_program(command: str):
    assert opened(command).dangers == ()


@pytest.mark.requirement("POL-3")
@pytest.mark.parametrize(("command", "option"), SPELLED)
def test_an_argument_that_may_start_something_must_be_spelled_out(command: str, option: str):
    assert option in [danger.option for danger in opened(command).dangers]


@pytest.mark.requirement("POL-3", "POL-12")
def test_an_unknown_argument_is_no_danger_by_itself_but_its_option_is():
    assert opened("frob @u").dangers == ()
    assert [danger.option for danger in opened("frob --exec @u").dangers] == ["--exec"]
    assert [danger.option for danger in opened("frob --exec=@u").dangers] == [""]


def test_more_words_than_can_be_looked_at_are_covered_by_no_rule():
    assert [danger.option for danger in opened("frob" + " a" * 300).dangers] == [""]


def test_options_for_output_name_files_that_are_written():
    found = opened("frob -o a --output=b --dump-bin c -w d -O/e --log-file /f --log info")
    assert [(file.access, file.path.text) for file in found.files] == [
        ("write", "a"),
        ("write", "b"),
        ("write", "c"),
        ("write", "d"),
        ("write", "/e"),
        ("write", "/f"),
    ]


@pytest.mark.requirement("POL-3")
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("bazel build --workspace_status_command=./x //a", ["--workspace_status_command"]),
        ("bazel build --workspace_status_command ./x //a", ["--workspace_status_command"]),
        ("bazel build --keep_going //a", []),
        ("rsync --new-hook=x a b", ["--new-hook"]),
        ("rsync --whole-file a b", []),
    ],
)
def test_an_option_that_a_model_does_not_list_is_judged_by_its_name(
    command: str, options: list[str]
):
    assert [danger.option for danger in opened(command).dangers] == options


@pytest.mark.parametrize("command", ["echo /bin/sh", "printf '!x'", "true", "cd /bin"])
def test_what_only_prints_or_steers_the_shell_is_left_alone(command: str):
    assert opened(command) == CommandEffects()


@pytest.mark.parametrize(
    ("text", "is_command"),
    [
        ("!id", True),
        (" :!id", True),
        ("shell id", True),
        ("a\n! id", True),
        ("/bin/sh -p", True),
        ("put a b", False),
        ("a line of text; the shell of a nut", False),
    ],
)
def test_lines_that_start_a_command_in_many_programs_are_known(text: str, is_command: bool):
    assert is_typed_command(text) is is_command
