"""`cellwall fetch`: a web page through the egress rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from cellwall.interfaces.cli.options import FINITE, json_option, place_options
from cellwall.interfaces.entry import REFUSED

if TYPE_CHECKING:
    from cellwall.core.network import Page
    from cellwall.core.outcomes import Outcome
    from cellwall.core.types import Action, Json
    from cellwall.runtime.wiring import App

_FAILED_STATUS = 400


@click.command(
    epilog="""\b
Examples:
  cellwall fetch https://docs.example.com/guide
  cellwall fetch --form raw https://example.com/data.json > data.json
  cellwall fetch --allow-domain example.com --allow-domain www.example.com https://example.com/
  cellwall fetch --json https://example.com/ | jq -r .text

\b
Exit codes:
  0    the page was fetched
  1    the server answered with an error (status 400 or more); its page is printed
  125  Cellwall refused or failed; the reason is on standard error
""",
)
@place_options
@click.option(
    "--allow-domain",
    metavar="D",
    multiple=True,
    help="Allowed domain, also for redirects, instead of the URL's own host; may be repeated.",
)
@click.option(
    "--form",
    type=click.Choice(["markdown", "text", "raw"]),
    default="markdown",
    help="Format for HTML; raw is unchanged.  [default: markdown]",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Truncate longer pages; at most egress.fetch_max_bytes.",
)
@click.option(
    "--timeout",
    type=FINITE,
    metavar="S",
    help="Seconds in total; at most egress.fetch_timeout_s.",
)
@json_option("Print one JSON object with the page and the whole result, and nothing else.")
@click.argument("url", metavar="URL")
def fetch(
    url: str,
    *,
    profile: str | None,
    config: str | None,
    allow_domain: tuple[str, ...],
    form: Literal["markdown", "text", "raw"],
    max_bytes: str | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Fetch a web page through the egress rules, as text.

    Only http and https, only text, and no address of this host or its networks; each redirect is
    judged anew. The page is untrusted: sentences that attack a model are removed, and the rest is
    printed between two marker lines that the page cannot forge. With --form raw only secrets are
    removed.
    """
    from cellwall.core.limits import parse_size  # noqa: PLC0415  # keeps --help quick
    from cellwall.core.types import Action, FetchUrl  # noqa: PLC0415  # as above
    from cellwall.interfaces.requests import with_limits  # noqa: PLC0415  # as above
    from cellwall.runtime.wiring import open_app, principal  # noqa: PLC0415  # heavy

    most = None if max_bytes is None else parse_size(max_bytes, what="max-bytes")
    app = open_app(config=config, profile=profile)
    action = Action(
        principal=principal("cli"),
        operation=FetchUrl(url, form),
        allow_domains=allow_domain,
        limits=with_limits(app.limits, timeout=timeout, output_bytes=most),
        # An agent may read this output and must not take it for Cellwall's own words.
        audience="program" if form == "raw" else "model",
    )
    outcome = _perform(app, action)
    if as_json:
        return _print_json(outcome)
    return _print_page(outcome, is_raw=form == "raw")


def _perform(app: App, action: Action) -> Outcome:
    import anyio  # noqa: PLC0415  # keeps --help quick

    from cellwall.interfaces.cli.approval_prompt import TerminalApprover  # noqa: PLC0415  # as above

    async def perform() -> Outcome:
        return await app.runtime.perform(action, ask=TerminalApprover(action.principal))

    return anyio.run(perform)


def _print_json(outcome: Outcome) -> int:
    from cellwall.interfaces.cli.output import print_json  # noqa: PLC0415  # keeps --help quick

    page: Page | None = outcome.payload
    told: dict[str, Json] = {"url": None, "http_status": None, "content_type": None}
    told |= {"redirects": [], "untrusted": True}
    if page is not None:
        told |= {"url": page.url, "http_status": page.status, "content_type": page.content_type}
        told |= {"redirects": list(page.redirects), "truncated": page.is_truncated}
        told["shown"] = outcome.shown
    print_json({**outcome.to_json(), **told})
    return _exit_code(page)


def _print_page(outcome: Outcome, *, is_raw: bool) -> int:
    from cellwall.interfaces.cli.output import print_text, say  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.outcome_text import error_line, finding_lines  # noqa: PLC0415  # as above

    for line in finding_lines(outcome.findings):
        say(line)
    page: Page | None = outcome.payload
    if page is None:
        if outcome.error is not None:
            say(error_line(outcome.error))
        return REFUSED
    # The text after the guard, not the original.
    print_text((outcome.text or "") if is_raw else f"{outcome.shown}\n")
    if page.is_truncated:
        say("the page was truncated; see --max-bytes")
    if page.status >= _FAILED_STATUS:
        say(f"the server answered with status {page.status}")
    return _exit_code(page)


def _exit_code(page: Page | None) -> int:
    if page is None:
        return REFUSED
    return 1 if page.status >= _FAILED_STATUS else 0
