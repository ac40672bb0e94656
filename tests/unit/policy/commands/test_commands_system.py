"""The machine itself: what is changed outside of the session."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

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
kill -9 -1 -> danger
kill -KILL -- -1 -> danger
kill 1 -> danger 1
kill -9 0 -> danger 0
kill -- @u -> danger
kill -- @s -> danger
kill -- @u -1 -> danger | danger
kill -9 -@u -> danger
pkill . -> danger . | danger
pkill -f '' -> danger | danger
pkill -u root -> danger -u | danger
journalctl --vacuum-size=1 -> danger --vacuum-size
dbus-send --session x -> danger dbus-send
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
