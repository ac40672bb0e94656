"""`cellwall fleet certify`: what a pod needs before Ray starts there."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from functools import partial

import click

from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import ConfigOptions, place_options


@click.command(
    epilog=f"""\b
Examples:
  cellwall fleet certify --name cellwall-head-svc
  cellwall fleet certify cellwall-join:6391 --pod-token /given/token --authority /given/ca.crt

{CHANGE_EXIT_CODES}"""
)
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Under which other pods reach the first host; repeatable.",
)
@click.option(
    "--pod-token",
    metavar="FILE",
    type=click.Path(),
    help="Projected token of the pod's service account, for the audience cellwall-fleet.",
)
@click.option(
    "--authority",
    metavar="FILE",
    type=click.Path(),
    help="Certificate of the fleet's authority.",
)
@place_options
def certify(
    *,
    configured: ConfigOptions,
    address: str | None,
    names: tuple[str, ...],
    pod_token: str | None,
    authority: str | None,
) -> int:
    """Make the keys and the certificate of a pod, before Ray starts there.

    Without HOST:PORT, as the first host, which has the key of the authority. With the address of
    the first host, its join port: the pod proves itself by the token that the cluster has made for
    it, once. deploy/kubernetes runs this in init containers.
    """
    import anyio

    from cellwall.admin.fleet_pods import certify_first, certify_pod
    from cellwall.config.load import load_settings
    from cellwall.runtime.home import state_home

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    home = state_home(os.environ)
    os.umask(0o077)
    if address is None and pod_token is None and authority is None:
        anyio.run(certify_first, home, settings, names)
    elif address is not None and pod_token is not None and authority is not None and not names:
        anyio.run(
            partial(
                certify_pod,
                home,
                settings,
                first=address,
                token_file=pod_token,
                authority_file=authority,
            )
        )
    else:
        raise click.UsageError("give HOST:PORT, --pod-token and --authority, or none of them.")
    return 0
