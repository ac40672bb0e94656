"""What bash really runs is among what was read, for texts that nobody would write.

bash runs the text with no program to be found; each name that it looks for is told.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.policy.shell.parser import NotUnderstood
from holdfast.policy.shell.reader import read_shell

pytestmark = pytest.mark.requirement("POL-2")

_TELL = 'command_not_found_handle() {{ printf "%s\\0" "$1" >&{}; }}\n'
_EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "250"))

_NAMES = ["p0", "p1", "p2", "p3"]
_ODD = [
    "\\\n",
    "\\\\\n",
    " \\\n",
    "#",
    " # x",
    "\n",
    "''",
    '""',
    "\\",
    "$",
    "`",
    "{",
    "}",
    "!",
    "\t",
]
_FORMS = [
    "{}",
    "{} a",
    "{}; {}",
    "{} | {}",
    "{} && {}",
    "{} || {}",
    "{} & {}",
    "$({})",
    '"$({})"',
    "`{}`",
    '"`{}`"',
    "({})",
    "{{ {}; }}",
    "if {}; then {}; fi",
    "for i in 1; do {}; done",
    "while {}; do {}; break; done",
    "case $({}) in *) {};; esac",
    "f() {{ {}; }}; f",
    "echo <({})",
    "echo ${{x:-$({})}}",
    'echo "${{x:-"$({})"}}"',
    "x=$({}) {}",
    "x=({} $({}))",
    "[[ $({}) == a ]]",
    "echo $(( 1 + 2 )) $({})",
    "cat <<E\n$({})\nE\n{}",
    "cat <<'E'\n$({})\nE\n{}",
    "cat <<-E\n\t`{}`\n\tE\n{}",
    "echo '{}'",
    "echo \\`{}\\`",
    "echo \"\\$({})\" $'\\'' {}",
    "{} <<< $({})",
    "! {}",
    "time {}",
    "coproc {}; {}",
    "{} > /dev/null 2>&1",
    "# {}\n{}",
    "{} # {}",
    "a=1 b=2 {}",
    "until {}; do {}; break; done",
    "select x in 1; do {}; break; done < /dev/null",
    "function g {{ {}; }}; g",
    "eval {}",
    "echo {{{},x}}",
    "{{{},x}}",
    "\\{}",
    "'{}'",
    '"{}"',
    "$'{}'",
]


@st.composite
def texts(draw, depth: int = 3) -> str:
    if depth == 0:
        return draw(st.sampled_from(_NAMES))
    form = draw(st.sampled_from(_FORMS))
    parts = [draw(texts(depth - draw(st.integers(1, depth)))) for _ in range(form.count("{}"))]
    text = form.format(*parts)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(_ODD)) + text[at:]
    return text


def really_run(text: str) -> set[str]:
    """The names that bash looks for."""
    read_end, write_end = os.pipe()
    try:
        subprocess.run(
            ["/bin/bash", "--norc", "--noprofile", "-c", _TELL.format(write_end) + text],
            env={"PATH": "/nowhere"},
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        pass
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    with os.fdopen(read_end, "rb") as told:
        return set((told.read() or b"").decode("utf-8", "replace").split("\0")) - {""}


@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts())
def test_what_bash_runs_was_read(text):
    try:
        found = read_shell(text, directories=("/w",), home="/h")
    except NotUnderstood:
        return
    words = [each.words[0] for each in found if each.words]
    if any(not word.is_literal for word in words) or any(w.text == "eval" for w in words):
        return  # denied as such, or opened by the models
    assert really_run(text) <= {word.text for word in words}, text
