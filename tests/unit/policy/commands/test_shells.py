"""Shells and their built-in commands: text that is run, names that are evaluated."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, opened, told, troubles

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
printf '%s\n' a b
export FOO=bar
source .venv/bin/activate
. ./env.sh
source /srv/x/.venv/bin/activate
test -f x
[ -d x ]
bash script.sh
bash -x run.sh a b
sh ./build.sh
read -r line
mapfile -t lines
trap - EXIT
declare -A map
declare -i n=5
local x=1 y
export PATH
"""

FOUND = r"""
bash -n +n ./x.sh -> danger +n | read ./x.sh
bash -n +o noexec ./x.sh -> danger +o | read ./x.sh
bash -n -i ./x.sh -> danger -i | read ./x.sh
zsh -no exec ./x.sh -> danger -no | read ./x.sh
bash -n ./x.sh -> read ./x.sh
bash //dev/fd/3 -> danger
source /tmp/../dev/fd/3 -> danger | read /tmp/../dev/fd/3
eval rm -rf x -> script rm -rf x
bash -c 'rm x' -> script rm x
bash -lc 'rm x' -> script rm x
bash -xec 'rm x' -> script rm x
bash -c -- 'rm x' -> script rm x
bash --norc -c 'rm x' -> script rm x
bash -o errexit -c 'rm x' -> script rm x
bash -oc errexit 'rm x' -> script rm x
bash --rcfile x -i -> danger --rcfile | stdin sh
bash --init-f x -> danger --init-f | stdin sh
bash -> stdin sh
sh -s -> stdin sh
bash @u -> danger | danger
zsh -fc 'rm x' -> script rm x
dash -c rm -> script rm
fish -c 'rm x' -> script rm x
source /tmp/x -> danger source | read /tmp/x
. @u -> danger | read …
source ../../x -> danger source | read ../../x
trap 'rm x' EXIT -> script rm x
alias ls='rm x' -> danger | script rm x
hash -p /tmp/x ls -> danger -p
enable -f ./x.so y -> danger -f
bind -x '"a":rm x' -> danger -x
complete -C 'rm x' y -> script rm x
mapfile -C 'rm x' -c 1 a -> script rm x | set a=…
readarray -C 'rm' a -> script rm | set a=…
printf -v 'a[$(rm x)]' x -> danger
read 'a[$(rm x)]' -> danger
test -v 'a[$(rm x)]' -> danger
[ -v 'a[$(rm x)]' ] -> danger
unset 'a[$(rm x)]' -> danger
declare 'a[$(rm x)]=1' -> danger
declare -i 'x=a[$(id)]' -> danger | set x=a[$(id)]
let 'a[$(rm x)]=1' -> danger
export @u -> danger
[ @s = x ] -> danger
zsh --emulate sh -c 'rm x' -> script rm x
mksh -T x -c rm -> danger -T | script x
declare -a 'x=($(id))' -> danger | set x=($(id))
declare -n 'x=a[$(id)]' -> danger | set x=a[$(id)]
wait -p 'a[$(id)]' -> danger -p
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize(
    "options",
    [
        "-c",
        "-lc",
        "-xec",
        "-ce",
        "-c --",
        "-o errexit -c",
        "-oc errexit",
        "-eo pipefail -c",
        "--norc -c",
        "+x -c",
    ],
)
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh", "/bin/sh"])
def test_the_text_is_found_in_any_cluster_and_at_any_place(shell: str, options: str):
    assert told(f"{shell} {options} 'rm x' name") == ["script rm x"]


def test_a_script_file_is_read_and_its_arguments_are_its_own():
    assert told("bash run.sh -c 'rm x'") == ["read run.sh"]
    assert not opened("bash run.sh").is_wrapper


@pytest.mark.parametrize("place", ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_under_any_name_is_standard_input(place: str):
    assert told(f"bash {place}") == ["stdin sh"]
    assert told(f"source {place}") == ["stdin sh"]


@pytest.mark.parametrize("place", ["/dev/tcp/h/1", "/proc/self/fd/5", "/dev/fd/63"])
def test_code_from_a_descriptor_or_the_network_is_a_danger(place: str):
    assert "danger" in told(f"bash {place}")
    assert "danger" in told(f"source {place}")


@pytest.mark.parametrize("name", ["a[x]", "a[$(id)]", "a[`id`]", "a[0", "@u", "1a", "a b"])
@pytest.mark.parametrize(
    "form",
    [
        "read -r '{}'",
        "unset '{}'",
        "printf -v '{}' %s x",
        "test -v '{}'",
        "declare '{}=1'",
        "getopts ab '{}'",
        "read -a '{}'",
    ],
)
def test_a_name_that_the_shell_would_evaluate_is_a_danger(form: str, name: str):
    assert "danger" in told(form.format(name))


@pytest.mark.parametrize(
    "form",
    [
        "read -r a b",
        "unset a 'b[1]'",
        "printf -v a %s x",
        "test -v a",
        "declare -x a=1",
        "getopts ab: o",
        "let i++ j=i+2",
    ],
)
def test_a_plain_name_is_harmless(form: str):
    assert troubles(form) == []


def test_assignments_are_told():
    assert told("export A=1 B=@u C") == ["set A=1", "set B=…"]
    assert told("local PATH=/x") == ["set PATH=/x"]


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("read -r PATH", ["PATH"]),
        ("read -p 'which? ' a b", ["a", "b"]),
        ("read -ra words", ["words"]),
        ("getopts ab: PATH", ["PATH"]),
        ("printf -v PATH %s x", ["PATH"]),
        ("printf -vPATH x", ["PATH"]),
        ("printf -v PATH", ["PATH"]),
        ("mapfile -t PATH", ["PATH"]),
        ("readarray -d '' -n 3 a", ["a"]),
    ],
)
def test_a_builtin_that_fills_a_variable_tells_it_with_an_unknown_value(
    form: str, names: list[str]
):
    assert told(form) == [f"set {name}=…" for name in names]


@pytest.mark.parametrize("form", ["read", "printf %s -v a", "printf -- -v a", "printf '%s' x"])
def test_a_builtin_that_names_no_variable_sets_none_by_name(form: str):
    assert told(form) == []


def test_a_variable_that_is_taken_away_is_set_to_nothing():
    assert told("unset PATH") == ["set PATH=''"]
