"""`find_effects` answers for any words, and never raises."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cellwall.parsing.shell.words import UNKNOWN, Word, literals
from cellwall.policy.commands.catalog import find_model, programs
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.models import find_effects
from unit.policy.commands.opening import opened, table, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

_SIGNS = [
    "-",
    "--",
    "-c",
    "-e",
    "-x",
    "-exec",
    ";",
    "+",
    "{}",
    ":::",
    "=",
    "@f",
    "x=y",
    "",
    "/",
    "*",
    UNKNOWN,
]
_NAMES = sorted(programs())


@cache
def _options() -> list[str]:
    models = [model for name in _NAMES if (model := find_model(name))]
    names = {name for model in models for name in (*model.options, *model.subs)}
    return sorted(names | {f"{name}={UNKNOWN}" for name in names if name.startswith("--")})


_option = st.deferred(lambda: st.sampled_from(_options()))
_words = st.builds(
    Word,
    st.one_of(st.sampled_from(_SIGNS), _option, st.text(max_size=20)),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(st.sampled_from(_NAMES), st.lists(_words, max_size=8))
@example("python", [Word("-m"), Word(UNKNOWN)])
def test_no_words_raise(name: str, words: list[Word]):
    assert isinstance(find_effects((Word(name), *words)), CommandEffects)


@settings(max_examples=300, deadline=None)
@given(st.lists(_words, max_size=6))
def test_no_program_raises(words: list[Word]):
    find_effects(words)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(_NAMES), st.lists(_option, max_size=5))
def test_words_in_a_list_are_opened_like_words_in_a_tuple(name: str, words: list[str]):
    found = literals([name, *words])
    assert find_effects(list(found)) == find_effects(found)


def test_a_program_whose_name_is_not_known_is_opened_to_nothing():
    assert opened("@u -c x") == CommandEffects()
    assert find_effects(()) == CommandEffects()


def test_a_program_without_a_model_is_opened_by_the_general_rule():
    assert opened("some-tool a b") == CommandEffects(is_unmodelled=True, is_typed=True)
    assert [danger.option for danger in opened("some-tool --exec rm").dangers] == ["--exec"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "find " + "-exec a ; " * 3000,
        "fd " + "-x a ; " * 3000,
        "tar -" + "x" * 100_000,
        "cargo " + "+nightly " * 3000,
        "git -c " + "alias." * 20_000 + "=x log",
        "psql -c '" + "copy " * 12_000 + "'",
        "awk '" + "/[" * 20_000 + "'",
        "sed '" + "s/[" * 20_000 + "'",
        "ssh -o '" + " " * 60_000 + "x' h",
        "python -m " + "coverage run -m " * 3000,
        "node -e '" + "require " * 8000 + "'",
        "perl -e '" + "<" * 60_000 + "'",
        "env " + "env " * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_long_words_and_many_words_take_bounded_time(text: str):
    start = time.thread_time()
    told(text)
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("tar --checkpoint-ac=exec=rm", "script rm"),
        ("sort --compress-pro=x", "open x"),
        ("curl --dat @f u", "read f"),
        ("pip install --extra-index http://x y", "danger --extra-index"),
        ("rsync --rsync-pa=x a b", "script x"),
        ("git fetch --upload=x o", "script x"),
    ],
)
def test_shortened_options_are_the_options_they_stand_for(command: str, option: str):
    assert option in told(command)


@pytest.mark.parametrize(
    "command",
    ["sort -- --compress-program=x", "tar cf a -- --checkpoint-action=exec=x", "rm -- -rf"],
)
def test_operands_behind_two_dashes_are_no_options(command: str):
    assert not [line for line in told(command) if line.startswith(("danger", "script", "inner"))]


# Each holds a word that is easily taken for the value of the option before it, or the other way.
HIDDEN = r"""
perl -CSe 'system("x")' -> perl -CSe refused
perl -CSDne 'system("x")' -> perl -CSDne refused
ruby -W0e 'system("x")' -> ruby -W0e refused
ruby -E utf-8 -e 'system("x")' -> ruby -e refused
julia --project -e 'x' -> julia -e refused
node --dns-result-order x -e 'eval(1)' -> node -e refused
torsocks -p ls rm x -> danger -p | inner ls rm x
perf stat -x ls rm y -> inner rm y
perf stat -c ls rm -> danger -c | inner ls rm
ltrace -S rm ls -> inner rm ls
ssh-copy-id -f -o ProxyCommand=x h -> danger -o
git format-patch -n --output=/x -> write /x
coverage run -p -m timeit x -> danger -m
pytest --cov -p evil -> danger -p
nodemon -C -x 'rm' -> script rm
vim -V9/etc/x f -> read f | write /etc/x | write f
script -q /dev/null rm x -> inner rm x | write /dev/null
cat -n /etc/shadow -> read /etc/shadow
comm -1 a b -> read a | read b
man /etc/passwd -> read /etc/passwd
ssh -P h rm -> danger -P | script rm
"""


@pytest.mark.parametrize(("command", "found"), table(HIDDEN))
def test_no_option_hides_the_word_behind_it(command: str, found: list[str]):
    assert sorted(told(command)) == found
