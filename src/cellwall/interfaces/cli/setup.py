"""`cellwall doctor | config | completion`: check the host, the configuration and the shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.terminal import one_line


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
def check(profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Check the configuration, and list every protection that it weakens."""
    from cellwall.admin import audit_queries  # noqa: PLC0415  # heavy

    settings = audit_queries.read_settings(config=config, profile=profile)
    weak = audit_queries.weakened(settings)
    if as_json:
        print_json({"ok": True, "profile": settings.profile, "weakened": list(weak)})
    else:
        print_text(f"ok: profile {settings.profile}\n" + "".join(f"weak: {w}\n" for w in weak))
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
def show(profile: str | None, config: str | None, *, as_json: bool) -> int:  # noqa: ARG001  # see its help
    """Print the effective settings as JSON."""
    from cellwall.admin import audit_queries  # noqa: PLC0415  # heavy

    settings = audit_queries.read_settings(config=config, profile=profile)
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
    from cellwall.admin import audit_queries  # noqa: PLC0415  # heavy

    print_text(audit_queries.schema_text())
    return 0


_WORDS = {"ok": "ok", "missing": "MISSING", "weak": "weak", "info": "info"}


@click.command(
    epilog="""\b
Examples:
  cellwall doctor
  cellwall doctor --profile paranoid
  cellwall doctor --json | jq '.checks[] | select(.status != "ok")'

\b
Exit codes:
  0  sandboxes run here with this profile
  1  they do not: a required layer is missing, and a hint is printed
"""
)
@place_options
@json_option("Print one JSON object with all checks.")
def doctor(profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Show which isolation layers work on this host, which do not, why, and how to fix them."""
    from cellwall.admin.host_check import examine_host  # noqa: PLC0415  # heavy

    report = examine_host(config=config, profile=profile, interface="cli")
    if as_json:
        print_json(report.to_json())
        return 0 if report.usable else 1
    lines = []
    for check in report.checks:
        lines.append(f"{_WORDS[check.status]:8}{one_line(check.name)}: {one_line(check.found)}")
        if check.status in {"missing", "weak"}:
            lines.append(f"{'':8}  why:  {one_line(check.why)}")
            lines.append(f"{'':8}  hint: {one_line(check.hint)}" if check.hint else "")
    verdict = "Sandboxes run here." if report.usable else "Sandboxes do not run here."
    print_text("\n".join([line for line in lines if line] + ["", verdict, ""]))
    return 0 if report.usable else 1


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
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  # click knows the three names
    script = found(ctx.find_root().command, {}, "cellwall", "_CELLWALL_COMPLETE")
    place, line = _SETUP[shell]
    # The base class's method: bash's own would start bash for its version.
    click.echo(f"# Put this into {place}:\n#   {line}\n{ShellComplete.source(script)}")
