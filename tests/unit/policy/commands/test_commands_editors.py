"""Editors, pagers and debuggers: what makes them start commands."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
vim f
vim +10 f
less f
man ls
gdb -batch -ex bt ./x core
tmux ls
screen -ls
tmux attach -t x
gdb -batch -ex run -ex bt --args ./x a
"""

FOUND = r"""
gdb --args rm x -> inner rm x
gdb -ex 'shell rm x' -> script rm x
gdb -batch -ex '!rm' -> script rm
tmux new -d 'rm x' -> script rm x
tmux new-session -d -s x rm y -> script rm y
tmux run-shell 'rm' -> script rm
tmux send-keys 'rm x' Enter -> danger Enter | danger rm x
screen -dmS x rm y -> inner rm y
ed x -> stdin ed | write x
ex -sc '!rm' x -> danger -s | stdin ex | write !rm | write x
vi -c ':!rm x' f -> read f | script rm x | write f
vim -c '!rm x' -> script rm x
vim +':!rm x' f -> read f | script rm x | write f
vim +'py import os' f -> vim +py import os refused | read f | write f
vim --cmd ':!x' -> script x
vim -S x -> danger -S
vim -es f -> danger -es | read f | write f
nvim -u x f -> danger -u | read f | write f
emacs --eval '(shell-command "x")' -> elisp --eval refused
emacs -batch -l x -> danger -l
man -P 'sh -c x' ls -> script sh -c x
man --pager='sh -c x' ls -> script sh -c x
less +'!rm' f -> danger +!rm | script rm | read f
xdg-open x -> danger xdg-open
fzf --preview 'rm' -> script rm
fzf --bind 'enter:execute(rm)' -> danger --bind
bat --pager rm x -> read x | script rm
tmux display-message -p '#(rm x)' -> danger #(rm x)
tmux list-sessions -F '#(rm x)' -> danger #(rm x)
gdb --ex 'shell rm' -> script rm
gdb -eval 'shell rm' ./x -> read ./x | script rm
gdb --eval-command='shell rm' x -> read x | script rm
lldb -o 'platform shell rm' -> script rm
nvim -l x.lua -> danger -l
ex f -> stdin ex | write f
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
