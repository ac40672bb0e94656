"""The options that `run` and `code` share, and the action they make of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.limits import Limits, parse_size, size_text
from cellwall.interfaces.cli.main import AS_JSON

if TYPE_CHECKING:
    from cellwall.core.types import Action, RunCode, RunCommand
    from cellwall.runtime.wiring import House

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROFILES = ("production", "paranoid", "development")
_CHUNK_BYTES = 1 << 20
_HERE = ".:cow"

EXIT_CODES = """\b
Exit codes:
  the program's own, if it ran to its own end
  124  wall time over        137  killed by the memory limit (or by another one)
  125  Cellwall refused or failed; the reason is on standard error
  130, 143  ended by Ctrl-C or SIGTERM, with nothing left behind
"""


def _note_json(ctx: click.Context, _: click.Parameter, wanted: bool) -> bool:  # noqa: FBT001  # click's signature
    """Errors must be JSON as well, so the outermost floor has to know."""
    if wanted:
        ctx.meta[AS_JSON] = True
    return wanted


def json_option(text: str) -> Callable[[Decorated], Decorated]:
    """`--json`: one object on standard output, errors included."""
    return click.option("--json", "as_json", is_flag=True, callback=_note_json, help=text)


class _Finite(click.types.FloatParamType):
    """A number; `nan` and `inf` are none: no bound holds for them, and no frame carries them."""

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
    """Names of templates that begin like this, for completion: no error is worth telling."""
    from cellwall.admin.templates import PYTHON, Templates  # noqa: PLC0415  # heavy

    try:
        names = Templates().names()
    except (CellwallError, OSError):
        names = []
    # Nothing is built for the bare interpreter; it can only be run in.
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
        help="Judge it by these rules; else what you type is allowed because you typed it.",
    ),
    click.option(
        "--workspace",
        metavar="DIR[:ro|rw|cow]",
        type=click.Path(),
        help="Directory to work in: read-only, read-write, or copy-on-write, where changes wait "
        "for `cellwall diff` and `cellwall apply`.  [default: an empty one; with DIR alone: ro]",
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
        help="What the program may reach: example.com, '*.example.com', example.com:8443, "
        "'GET api.example.com/v1'; may be repeated.  [default: nothing]",
    ),
    click.option(
        "--secret",
        metavar="NAME",
        multiple=True,
        help="Secret of the vault: the program gets $NAME with a placeholder, which becomes the "
        "value only in requests for which it was granted; may be repeated.",
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
        help="Prepared Python with packages of its own; see `cellwall template`.  "
        "[default: python]",
    ),
    click.option(
        "--package",
        metavar="PACKAGE",
        multiple=True,
        help="Python package that the program can import: requests, 'pandas<3'; installed once, "
        "read-only inside, kept for later runs; may be repeated.",
    ),
    click.option(
        "--skill",
        metavar="NAME",
        multiple=True,
        help="Approved skill that the program sees read-only in /skills/NAME; may be repeated.",
    ),
    click.option("--stdin", is_flag=True, help="Give our standard input to the program."),
    json_option("Print one JSON object with the whole result, and nothing else."),
)


def place_options(function: Decorated) -> Decorated:
    """`--profile` and `--config`."""
    return _decorated(function, _PLACES)


def sandbox_options(function: Decorated) -> Decorated:
    """All options of a run; the function gets them as keyword arguments."""
    return _decorated(function, _SHARED)


def _decorated(
    function: Decorated, options: tuple[Callable[[Decorated], Decorated], ...]
) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def chosen_workspace(named: str | None, *, here: bool) -> str | None:
    """What `--workspace` and `--here` say together."""
    if here and named is not None:
        raise BadInput(
            "--here and --workspace exclude each other",
            hint="Write --here for this directory, copy-on-write; or --workspace DIR:ro|rw|cow.",
            code="CW-USAGE",
        )
    return _HERE if here else named


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """What was typed."""

    profile: str | None
    config: str | None
    policy: str | None
    workspace: str | None
    here: bool
    env: tuple[str, ...]
    allow_domain: tuple[str, ...]
    secret: tuple[str, ...]
    passphrase_fd: int | None
    timeout: float | None
    memory: str | None
    cpus: float | None
    processes: int | None
    disk: str | None
    output: str | None
    open_files: int | None
    file_size: str | None
    template: str
    package: tuple[str, ...]
    skill: tuple[str, ...]
    stdin: bool
    as_json: bool
    own_path: bool = False
    """Only of `run`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workspace", chosen_workspace(self.workspace, here=self.here))
        object.__setattr__(self, "here", False)

    def prepared(self, interface: str = "cli") -> SandboxOptions:
        """With the packages built, and their template in their place."""
        if not self.package:
            return self
        from cellwall.interfaces.cli.output import Progress  # noqa: PLC0415  # seldom
        from cellwall.interfaces.requests import template_with  # noqa: PLC0415  # heavy

        progress = Progress(quiet=self.as_json)
        try:
            template = template_with(
                self.package,
                self.template,
                config=self.config,
                profile=self.profile,
                interface=interface,
                on_progress=progress,
            )
        finally:
            progress.end()
        return replace(self, template=template, package=())

    def typed(self) -> dict[str, Any]:
        """For a supervisor with another working directory: names made absolute."""
        words = {name: getattr(self, name) for name in self.__slots__}
        for name in ("config", "workspace", "policy"):
            if words[name]:
                words[name] = os.path.abspath(words[name])
        return words

    def for_sdk(self) -> dict[str, Any]:
        """As the keyword arguments of `Sandbox.create`; of prepared options."""
        assert not self.package  # noqa: S101  # a package must not be dropped in silence
        sizes = {
            "disk_bytes": _bytes(self.disk, "disk"),
            "output_bytes": _bytes(self.output, "output"),
            "file_size_bytes": _bytes(self.file_size, "file size"),
            "cpus": self.cpus,
            "processes": self.processes,
            "open_files": self.open_files,
        }
        return {
            "profile": self.profile,
            "config": self.config,
            "policy": self.policy,
            "workspace": self.workspace,
            "envs": variables(self.env),
            "allow_domains": self.allow_domain,
            "secrets": self.secret,
            "timeout": self.timeout,
            "memory": self.memory,
            "template": self.template,
            "skills": self.skill,
            "limits": {name: size for name, size in sizes.items() if size is not None},
        }

    def open_house(self) -> House:
        """The runtime as configured; its imports are heavy, so they wait until now."""
        from cellwall.runtime.wiring import open_house, principal  # noqa: PLC0415  # see above

        if not self.secret:
            return open_house(config=self.config, profile=self.profile)
        from cellwall.interfaces.cli.terminal_input import Passphrases  # noqa: PLC0415  # seldom

        ask = Passphrases(self.passphrase_fd)
        house = open_house(config=self.config, profile=self.profile, ask_passphrase=ask)
        # Now, and not in the middle of a run whose output goes to the same terminal.
        house.leaser.own.unlock(principal("cli"))
        return house

    def action(
        self, house: House, operation: RunCommand | RunCode, *, stdin: bytes | None = None
    ) -> Action:
        """What the runtime is asked for; standard input is read last, as it may take its time.

        `stdin` is what somebody else has read of it already.
        """
        from cellwall.core.types import Action  # noqa: PLC0415  # keeps --help quick
        from cellwall.interfaces.requests import (  # noqa: PLC0415
            named_policy,
            parse_workspace,
            with_limits,
        )
        from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

        assert not self.package  # noqa: S101  # see `prepared`
        limits = with_limits(
            house.limits,
            timeout=self.timeout,
            memory=self.memory,
            cpus=self.cpus,
            processes=self.processes,
            open_files=self.open_files,
            disk_bytes=_bytes(self.disk, "disk"),
            output_bytes=_bytes(self.output, "output"),
            file_size_bytes=_bytes(self.file_size, "file size"),
        )
        return Action(
            principal=principal("cli"),
            operation=operation,
            workspace=parse_workspace(self.workspace, at_own_path=self.own_path),
            limits=limits,
            env=variables(self.env),
            allow_domains=self.allow_domain,
            secrets=self.secret,
            stdin=self._input(house) if stdin is None else stdin,
            template=self.template,
            policy=named_policy(self.policy),
            skills=self.skill,
        )

    def _input(self, house: House) -> bytes | None:
        if not self.stdin:
            return None
        most = house.settings.sandbox.max_stdin_bytes
        data = read_bounded(0, most)
        if data is None:
            raise BadInput(
                f"standard input is larger than the {most} bytes allowed",
                hint="Give the data as a file of the workspace, or raise sandbox.max_stdin_bytes.",
                code="CW-STDIN-TOO-LARGE",
            )
        return data


def read_bounded(descriptor: int, max_bytes: int) -> bytes | None:
    """All there is, or None if that is more than may be; never holds more than that."""
    parts: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (part := os.read(descriptor, min(left, _CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) if left > 0 else None


def _bytes(text: str | None, what: str) -> int | None:
    return None if text is None else parse_size(text, what=what)


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """The values of `--env`."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            # Docker's `--env NAME` copies ours; here nothing enters unless it is written out.
            raise BadInput(
                f"--env {name[:60]!r} has no value",
                hint="Write --env NAME=VALUE.",
                code="CW-BAD-ENV",
            )
        variables[name] = value
    return variables
