"""The filter options of every command that reads the audit log."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cellwall.core.events import EventKind
from cellwall.core.verdict import Verdict

if TYPE_CHECKING:
    from cellwall.admin.audit_queries import Query

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_NAMES = ("session_id", "action_id", "principal", "kind", "verdict", "since", "until", "text")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """`2026-01-31`, `2026-01-31T12:00:00Z`, or `90m` for ninety minutes ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        # Without a zone it is this machine's time, as everywhere on a command line.
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            "write 2026-01-31, 2026-01-31T12:00:00Z, or 90m for 90 minutes ago."
        ) from None


_OPTIONS = (
    click.option("--session", "session_id", metavar="ID", help="Records of one sandbox (sbx_...)."),
    click.option("--action", "action_id", metavar="ID", help="Records of one action (act_...)."),
    click.option("--user", "principal", metavar="NAME", help="Records of one user."),
    click.option("--kind", type=click.Choice([kind.value for kind in EventKind]), help="One kind."),
    click.option(
        "--verdict", type=click.Choice([verdict.word for verdict in Verdict]), help="One verdict."
    ),
    click.option(
        "--since", metavar="TIME", callback=moment, help="Start: a time, or 90m, 2h, 3d ago."
    ),
    click.option(
        "--until",
        metavar="TIME",
        callback=moment,
        help="End (exclusive): a time, or 90m, 2h, 3d ago.",
    ),
    click.option("--text", metavar="TEXT", help="Records that contain this text."),
)


def filter_options(command: Decorated) -> Decorated:
    """All filter options; the command receives them as one `query`."""

    @functools.wraps(command)
    def with_query(**given: Any) -> int:  # noqa: ANN401  # what click has parsed
        return int(command(query=_query({name: given.pop(name) for name in _NAMES}), **given))

    decorated: Any = with_query
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click keeps what it decorates


def _query(given: dict[str, Any]) -> Query:
    from cellwall.admin.audit_queries import Query  # noqa: PLC0415  # heavy

    if given["kind"] is not None:
        given["kind"] = EventKind(given["kind"])
    if given["verdict"] is not None:
        given["verdict"] = Verdict[given["verdict"].upper()]
    return Query(**given)
