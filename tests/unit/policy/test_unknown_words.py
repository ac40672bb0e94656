"""Words that are not known: who chose them decides whether a command is allowed, asked or denied."""

from __future__ import annotations

import pytest

from unit.policy.policies import bash, policy, verdict

pytestmark = pytest.mark.requirement("POL-14", "POL-12")

EVERYTHING = policy(allow=["Bash(*)", "Read(//**)", "Write(//**)"])

ALLOWED = [
    # Variables that the text does not set are the person's own.
    "find $DIR -name x",
    'find "$DIR" -type f',
    "tar -xzf $ARCHIVE",
    "cat $FILE | wc -c",
    "git log $RANGE",
    # Numbers of processes are no options and no `-1`.
    "kill $(lsof -t -i:3000)",
    "kill -9 $(lsof -ti:3000)",
    "kill $(pidof node)",
    "kill -9 $(pgrep -f 'node server')",
    "kill `jobs -p`",
    # Names that were found, each as one word.
    "find . -name '*.pyc' -print0 | xargs -0 rm",
    "find . -type d -print0 | xargs -0 chmod 755",
    "find /srv/data -mtime 7 -exec rm -rf {} \\;",
    "find . -name *.txt",
    "rm *.txt",
    "find $(pwd) -name core",
    # Forms that only print.
    "mount | grep nfs",
    "crontab -l",
    "date -u -Iseconds",
    "ruby -v",
    "set -v",
]
ASKED = [
    "find . -name '*.pyc' | xargs rm",  # a name may hold a blank, and what follows it
    "rm $(find . -name x)",
    "find . -type f | xargs tar -cf all.tar",
    "find * -name x",  # a file may be named like an option
    "tar -cf all.tar *",
    "cat $(cut -f1 list)",
]
DENIED = [
    "rm -rf $DIR",
    "while read f; do rm $f; done < list",
    'rm -rf "$DIR"/',
    "rm -rf /$DIR",
    "find / -print0 | xargs -0 rm -rf",
    "find / | xargs rm -rf",
    "rm -rf $(find /)",
    "find ~ -print0 | xargs -0 rm -rf",
    "find . -type d -print0 | xargs -0 chmod u+s",
    "kill -9 $(pgrep -a x)",
    "kill $(echo -1)",
    "pgrep() { echo -1; }; kill -9 $(pgrep x)",
    "bash $SCRIPT",
    'bash -c "$CODE"',
    "$PROGRAM x",
    "env $X ls",
    "git $X",
    "mount -o bind a b",
    "mount -l -o bind a b",
    "crontab -l -e",
    "crontab new",
    "date -us 2020-01-01",
    "date -Is -s 2020-01-01",
    "echo 'system(1)' | ruby -v -",
]


@pytest.mark.parametrize("command", ALLOWED)
def test_ordinary_commands_are_allowed_where_everything_is(command):
    assert verdict(EVERYTHING, command) == "allow"


@pytest.mark.parametrize("command", ASKED)
def test_a_person_is_asked_about_names_that_could_become_more(command):
    assert verdict(EVERYTHING, command) == "ask"


@pytest.mark.parametrize("command", DENIED)
def test_what_is_dangerous_or_hides_code_stays_denied(command):
    assert verdict(EVERYTHING, command) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "find $DIR -name x",
        "find * -name x",
        "find . | xargs find",
        "DIR='-exec id ;'; find $DIR",
        "read DIR < f; find $DIR",
        "f() { find $1; }; f -delete",
        "eval X=1; find $X",
    ],
)
def test_a_rule_for_one_program_does_not_cover_options_that_nobody_knows(command):
    assert verdict(policy(allow=["Bash(find *)", "Bash(xargs *)"]), command) == "deny"


@pytest.mark.parametrize(
    "command",
    ["DIR='-exec id ;'; find $DIR", "f() { find $1; }; f -delete", "sh -c 'find $1' _ -delete"],
)
def test_a_variable_that_the_text_sets_is_not_the_persons_own(command):
    assert verdict(EVERYTHING, command) != "allow"


@pytest.mark.parametrize("command", ["mount", "crontab -l"])
def test_a_denial_that_a_person_wrote_also_means_what_only_prints(command):
    program = command.split()[0]
    made = policy(allow=["Bash(*)"], deny=[f"Bash({program} *)"])
    assert verdict(made, command) == "deny"


def test_a_refusal_says_what_to_write_instead():
    found = bash(EVERYTHING, "find . -name x | xargs rm")
    assert "-print0 | xargs -0" in found.reason
    assert "./*" in bash(EVERYTHING, "tar -cf all.tar *").reason
