"""The options that commands share, and how the command line builds a run from them."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.limits import Limits, size_text
from cellwall.interfaces.cli import AS_JSON
from cellwall.interfaces.sandbox_options import SandboxOptions, read_bounded

if TYPE_CHECKING:
    from cellwall.core.types import Action, Principal, RunCode, RunCommand
    from cellwall.runtime.app import App

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROFILES = ("production", "paranoid", "development")

EXIT_CODES = """\b
Exit codes:
  the program's own, if it ran to its own end
  124  wall time over        137  killed by the memory limit (or by another one)
  125  Cellwall refused or failed; the reason is on standard error
  130, 143  ended by Ctrl-C or SIGTERM, with nothing left behind
"""


def _note_json(ctx: click.Context, _: click.Parameter, wanted: bool) -> bool:  # noqa: FBT001  # click's signature
    """Note `--json` for `main`: errors must be JSON as well."""
    if wanted:
        ctx.meta[AS_JSON] = True
    return wanted


def json_option(text: str) -> Callable[[Decorated], Decorated]:
    """`--json`: one object on standard output, errors included."""
    return click.option("--json", "as_json", is_flag=True, callback=_note_json, help=text)


class _Finite(click.types.FloatParamType):
    """A finite number: no bound holds for `nan` and `inf`, and JSON frames cannot carry them."""

    def convert(
        self,
        value: Any,  # noqa: ANN401  # as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            named = "" if param is None else f"{param.opts[0]}: "
            raise BadInput(
                f"{named}{str(value)[:40]!r} is not a finite number",
                hint="Write a plain number, for example 30.",
                code="CW-BAD-LIMIT",
            )
        return number


FINITE = _Finite()


_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
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


def _sizes(help_text: str, field: str) -> dict[str, Any]:
    default = size_text(getattr(Limits(), field))
    return {"metavar": "SIZE", "help": f"{help_text}  [default: {default}]"}


def _numbers(help_text: str, field: str) -> dict[str, Any]:
    return {"metavar": "N", "help": f"{help_text}  [default: {getattr(Limits(), field):g}]"}


_PLACES = (
    click.option(
        "--profile",
        metavar="NAME",
        help=f"Settings to start from: {', '.join(PROFILES)}.  [default: production]",
        shell_complete=lambda _ctx, _param, begun: [p for p in PROFILES if p.startswith(begun)],
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help="Configuration file.  [default: $CELLWALL_CONFIG, else the user's own]",
    ),
)


def complete_template(_ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Template names for completion; errors are ignored."""
    from cellwall.admin.templates import PYTHON, Templates

    try:
        names = Templates().names()
    except (CellwallError, OSError):
        names = []
    # The bare interpreter can be run but not built.
    all_names = [PYTHON, *names] if isinstance(param, click.Option) else names
    return [name for name in all_names if name.startswith(begun)]


passphrase_option = click.option(
    "--passphrase-fd",
    metavar="N",
    type=click.IntRange(min=0),
    help="Read the vault's passphrase, one line, from this descriptor.  [default: ask at the "
    "terminal]",
)

_SHARED = (
    *_PLACES,
    click.option(
        "--policy",
        metavar="FILE",
        type=click.Path(),
        help="Policy file to check the command against.  [default: allow what you type yourself]",
    ),
    click.option(
        "--workspace",
        metavar="DIR[:ro|rw|cow]",
        type=click.Path(),
        help="Directory to work in: read-only, read-write, or copy-on-write, where changes wait "
        "for `cellwall diff` and `cellwall apply`.  [default: an empty directory; DIR alone is ro]",
    ),
    click.option(
        "--here",
        is_flag=True,
        help="Work in the current directory, copy-on-write: short for `--workspace .:cow`.",
    ),
    click.option(
        "--env", metavar="K=V", multiple=True, help="Variable for the program; may be repeated."
    ),
    click.option(
        "--allow-domain",
        metavar="D",
        multiple=True,
        help="Domain that the program may reach: example.com, '*.example.com', example.com:8443, "
        "'GET api.example.com/v1'; may be repeated.  [default: nothing]",
    ),
    click.option(
        "--packages",
        type=click.Choice(["pypi", "npm"]),
        multiple=True,
        help="Registry from which pip, uv, npm or pnpm may install, without any setting of theirs; "
        "they see only packages that pass the checks; may be repeated.  [default: none]",
    ),
    click.option(
        "--secret",
        metavar="NAME",
        multiple=True,
        help="Secret of the vault: the program gets a placeholder as $NAME, which is replaced by "
        "the value only in requests that a grant allows; may be repeated.",
    ),
    passphrase_option,
    click.option(
        "--timeout",
        type=FINITE,
        metavar="S",
        help=f"Wall time in seconds.  [default: {Limits().wall_s:g}]",
    ),
    click.option("--memory", **_sizes("Memory of all processes together.", "memory_bytes")),
    click.option("--cpus", type=FINITE, **_numbers("Share of processors.", "cpus")),
    click.option("--processes", type=int, **_numbers("Processes and threads.", "processes")),
    click.option("--disk", **_sizes("New data in the workspace.", "disk_bytes")),
    click.option("--output", **_sizes("Standard output and error together.", "output_bytes")),
    click.option("--open-files", type=int, **_numbers("Files open in a process.", "open_files")),
    click.option("--file-size", **_sizes("Size of one file.", "file_size_bytes")),
    click.option(
        "--template",
        metavar="NAME",
        default="python",
        shell_complete=complete_template,
        help="Prepared Python environment; see `cellwall template`.  [default: python]",
    ),
    click.option(
        "--package",
        metavar="PACKAGE",
        multiple=True,
        help="Python package for the program: requests, 'pandas<3'; installed once, mounted "
        "read-only, kept for later runs; may be repeated.",
    ),
    click.option(
        "--skill",
        metavar="NAME",
        multiple=True,
        help="Approved skill, mounted read-only at /skills/NAME; may be repeated.",
    ),
    click.option("--stdin", is_flag=True, help="Pass standard input to the program."),
    json_option("Print one JSON object with the whole result, and nothing else."),
)


