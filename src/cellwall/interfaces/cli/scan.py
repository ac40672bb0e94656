"""`cellwall scan` and `cellwall redact`: the content guard on texts of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from cellwall.interfaces.cli.options import json_option, place_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.runtime.guarding import Guard, Report

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
    profile: str | None,
    config: str | None,
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
    from cellwall.interfaces.cli.output import print_json, print_text  # noqa: PLC0415  # as above

    guard = _guard(config, profile)
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
def redact(file: str, *, profile: str | None, config: str | None, is_personal: bool) -> int:
    """Print a text with its secrets replaced.

    A key, token or password becomes [redacted:RULE]. With --pii, mail
    addresses, phone and card numbers, accounts and national ids become tokens such as [mail-1-...].
    """
    from cellwall.interfaces.terminal import write_all  # noqa: PLC0415  # keeps --help quick
    from cellwall.runtime.guarding import pseudonyms  # noqa: PLC0415  # as above

    stream = _guard(config, profile).redactor.stream()
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


def _guard(config: str | None, profile: str | None) -> Guard:
    import os  # noqa: PLC0415  # keeps --help quick

    from cellwall.runtime.guarding import guard_for  # noqa: PLC0415  # as above

    return guard_for(config=config, profile=profile, environ=os.environ)


def blocks(file: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """The content in blocks, as they arrive."""
    import os  # noqa: PLC0415  # keeps --help quick

    from cellwall.core.errors import BadInput  # noqa: PLC0415  # as above

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
    from cellwall.core.showing import one_line  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.cli.output import print_text, say  # noqa: PLC0415  # as above

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
