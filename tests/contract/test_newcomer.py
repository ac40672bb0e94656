"""What tests/newcomer/run has a newcomer type is the README, all of it (G2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from newcomer import readme
from newcomer.hosts import Answer, Shown, type_line

ROOT = Path(__file__).parents[2]

TEXT = """
```console
$ tool --version
1.0
```

```sh
./install          # takes a while
tool check         # exit 0 fine, 3 not
tool long \\
    words
```

```python
print(1)
```
```python
print(2)
```
"""


def test_every_command_of_the_readme_is_typed_in_order():
    text = (ROOT / "README.md").read_text("utf-8")
    shell = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    typed = [step.shown_as for step in readme.read()]
    first_words = [line.split()[0] for line in shell.replace("\\\n", "").splitlines() if line]
    examples = len(re.findall(r"^\$ ", text, re.MULTILINE))
    # All of Python is one program; a variable is set in the step that uses it.
    assigned = sum("=$(" in word for word in first_words)
    assert len(typed) == len(first_words) - assigned + examples + 1
    assert typed[:2] == ["./dev run", "./dev test"]


def test_examples_come_after_the_commands_that_install_and_python_is_one_program():
    marks = {"step": [{"line": "tool long words", "shows": ["x"], "answers": [["Name: ", "me"]]}]}
    found = readme.steps(TEXT, marks)
    assert [(step.shown_as, step.exits) for step in found] == [
        ("./install", (0,)),
        ("tool check", (0, 3)),
        ("tool long words", (0,)),
        ("tool --version", (0,)),
        ("python", (0,)),
    ]
    assert (found[2].shows, found[2].answers) == (("x",), (Answer("Name: ", "me"),))
    assert found[4].program == "print(1)\n\nprint(2)\n"


@pytest.mark.parametrize(
    "mark", [{"line": "tool gone"}, {"line": "./install", "packages": ["nowhere-told"]}]
)
def test_a_mark_that_the_readme_does_not_bear_out_is_refused(mark):
    with pytest.raises(ValueError, match=r"README"):
        readme.steps(TEXT, {"step": [mark]})


@pytest.mark.parametrize(
    ("shown", "faults"),
    [
        (Shown(0, "a 42\n", 1.0), []),
        (Shown(1, "42", 1.0), ["exit code 1"]),
        (Shown(0, "41", 1.0), ["does not show '42'"]),
        (Shown(None, "42", 9.0), ["still running after 9 s"]),
        (Shown(0, "42 CW-INTERNAL", 1.0), ["shows 'CW-INTERNAL'"]),
    ],
)
def test_a_step_that_ended_wrongly_is_a_fault(shown, faults):
    assert readme.Step("tool", "tool", shows=("42",)).faults(shown) == faults


class ThisMachine:
    """A host whose commands are run right here."""

    def __init__(self, transcript: Path) -> None:
        self.transcript = transcript

    def words(self, line: str, *, as_root: bool) -> list[str]:
        return ["sh", "-c", line]


def test_a_line_is_typed_at_a_terminal_and_its_prompts_are_answered_in_order(tmp_path):
    ask = "printf 'Word %s: ' $1; read answer; echo \"got $answer\""
    line = f"test -t 0 && set -- abc; {ask}; {ask}; exit 3"
    answers = [Answer(r"Word (\w+): ", r"<\1>"), Answer(r"Word \w+: ", "second")]
    shown = type_line(ThisMachine(tmp_path / "transcript"), line, answers=answers)
    assert shown.exit_code == 3
    assert [row for row in shown.text.splitlines() if "got" in row] == ["got <abc>", "got second"]
    assert b"got second" in (tmp_path / "transcript").read_bytes()


def test_a_line_that_does_not_end_is_ended_at_its_deadline(tmp_path):
    shown = type_line(ThisMachine(tmp_path / "transcript"), "read never", timeout_s=0.1)
    assert shown.exit_code is None


def test_the_guide_to_hosts_shows_the_options_of_a_container():
    assert "seccomp=unconfined" in readme.documented_container_options()