class ConfigOptions(TypedDict):
    """`--profile` and `--config`."""

    profile: str | None
    config: str | None


def place_options(command: Decorated) -> Decorated:
    """`--profile` and `--config`; the command receives both as `configured`."""

    @functools.wraps(command)
    def with_config(*args: Any, profile: str | None, config: str | None, **values: Any) -> int:  # noqa: ANN401  # what click has parsed
        configured = ConfigOptions(profile=profile, config=config)
        return int(command(*args, configured=configured, **values))

    return _apply(with_config, _PLACES)  # type: ignore[return-value]  # click keeps what it decorates


def open_configured(configured: ConfigOptions) -> App:
    """The runtime of these options."""
    from cellwall.runtime.wiring import open_app

    return open_app(**configured)


def open_readable(configured: ConfigOptions, passphrase_fd: int | None) -> App:
    """The same for a command that reads data of sessions: it may ask for the vault's passphrase."""
    from cellwall.interfaces.cli.terminal_input import Passphrases
    from cellwall.runtime.wiring import open_app

    return open_app(**configured, ask_passphrase=Passphrases(passphrase_fd))


def cli_principal() -> Principal:
    """The user of this command."""
    from cellwall.runtime.home import local_principal

    return local_principal("cli")


def sandbox_options(function: Decorated) -> Decorated:
    """All options of a run; the function gets them as keyword arguments."""
    return _apply(function, _SHARED)


def _apply(function: Decorated, options: tuple[Callable[[Decorated], Decorated], ...]) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def build_packages(options: SandboxOptions, interface: str = "cli") -> SandboxOptions:
    """The options with their packages built into a template, with progress on standard error."""
    if not options.package:
        return options
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover
    from cellwall.interfaces.cli.output import Progress

    progress = Progress(quiet=options.as_json)
    is_person = interface == "cli"
    ask = TerminalApprover(cli_principal(), hush=progress.hushed) if is_person else None
    try:
        return options.with_template(interface=interface, on_progress=progress, ask=ask)
    finally:
        progress.end()


def app_for(options: SandboxOptions) -> App:
    """The configured runtime; its imports are heavy, so they happen here."""
    configured = ConfigOptions(profile=options.profile, config=options.config)
    if not options.secret:
        return open_configured(configured)
    return open_unlocked(configured, options.passphrase_fd)


def open_unlocked(configured: ConfigOptions, passphrase_fd: int | None) -> App:
    """The runtime of these options with its vault open."""
    from cellwall.interfaces.cli.terminal_input import Passphrases
    from cellwall.runtime.home import local_principal
    from cellwall.runtime.wiring import open_app

    app = open_app(**configured, ask_passphrase=Passphrases(passphrase_fd))
    # Before the run starts, whose output goes to the same terminal.
    app.leaser.own.unlock(local_principal("cli"))
    return app


def action_of(options: SandboxOptions, app: App, operation: RunCommand | RunCode) -> Action:
    """The action with standard input, which is read after every other check: it may take long."""
    action = options.action(app, operation)
    if not options.stdin:
        return action
    max_bytes = app.settings.sandbox.max_stdin_bytes
    data = read_bounded(0, max_bytes)
    if data is None:
        raise BadInput(
            f"standard input is larger than the {max_bytes} bytes allowed",
            hint="Give the data as a file of the workspace, or raise sandbox.max_stdin_bytes.",
            code="CW-STDIN-TOO-LARGE",
        )
    return replace(action, stdin=data)
