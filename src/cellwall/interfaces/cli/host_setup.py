"""`cellwall config | completion | template`: prepare the host, its configuration and its
Python environments."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import ShellComplete, get_completion_class

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.packages import (
    MAX_FILE_BYTES,
    package_of,
    parse_request,
    parse_requirements_file,
)
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    complete_template,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_json, print_result, print_text, say
from cellwall.interfaces.cli.package_locks import read_lock, read_named_file

if TYPE_CHECKING:
    from cellwall.admin.templates import Environment


@click.group(
    epilog="""\b
Examples:
  cellwall config check
  cellwall config show --profile paranoid
  cellwall config schema > cellwall.schema.json
"""
)
def config() -> None:
    """Check and show the configuration: a profile and at most one file on top."""


@config.command(
    epilog="""\b
Examples:
  cellwall config check
  cellwall config check --config ./cellwall.toml

\b
Exit codes:
  0    the configuration can be used
  125  it cannot; every error is printed with file, line and hint
"""
)
@place_options
@json_option("Print one JSON object.")
def check(configured: ConfigOptions, *, as_json: bool) -> int:
    """Check the configuration, and list every protection that it weakens."""
    from cellwall.admin import audit_queries

    settings = audit_queries.read_settings(**configured)
    weak = audit_queries.weakened(settings)
    file, exists = audit_queries.settings_place(configured["config"])
    if not as_json:
        say(f"the file is {file}" if exists else f"there is no {file}: the profile alone counts")
    print_result(
        {
            "ok": True,
            "profile": settings.profile,
            "weakened": list(weak),
            "file": file if exists else None,
        },
        f"ok: profile {settings.profile}\n" + "".join(f"weak: {w}\n" for w in weak),
        as_json=as_json,
    )
    return 0


@config.command(
    epilog="""\b
Examples:
  cellwall config show
  cellwall config show --profile paranoid | jq .limits
"""
)
@place_options
@json_option("The same: this command always prints JSON.")
def show(configured: ConfigOptions, *, as_json: bool) -> int:  # noqa: ARG001  # see its help
    """Print the effective settings as JSON."""
    from cellwall.admin import audit_queries

    settings = audit_queries.read_settings(**configured)
    print_text(settings.model_dump_json(indent=2) + "\n")
    return 0


@config.command(
    epilog="""\b
Examples:
  cellwall config schema > cellwall.schema.json
"""
)
def schema() -> int:
    """Print the JSON schema of the configuration file, for editors."""
    from cellwall.admin import audit_queries

    print_text(audit_queries.schema_text())
    return 0


_SETUP = {
    "bash": ("~/.bashrc", 'eval "$(cellwall completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(cellwall completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "cellwall completion fish | source"),
}


@click.command(
    epilog="""\b
Examples:
  cellwall completion bash >> ~/.bashrc
  cellwall completion zsh > ~/.cellwall-completion.zsh
  cellwall completion fish > ~/.config/fish/completions/cellwall.fish
"""
)
@click.argument("shell", type=click.Choice(list(_SETUP)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell, with instructions."""
    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101  # click knows the three names
    script = completer(ctx.find_root().command, {}, "cellwall", "_CELLWALL_COMPLETE")
    place, line = _SETUP[shell]
    # The base class's method: bash's own would start bash for its version.
    click.echo(f"# Put this into {place}:\n#   {line}\n{ShellComplete.source(script)}")


_DEFAULT = "python-data"
_MAX_NAMED = 3


@click.group(
    epilog="""\b
Examples:
  cellwall template list
  cellwall template build python-data
  cellwall template build web --with requests
  cellwall template remove python-data
"""
)
def template() -> None:
    """Build environments of Python packages, which are read-only in a sandbox."""


