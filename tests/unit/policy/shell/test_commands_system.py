"""The machine itself: what is changed outside of the session."""

from __future__ import annotations

import pytest

from unit.policy.shell.opening import lines, table, told, troubles

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
ps aux
kill 1234
kill -9 1234
pkill -f myserver
lsof -i :8080
systemctl status nginx
journalctl -u nginx -n 50
crontab -l
kill -- @u
kill -- @s
kill -TERM %1
systemctl status nginx --no-pager
"""

FOUND = r"""
ss -F.env -> read .env
ss -D ../x -> write ../x
dig -f .env -> read .env
ip netns exec x rm -> inner rm
ip net e x rm -> inner rm
at now -> danger at
crontab x -> danger x
crontab - -> danger -
kill -9 -1 -> danger -1
kill -KILL -- -1 -> danger -1
kill 1 -> danger 1
kill -9 0 -> danger 0
kill -- @u -1 -> danger -1
kill -9 -@u -> danger
pkill . -> danger .
pkill -f '' -> danger
pkill -u root -> danger -u
journalctl --vacuum-size=1 -> danger --vacuum-size
dbus-send --session x -> danger dbus-send
"""


@pytest.mark.parametrize("command", lines(EVERYDAY))
def test_an_everyday_form_needs_no_more_than_a_rule_for_the_command(command: str):
    assert troubles(command) == []


@pytest.mark.parametrize(("command", "found"), table(FOUND))
def test_what_it_runs_reads_and_writes_is_found(command: str, found: list[str]):
    assert sorted(told(command)) == found
