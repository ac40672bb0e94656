"""How tests write a command and tell what it was opened to."""

from __future__ import annotations

import shlex

from cellwall.parsing.shell.words import UNKNOWN, Word, render_words
from cellwall.policy.code.sieve import screen
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.models import find_effects


def words(text: str) -> tuple[Word, ...]:
    """`@u` is what only the running shell knows, `@s` the same without quotes, `@g` a wildcard."""
    return tuple(map(_word, shlex.split(text)))


def _word(text: str) -> Word:
    known = text.replace("@u", UNKNOWN).replace("@s", UNKNOWN).replace("@g", "")
    return Word(known, is_split="@s" in text, has_glob="@g" in text)


def opened(text: str) -> CommandEffects:
    return find_effects(words(text))


def told(text: str) -> list[str]:
    """All that was found, as lines a table can hold."""
    found = opened(text)
    lines = [f"danger {danger.option}".rstrip() for danger in found.dangers]
    for code in found.codes:
        assert code.text is not None
        verdict = "refused" if screen(code.language, code.text.text) else "harmless"
        lines.append(f"{code.language} {code.option} {verdict}".replace("  ", " "))
    lines += [f"script {render_words([script.text])}" for script in found.scripts]
    lines += [
        f"{'open' if i.is_open_ended else 'inner'} {render_words(i.words)}" for i in found.inner
    ]
    lines += [f"{file.access} {render_words([file.path])}" for file in found.files]
    lines += [f"set {each.name}={render_words([each.value])}" for each in found.assignments]
    if found.reads_stdin_as:
        lines.append(f"stdin {found.reads_stdin_as}")
    return lines


def table(text: str) -> list[tuple[str, list[str]]]:
    """Lines of `COMMAND -> FOUND | FOUND`, the command as it stands in a shell."""
    rows = [line.split(" -> ") for line in text.strip().splitlines() if line.strip()]
    return [(row[0].strip(), sorted(part.strip() for part in row[1].split(" | "))) for row in rows]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def troubles(text: str) -> list[str]:
    """What of it would need more than a rule for the command itself."""
    calm = ("read ", "write ", "set ", "inner ", "open ")
    return [line for line in told(text) if not line.startswith(calm) and "harmless" not in line]


class Tables:
    """Tests of the two tables that a module has; its `conftest.py` makes a case of each line."""

    def test_an_everyday_form_needs_no_more_than_a_rule_for_the_command(self, everyday: str):
        assert troubles(everyday) == []

    def test_what_it_runs_reads_and_writes_is_found(self, command: str, found: list[str]):
        assert sorted(told(command)) == found