@template.command(
    epilog="""\b
Examples:
  cellwall template build
  cellwall template build web --with requests --with 'beautifulsoup4<5'
  cellwall template build web --requirements requirements.txt
  cellwall template build web --lock pylock.toml
  cellwall template build --with requests
  cellwall template build python-data --json

\b
Exit codes:
  0    the environment exists, built now or earlier
  125  the build failed; nothing is left of it
"""
)
@click.argument("name", required=False, shell_complete=complete_template)
@click.option(
    "--with",
    "packages",
    metavar="PACKAGE",
    multiple=True,
    help="Package of this template: requests, 'pandas<3', 'uvicorn[standard]'; may be repeated.",
)
@click.option(
    "--requirements",
    metavar="FILE",
    type=click.Path(),
    help="File with one package per line.",
)
@click.option(
    "--lock",
    metavar="FILE",
    type=click.Path(),
    help="Lock file, of `cellwall packages lock`: exactly its versions and hashes.",
)
@place_options
@json_option("Print one JSON object at the end, and nothing else.")
def build(
    name: str | None,
    packages: tuple[str, ...],
    requirements: str | None,
    lock: str | None,
    configured: ConfigOptions,
    *,
    as_json: bool,
) -> int:
    """Download and unpack the packages of a template, once for all later runs.

    The default NAME is python-data: numpy, pandas and matplotlib, pinned by hashes that ship with
    Cellwall. With packages or a lock, NAME is a template of your own, which keeps their versions
    until it is removed; without NAME it is derived from them, as for `--package`. uv installs
    wheels in a sandbox, through the registry proxy; nothing of a package runs on the host.
    """
    from cellwall.admin.templates import Templates
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    requested_packages = parse_request([*packages, *_listed_in(requirements)])
    if requirements is not None and not requested_packages:
        raise BadInput(
            "the requirements file names no package",
            hint="Write one package on each line, such as requests or 'pandas<3'.",
            code="CW-BAD-PACKAGE",
        )
    templates = Templates(**configured)
    locked = None if lock is None else read_lock(lock)
    if name is None and locked is not None:
        name = templates.name_of_lock(locked)
    name = name or (templates.name_of(requested_packages) if requested_packages else _DEFAULT)
    progress = Progress(quiet=as_json)
    try:
        built = templates.build(
            name,
            principal=cli_principal(),
            on_progress=progress,
            packages=requested_packages,
            lock=locked,
            ask=TerminalApprover(cli_principal(), hush=progress.hushed),
        )
    finally:
        progress.end()
    requested = templates.requested(name)
    if as_json:
        print_json({**_as_json(name, built, requested), "is_new": built.is_new})
    else:
        verb = "built" if built.is_new else "is already built"
        print_text(f"{name} {verb}: {_summary(built, requested)}\n")
        print_text(f"Use it: cellwall code --template {name} -c CODE\n")
    return 0


def _listed_in(file: str | None) -> tuple[str, ...]:
    if file is None:
        return ()
    content = read_named_file(file, MAX_FILE_BYTES, what="requirements file", code="CW-BAD-PACKAGE")
    return parse_requirements_file(content)


@template.command(
    "list",
    epilog="""\b
Examples:
  cellwall template list
  cellwall template list --json | jq '.templates[] | select(.built)'
""",
)
@json_option("Print one JSON object with all packages.")
def list_(*, as_json: bool) -> int:
    """List the templates, and whether they are built for the Python of the sandbox."""
    from cellwall.admin.templates import SHIPPED, Templates

    templates = Templates()
    built_templates: dict[str, tuple[Environment | None, tuple[str, ...]]] = {}
    damaged: dict[str, CellwallError] = {}
    for name in templates.names():
        try:
            built_templates[name] = templates.find(name), templates.requested(name)
        except CellwallError as error:  # one damaged template must not hide the others
            damaged[name] = error
    if as_json:
        rows = [_as_json(name, *each) for name, each in built_templates.items()]
        rows += [
            {"name": name, "built": False, "damaged": reason.message, "hint": reason.hint}
            for name, reason in damaged.items()
        ]
        print_json({"templates": list(rows)})
        return 0
    for name, (built, requested) in built_templates.items():
        state = f"not built: cellwall template build {name}"
        if built is not None:
            state = f"built: {_summary(built, requested)}"
        print_text(f"{name}  {SHIPPED.get(name) or ', '.join(requested)}\n  {state}\n")
    for name, reason in damaged.items():
        print_text(f"{name}  damaged: {reason.message}\n  {reason.hint}\n")
    return 0


@template.command(
    epilog="""\b
Examples:
  cellwall template remove python-data

\b
Exit codes:
  0    removed
  125  there is no such template, or it is not built
"""
)
@click.argument("name", shell_complete=complete_template)
@place_options
@json_option("Print one JSON object.")
def remove(name: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Remove a template's builds, also those for earlier versions of Python and Cellwall.

    A template of your own is removed entirely.
    Sandboxes that use it at this moment lose its packages; end them first.
    """
    from cellwall.admin.templates import Templates

    templates = Templates(**configured)
    progress = Progress(quiet=as_json)
    try:
        removed = templates.remove(name, principal=cli_principal(), on_progress=progress)
    finally:
        progress.end()
    print_result({"name": name, "removed": removed}, f"{name} removed\n", as_json=as_json)
    return 0


def _summary(built: Environment, requested: tuple[str, ...]) -> str:
    wanted = {package_of(each).name for each in requested} or {"numpy", "pandas", "matplotlib"}
    named = [f"{name} {version}" for name, version in built.packages if name in wanted]
    named = named or [f"{name} {version}" for name, version in built.packages[:_MAX_NAMED]]
    others = len(built.packages) - len(named)
    listed = ", ".join(named) + (f" and {others} more" if others else "")
    return f"Python {built.python}, {listed}, {built.size_bytes / 1e6:.0f} MB"


def _as_json(name: str, built: Environment | None, requested: tuple[str, ...]) -> dict[str, Json]:
    result: dict[str, Json] = {"name": name, "built": built is not None}
    if requested:
        result["requested"] = list(requested)
    if built is not None:
        result["python"] = built.python
        result["size_bytes"] = built.size_bytes
        result["packages"] = dict(built.packages)
    return result
