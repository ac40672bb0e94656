"""Programs that start another one: the other one is found, whatever stands before it."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, opened, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
env
timeout 60 pytest
nice -n 10 make
nohup python x.py
time make
xargs grep foo
xargs -0 rm
xargs -n1 -P4 echo
command -v git
direnv status
strace -f -o out ls
valgrind --leak-check=full ./x
hyperfine --version
env FOO=1 make test
parallel gzip {} ::: a b
flock /tmp/l make
flock -n 9
"""

FOUND = r"""
env -S 'rm -rf x' -> script env rm -rf x
env --split-string='rm -rf x' -> script env rm -rf x
env --spl 'rm -rf x' -> script env rm -rf x
env -i -u A X=1 rm -rf / -> inner rm -rf / | set X=1
env -C / rm x -> inner rm x
env --foo=1 rm -> danger --foo | inner rm
nice rm x -> inner rm x
nice -n5 rm x -> inner rm x
nice -5 rm x -> inner rm x
ionice -c2 -n7 rm x -> inner rm x
timeout -s KILL 5 rm x -> inner rm x
timeout --signal=KILL 5 rm -> inner rm
stdbuf -oL rm -> inner rm
setsid -w rm -> inner rm
chrt -f 5 rm -> inner rm
taskset -c 0 rm -> inner rm
nohup rm x -> inner rm x
exec -a foo rm x -> inner rm x
builtin eval 'rm x' -> inner eval rm x
command rm x -> inner rm x
xargs -I{} bash -c 'rm {}' -> inner bash -c rm …
xargs -P4 -n1 sh -c -> open sh -c
xargs --arg-file=x rm -> open rm | read x
parallel ::: 'rm x' -> danger
parallel 'rm {}; id' ::: a -> script rm …; id
watch rm x -> script rm x
watch -x rm x -> script rm x
flock l rm x -> inner rm x | write l
flock -c 'rm' l -> script rm | write l
flock l -c 'rm x' -> script rm x | write l
strace -o /etc/x rm y -> inner rm y | write /etc/x
strace -o '|rm x' ls -> danger -o | inner ls
strace -fo '!rm x' ls -> danger -fo | inner ls
strace --output='|rm x' ls -> danger --output | inner ls
ltrace -f rm -> inner rm
script -c 'rm x' /dev/null -> script rm x | write /dev/null
script -qc 'rm x' out -> script rm x | write out
sudo rm x -> inner rm x
sudo -u bob rm x -> inner rm x
doas rm x -> inner rm x
su -c 'rm x' -> script rm x
su - root -c 'rm x' -> script rm x
runuser -u x -- rm y -> inner rm y
pkexec rm -> inner rm
busybox rm x -> inner rm x
busybox sh -c 'rm x' -> inner sh -c rm x
systemd-run --user rm x -> inner rm x
xvfb-run rm -> inner rm
direnv exec . rm -> inner rm
valgrind rm -> inner rm
entr rm -> open rm
entr -s 'rm x' -> script rm x
start-stop-daemon --start --exec /bin/rm -> open /bin/rm
run-parts d -> danger d
capsh -- -c rm -> danger capsh
unshare -r rm -> inner rm
nsenter -t 1 rm -> danger -t | inner rm
chroot / rm -> inner rm
hyperfine 'rm x' -> script rm x
perf record rm -> inner rm
concurrently 'rm x' -> script rm x
nodemon --exec 'rm x' -> script rm x
nodemon -x rm -> script rm
watchexec rm -> script rm
unbuffer rm -> inner rm
catchsegv rm -> inner rm
faketime x rm -> inner rm
proxychains rm -> inner rm
/lib64/ld-linux-x86-64.so.2 /bin/rm x -> inner /bin/rm x
gosu root rm -> inner rm
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize(
    "command",
    [
        "env A=1 rm",
        "nice rm",
        "timeout 5 rm",
        "xargs rm",
        "xargs",
        "parallel rm {} ::: a",
        "watch ls",
        "flock f rm",
        "nohup rm",
        "busybox rm",
    ],
)
def test_a_wrapper_does_nothing_of_its_own(command: str):
    assert opened(command).is_wrapper


@pytest.mark.parametrize(
    "command", ["env", "env A=1", "command -v git", "sudo rm", "docker exec c rm", "nice"]
)
def test_what_starts_nothing_or_changes_its_rights_is_no_wrapper(command: str):
    assert not opened(command).is_wrapper


def test_what_xargs_puts_into_words_is_not_known():
    assert told("xargs -I{} cp {} /x") == ["inner cp … /x"]
    assert told("xargs -i cp {} /x") == ["inner cp … /x"]
    assert told("xargs -IX cp X X.bak") == ["inner cp … ….bak"]
    assert told("xargs rm") == ["open rm"]


def test_parallel_quotes_its_input_only_where_there_is_no_sign_of_the_shell():
    assert told("parallel gzip -9 {} ::: a b") == ["inner gzip -9 …"]
    assert told("parallel gzip ::: a b") == ["open gzip"]
    assert told("parallel 'gzip {} && rm {}' ::: a") == ["script gzip … && rm …"]


def test_words_behind_a_split_string_are_part_of_the_command():
    assert told("env -S 'sh -c' 'rm x'") == ["script env sh -c 'rm x'"]


@pytest.mark.parametrize(
    "command",
    ["timeout @s rm", "nice @u rm", "timeout 5@g* rm", "env @s rm", "xargs @s rm", "nice -n @s rm"],
)
def test_a_word_that_could_shift_the_inner_command_is_a_danger(command: str):
    assert "danger" in told(command)


def test_an_unknown_inner_program_is_left_to_be_judged():
    assert told("timeout 5 @u x") == ["inner … x"]
