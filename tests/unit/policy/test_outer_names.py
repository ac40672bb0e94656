"""A variable that the text around a script sets is not the person's own inside of the script."""

from __future__ import annotations

import pytest

from unit.policy.policies import policy, verdict

pytestmark = pytest.mark.requirement("POL-2", "POL-12")

EVERYTHING = policy(allow=["Bash(*)", "Read(//**)", "Write(//**)"])
KEY = "/home/ann/.ssh/id_rsa"


@pytest.mark.parametrize(
    "command",
    [
        f"""X={KEY}; eval 'cat "$X"'""",
        f"""X={KEY}; trap 'cat "$X"' EXIT""",
        f"""export X={KEY}; bash -c 'cat "$X"'""",
        f"""env X={KEY} bash -c 'cat "$X"'""",
        f"""X={KEY} bash -c 'cat "$X"'""",
        f"""X={KEY} bash <<< 'cat "$X"'""",
        f"""for X in {KEY}; do bash -c 'cat "$X"'; done""",
        f"""read X <<< {KEY}; export X; bash -c 'cat "$X"'""",
        f"""eval 'X={KEY}'; eval 'cat "$X"'""",
        f"""while :; do eval 'cat "$X"'; eval 'X={KEY}'; done""",
        f"""X={KEY} find . -exec sh -c 'cat "$X"' \\;""",
    ],
)
def test_a_script_cannot_read_what_the_text_around_it_named(command):
    assert verdict(EVERYTHING, command) != "allow"


@pytest.mark.parametrize(
    "command",
    ["""bash -c 'cat "$X"'""", """Y=1 bash -c 'cat "$X"'""", """eval 'cat "$FILE"'"""],
)
def test_a_variable_that_nobody_sets_is_the_persons_own(command):
    assert verdict(EVERYTHING, command) == "allow"
