"""The report as one HTML page: no script, no file from outside, readable without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellwall.redteam.attack import AttackResult, AttackVerdict
from cellwall.redteam.report import RedteamReport, escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .2rem; } .sub { opacity: .75; margin-top: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.5rem 0; }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1.1rem; }
.tile b { display: block; font-size: 1.7rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .5rem; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
code { font-size: .88em; }
.held { color: #18794e; } .through { color: #c62a2f; } .not-proved { color: #9a6700; }
@media (prefers-color-scheme: dark) {
  .held { color: #4cc38a; } .through { color: #ff6369; } .not-proved { color: #f1a10d; } }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
.v { font-weight: 600; white-space: nowrap; }
"""
_WORDS = {
    AttackVerdict.HELD: "held",
    AttackVerdict.THROUGH: "got through",
    AttackVerdict.NOT_PROVED: "not proved",
}


def to_html(report: RedteamReport) -> str:
    """The whole page."""
    title = f"{report.count(AttackVerdict.THROUGH)} of {len(report.results)} attacks got through"
    began = report.began.strftime("%Y-%m-%d %H:%M UTC")
    sub = f"Cellwall {report.version} · profile {report.profile} · {began} · {report.took_s:.0f} s"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="sub">{escape(sub)}</p>',
        '<div class="tiles">',
        *(_tile(report, verdict) for verdict in AttackVerdict),
        "</div>",
    ]
    for verdict in (AttackVerdict.THROUGH, AttackVerdict.NOT_PROVED):
        chosen = report.of(verdict)
        if chosen:
            parts.append(f"<h2>{escape(_WORDS[verdict].capitalize())}</h2>")
            parts.extend(_table(chosen))
    parts.append("<h2>All attacks by layer</h2>")
    for layer, results in report.by_layer().items():
        held = sum(each.verdict is AttackVerdict.HELD for each in results)
        parts.append(f"<details><summary>{escape(layer)}: {held} of {len(results)} held</summary>")
        parts.extend(_table(results))
        parts.append("</details>")
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _tile(report: RedteamReport, verdict: AttackVerdict) -> str:
    count, words = report.count(verdict), _WORDS[verdict]
    return f'<div class="tile {verdict.value}"><b>{count}</b>{escape(words)}</div>'


def _table(results: Sequence[AttackResult]) -> Iterator[str]:
    yield "<table><thead><tr><th>Attack</th><th>Verdict</th><th>Expected to stop it</th>"
    yield "<th>Control</th><th>References</th></tr></thead><tbody>"
    for each in results:
        attack = each.attack
        references = " ".join((attack.requirement, *attack.owasp, *attack.atlas))
        yield (
            f"<tr><td>{escape(attack.title)}<br><code>{escape(attack.id)}</code></td>"
            f'<td><span class="v {each.verdict.value}">{escape(_WORDS[each.verdict])}</span><br>'
            f"{escape(each.reason)}</td><td>{escape(attack.wall)}</td>"
            f"<td>{escape(attack.control)}: {escape(each.control.kind)}</td>"
            f"<td>{escape(references)}</td></tr>"
        )
    yield "</tbody></table>"
