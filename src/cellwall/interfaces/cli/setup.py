"""`cellwall config`: check and show the configuration."""

from __future__ import annotations

import click

from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text


@click.group(
    epilog="""\b
Examples:
  cellwall config check
  cellwall config show --profile paranoid
  cellwall config schema > cellwall.schema.json
"""
)
def config() -> None:
    """Check and show the configuration: a profile, then at most one file on top of it."""


@config.command(
    epilog="""\b
Examples:
  cellwall config check
  cellwall config check --config ./cellwall.toml

\b
Exit codes:
  0    the configuration can be used
  125  it cannot; every mistake is told with file, line and hint
"""
)
@place_options
@json_option("Print one JSON object.")
def check(profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Check the configuration, and name every wall that it takes away."""
    from cellwall.runtime import reading  # noqa: PLC0415  # heavy

    settings = reading.read_settings(config=config, profile=profile)
    weak = reading.weakened(settings)
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
    from cellwall.runtime import reading  # noqa: PLC0415  # heavy

    settings = reading.read_settings(config=config, profile=profile)
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
    from cellwall.runtime import reading  # noqa: PLC0415  # heavy

    print_text(reading.schema_text())
    return 0
