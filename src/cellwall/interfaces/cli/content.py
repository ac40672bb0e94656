"""`cellwall fetch | scan | redact`: web pages through the egress rules, texts through the guard."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from cellwall.core.errors import BadInput
from cellwall.core.limits import parse_size
from cellwall.core.network import Page
from cellwall.core.showing import one_line
from cellwall.core.types import Action, FetchUrl, Json
from cellwall.interfaces import REFUSED
from cellwall.interfaces.cli.options import (
    FINITE,
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_text, say
from cellwall.interfaces.outcome_text import error_line, finding_lines
from cellwall.interfaces.sandbox_options import with_limits
from cellwall.interfaces.terminal import write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.core.outcomes import Outcome
    from cellwall.runtime.app import App
    from cellwall.runtime.guarding import GuardService, Report


_BLOCK_BYTES = 1 << 20
_CHANNELS = ("plain", "markdown", "html", "email", "telegram", "discord", "slack")
_SUSPICIOUS, _BLOCKED = 3, 4
_MAX_SHOWN = 40


@click.command(
    epilog="""\b
Examples:
  cellwall scan notes.txt
  curl -s https://example.com/ | cellwall scan --kind output --channel html
  cellwall scan --text page.md > clean.md
  cellwall scan --json - < message.json | jq .findings

\b
Exit codes:
  0    clean
  3    suspicious: a sentence would be removed, or a person asked
  4    blocked
  125  Cellwall refused or failed; the reason is on standard error
""",
)
@place_options
@click.option(
    "--kind",
    type=click.Choice(["input", "output"]),
    default="output",
    help="Input to a model, or output of a tool.  [default: output]",
)
@click.option(
    "--channel",
    type=click.Choice(_CHANNELS),
    default="plain",
    help="Format of the text; hidden parts are scanned, too.  [default: plain]",
)
@click.option("--text", "as_text", is_flag=True, help="Print the cleaned text.")
@json_option("Print one JSON object with the verdict, the findings and the text.")
@click.argument("file", metavar="[FILE|-]", default="-")
def scan(
    file: str,
    *,
    configured: ConfigOptions,
    kind: Literal["input", "output"],
    channel: Literal["plain", "markdown", "html", "email", "telegram", "discord", "slack"],
    as_text: bool,
    as_json: bool,
) -> int:
    """Find attacks on a model in a text, and remove them.

    Finds instructions to a model, jailbreaks, forged roles and tool calls, beacons and hidden text,
    also when encoded or written with look-alike letters. The guard is a strong signal, never the
    only layer of defence.
    """
    guard = _guard(configured)
    most = guard.settings.max_characters
    # At most four bytes for a character; one character beyond the limit shows truncation.
    data = b"".join(blocks(file, max_bytes=4 * most + 4))
    report = guard.scanner.scan(data.decode("utf-8", "replace"), kind=kind, channel=channel)
    if as_json:
        print_json(report.to_json())
    elif as_text:
        print_text(report.text)
    else:
        _tell(report)
    match report.verdict.value:
        case "allow" | "annotate":
            return 0
        case "block":
            return _BLOCKED
        case _:
            return _SUSPICIOUS


@click.command(
    epilog="""\b
Examples:
  make 2>&1 | cellwall redact
  cellwall redact --pii letter.txt
""",
)
@place_options
@click.option("--pii", "is_personal", is_flag=True, help="Replace personal data, too.")
@click.argument("file", metavar="[FILE|-]", default="-")
def redact(file: str, *, configured: ConfigOptions, is_personal: bool) -> int:
    """Print a text with its secrets replaced.

    A key, token or password becomes [redacted:RULE]. With --pii, mail
    addresses, phone and card numbers, accounts and national ids become tokens such as [mail-1-...].
    """
    from cellwall.runtime.guarding import pseudonyms

    stream = _guard(configured).redactor.stream()
    if is_personal:
        # A name can cross any chunk border, so personal data needs the whole text.
        cleaned = b"".join(stream.feed(block) for block in blocks(file)) + stream.end()
        text = cleaned.decode("utf-8", "surrogateescape")
        write_all(1, pseudonyms().cover(text).encode("utf-8", "surrogateescape"))
        return 0
    for block in blocks(file):
        write_all(1, stream.feed(block))
    write_all(1, stream.end())
    return 0


def _guard(configured: ConfigOptions) -> GuardService:

    from cellwall.runtime.guarding import guard_for

    return guard_for(**configured, environ=os.environ)


def blocks(file: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """The content in blocks, as they arrive."""
    try:
        descriptor = 0 if file == "-" else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = max_bytes
            while left is None or left > 0:
                wanted = _BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES)
                block = os.read(descriptor, wanted)
                if not block:
                    return
                left = None if left is None else left - len(block)
                yield block
        finally:
            if descriptor:
                os.close(descriptor)
    except OSError as error:
        raise BadInput(
            f"{'standard input' if file == '-' else file} cannot be read: {error.strerror}",
            hint="Name a file, or give the text on standard input.",
        ) from error


def _tell(report: Report) -> None:

    lines = [f"{report.verdict.value}  (score {report.score:.2f})"]
    for finding in report.findings[:_MAX_SHOWN]:
        place = f"{finding.span[0]}-{finding.span[1]}" if finding.span else "-"
        decoded = f", from {' in '.join(finding.decoded_from)}" if finding.decoded_from else ""
        where = f", in {one_line(finding.where)}" if finding.where else ""
        lines.append(
            f"  {finding.severity:8} {finding.category:14} {place:>13}  {finding.message}"
            f"{decoded}{where} [{finding.rule}]"
        )
    print_text("\n".join(lines) + "\n")
    if len(report.findings) > _MAX_SHOWN:
        say(f"{len(report.findings) - _MAX_SHOWN} more findings; --json lists all")
    if not report.is_complete:
        say("the text is longer than the scan limit; see guard.max_characters")


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
    configured: ConfigOptions,
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
    most = None if max_bytes is None else parse_size(max_bytes, what="max-bytes")
    app = open_configured(configured)
    action = Action(
        principal=cli_principal(),
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
    import anyio

    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    async def perform() -> Outcome:
        return await app.runtime.perform(action, ask=TerminalApprover(action.principal))

    return anyio.run(perform)


def _print_json(outcome: Outcome) -> int:

    page: Page | None = outcome.payload
    fields: dict[str, Json] = {"url": None, "http_status": None, "content_type": None}
    fields |= {"redirects": [], "untrusted": True}
    if page is not None:
        fields |= {"url": page.url, "http_status": page.status, "content_type": page.content_type}
        fields |= {"redirects": list(page.redirects), "truncated": page.is_truncated}
        fields["shown"] = outcome.shown
    print_json({**outcome.to_json(), **fields})
    return _exit_code(page)


def _print_page(outcome: Outcome, *, is_raw: bool) -> int:

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
