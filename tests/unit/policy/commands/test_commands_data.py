"""Databases and calculators: what makes them start commands."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
psql -c 'select 1'
psql -U x -d y -c 'select * from t'
sqlite3 x.db 'select 1'
sqlite3 x.db .tables
redis-cli get x
psql -o out -c 'select 1'
psql -L log -c 'select 1'
"""

FOUND = r"""
psql -c '\! rm x' -> danger -c | script rm x
psql -c "copy x to program 'rm'" -> danger -c
psql -o out -c 'select 1' -> write out
psql -o '|rm x' -c 'select 1' -> danger -o
psql -o ' | rm x' -c 'select 1' -> danger -o
psql --output='|rm x' -c 'select 1' -> danger --output
psql -L '|rm x' -c 'select 1' -> danger -L
mysql -e '\! rm' -> danger -e
mysql -e 'system rm' -> danger -e
sqlite3 x.db '.shell rm' -> danger .shell rm | script rm | write x.db
sqlite3 x.db '.system rm' -> danger .system rm | script rm | write x.db
sqlite3 -cmd '.shell rm' x.db -> danger -cmd | script rm | write x.db | stdin sqlite
sqlite3 x '.import "|rm" y' -> danger .import "|rm" y | write x | read "|rm" y
dc -e '!rm' -> script rm
gnuplot -e 'system("x")' -> gnuplot -e refused
gpg --photo-viewer x -> danger --photo-viewer
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
