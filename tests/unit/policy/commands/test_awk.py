"""awk programs: commands, pipes and files are told from comparisons and text."""

from __future__ import annotations

import pytest

from cellwall.policy.commands.awk import MAX_CHARACTERS, judge
from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
awk '{print ($1+$2)/2}' f
awk '{ if ($1 ~ /x/) print a[1]/2 }' f
awk '{print $1}' f
awk -F, '{s+=$3} END {print s}' f
awk 'NR>1 && $3 > 10' f
awk '$1 == "x" {print $2, $3}' f
awk '{a[$1]++} END {for (k in a) print k, a[k]}' f
awk '{printf "%s %d\n", $1, $2}' f
awk 'length > 80' f
awk '{ if ($1 > 5) print "big"; else print "small" }' f
awk '{gsub(/[^\/]*$/, ""); print}' f
awk '{print $1/1024 " MB"}' f
"""

FOUND = r"""
awk 'BEGIN{system("x")}' -> awk refused
awk 'BEGIN { "x" | getline y }' -> awk refused
awk '{print | "sh"}' f -> awk refused | read f
awk '{print > "/etc/x"}' f -> read f | write /etc/x
awk '{print >> "/etc/x"}' f -> read f | write /etc/x
awk '{print > $1}' f -> danger | read f
awk 'BEGIN{while((getline l < "/etc/passwd")>0) print l}' -> read /etc/passwd
awk 'BEGIN{getline < "/etc/x"; print}' -> read /etc/x
awk '@load "x"' -> danger
awk '@include "x"' -> danger
awk -i x 1 -> danger -i
awk -l x 1 -> danger -l
awk --load=x 1 -> danger --load
awk -E x a -> danger -E | read a | read x
awk --exec=x -> danger --exec | read x
awk -e 'BEGIN{system("x")}' -> awk -e refused
awk --source='BEGIN{system("x")}' -> awk --source refused
awk 'BEGIN{x="system"; @x("y")}' -> danger
awk "@u" -> danger | danger
awk 'BEGIN { print "x" |& "sh" }' -> awk refused
awk 'BEGIN { printf "%s", "x" | "sh" }' -> awk refused
awk -f prog.awk f -> danger -f | read f | read prog.awk
awk -fprog.awk f -> danger -f | read f | read prog.awk
awk --file=prog.awk f -> danger --file | read f | read prog.awk
awk --fil prog.awk f -> danger --fil | read f | read prog.awk
awk -f - -> danger -f | stdin awk
gawk 'BEGIN{ARGV[1]="/etc/passwd";ARGC=2}{print}' -> danger | danger
awk 'BEGIN{print "x" > "/inet/tcp/0/h/1"}' -> danger
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize("program", ['"a",\n"b"', '1 ?\n"a" : "b"', '1 ? "a" :\n"b"'])
def test_a_print_goes_on_behind_a_sign_at_the_end_of_a_line(program: str):
    assert told(f"awk '{{print {program} > \"/etc/x\"}}'") == ["write /etc/x"]


@pytest.mark.parametrize(
    "program",
    [
        '/[[:alpha:]/]+/{system("id")}/x/',
        '/[/]/{system("id")}#/',
        "{ print `id` }",
        '{ print "not closed }',
        "/not closed",
        'BEGIN{ $/"/; system("id") #"\n}',
        'BEGIN{ exit /"/ || system("id") #"\n}',
        'BEGIN{ getline / 1; system("id") / 1 }',
        'BEGIN{ if (1) /"/; system("id") #"\n}',
        'BEGIN{ while ((1)) /"/; system("id") #"\n}',
        'BEGIN{ x++ /"/; system("id") #"\n}',
        '/a/ /"/; system("id") #"\n',
    ],
)
def test_what_awks_could_read_differently_is_refused(program: str):
    assert told(f"awk '{program}'") == ["danger"]


@pytest.mark.parametrize(
    "program",
    [
        "{ print ($1 > 2) }",
        '{ x = $1 > 2 ? "system" : "|"; print x }',
        "/system|getline/ { n++ } END { print n }",
        '# system("id")\n{ print }',
        '{ print $1 > "/dev/stderr" }',
        "{ y = x / 2; z = 3 / y; print z }",
    ],
)
def test_signs_in_comparisons_text_and_patterns_are_harmless(program: str):
    assert told(f"awk '{program}'") == []


def test_files_and_assignments_behind_the_program_are_told_apart():
    assert told("awk -F: '{print $1}' OFS=- /etc/passwd") == ["read /etc/passwd"]


def test_gawk_edits_in_place():
    assert told("gawk -i inplace '{print}' a b") == [
        *("read a", "write a", "read b", "write b"),
    ]


def test_the_program_of_an_option_leaves_all_operands_to_be_files():
    assert told("gawk -e '{print}' a") == ["read a"]


def test_a_program_that_is_too_long_is_refused():
    assert judge("1 " * MAX_CHARACTERS).unclear
