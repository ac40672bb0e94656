"""`cellwall policy labels`: what sessions have read, and where they can send data (POL-9)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import click

from cellwall.core.errors import BadInput
from cellwall.core.labels import Label, LabelSet
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import ConfigOptions, cli_principal, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.terminal import one_line


@click.command(
    name="labels",
    epilog="""\b
Examples:
  cellwall policy labels
  cellwall policy labels --session sbx_0123456789abcdefghjkmnpqrs
  cellwall policy labels --clear ~/src/project

\b
Exit codes:
  0    done
  125  refused or failed, and nothing was changed; the reason is on standard error
""",
)
@click.option("--session", metavar="ID", default=None, help="The labels of this session.")
@click.option(
    "--clear",
    metavar="DIR",
    default=None,
    type=click.Path(),
    help="You have read the files of this directory: they count as trusted.",
)
@place_options
@json_option("Print one JSON object.")
def labels(
    configured: ConfigOptions, *, session: str | None, clear: str | None, as_json: bool
) -> int:
    """Show the labels of information flow; without options, of directories on this host.

    A session that has read untrusted content labels the directories that it writes. A session that
    reads such a directory has read that content, too. Untrusted content, private data and egress
    meet in one session only if a person allows it. With approvals.key, --clear needs the passphrase
    of the approver.
    """
    from cellwall.admin.label_review import LabelReview
    from cellwall.interfaces.cli.terminal_input import ask_approver

    if session is not None and clear is not None:
        raise BadInput(
            "--session and --clear exclude each other",
            hint="Only directories can be cleared: labels of a session only grow.",
            code="CW-USAGE",
        )
    review = LabelReview(**configured)
    if clear is not None:
        gone = LabelSet(review.clear(clear, who=cli_principal(), ask=ask_approver))
        print_result({"cleared": gone.to_json()}, f"cleared:\n{draw_labels(gone)}", as_json=as_json)
        return 0
    if session is not None:
        found = review.session(session)
        print_result({"labels": found.to_json()}, draw_labels(found), as_json=as_json)
        return 0
    known = review.directories()
    if as_json:
        rows: dict[str, Json] = {
            path: LabelSet(sources).to_json() for path, sources in sorted(known.items())
        }
        print_json({"directories": rows})
        return 0
    for path, sources in sorted(known.items()):
        print_text(f"{one_line(path)}\n{draw_labels(LabelSet(sources))}")
    if not known:
        print_text("no directory has untrusted content of a session\n")
    return 0


def draw_labels(found: LabelSet) -> str:
    """One line for each source, below its label."""
    lines: list[str] = []
    for label in Label:
        for source in found.of(label):
            by = f" ({one_line(source.action_id)})" if source.action_id else ""
            lines.append(f"  {label.words}: {one_line(source.name)}{by}\n")
    return "".join(lines) or "  no labels\n"
