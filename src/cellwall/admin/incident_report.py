"""What the audit log says about an incident: what each session reached, was given and left (OBS-3).

Pure: records in, plain data and text out. Everything in a record may quote names that code chose,
so that each list has a bound, and text for people is escaped.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.core.outcomes import EventKind
from cellwall.core.types import Json

_MAX_LISTED = 500
_MAX_TEXT = 400
_MAX_SESSIONS = 20_000
_NONE, _OTHERS = "-", "others"
# A file operation of a person or an agent by which content leaves a workspace.
_READS = frozenset({"read", "download"})


@dataclass(slots=True)
class SessionFacts:
    """The facts about one session, or about one action without a session."""

    id: str
    first: str = ""
    last: str = ""
    principals: Counter[str] = field(default_factory=Counter)
    actions: set[str] = field(default_factory=set)
    records: int = 0
    denied: int = 0
    unreadable: int = 0
    """Records whose body is erased or under a locked vault."""
    commands: list[dict[str, Json]] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    secrets_leased: Counter[str] = field(default_factory=Counter)
    secrets_used: Counter[str] = field(default_factory=Counter)
    files_left: list[dict[str, Json]] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    tools: Counter[str] = field(default_factory=Counter)

    def add(self, record: Mapping[str, Any]) -> None:
        time, body = str(record["time"]), record["body"]
        self.first, self.last = self.first or time, time
        self.principals[f"{record['principal']} ({record['interface']})"] += 1
        self.records += 1
        if record["action_id"]:
            self.actions.add(record["action_id"])
        if not isinstance(body, dict):
            return
        if isinstance(body.get("sealed"), str):
            self.unreadable += 1
        match record["kind"]:
            case EventKind.INTENT:
                self._add_intent(time, record["action_id"], body)
            case EventKind.DENIAL:
                self.denied += 1
                self._add_intent(time, record["action_id"], {**body, "denied": True})
            case EventKind.OUTCOME:
                self._add_outcome(time, body)
            case EventKind.CONNECTION:
                self._add_connection(body)
            case EventKind.VAULT if body.get("change") == "lease" and body.get("status") == "ok":
                self.secrets_leased.update(map(_short, _list(body.get("names"))))
            case EventKind.APPLY if body.get("step") == "outcome":
                applied = {key: body.get(key) for key in ("status", "applied", "directory")}
                self._leave(time, {"how": "applied to the host", **applied})

    def _add_intent(self, time: str, action_id: str, body: Mapping[str, Any]) -> None:
        if (text := operation_text(body)) and len(self.commands) < _MAX_LISTED:
            verdict = "deny" if body.get("denied") else "allow"
            self.commands.append(
                {"time": time, "action": action_id, "verdict": verdict, "operation": text}
            )
        self.secrets_leased.update(map(_short, _list(body.get("secrets"))))
        if body.get("tool"):
            server = f"{_short(body['server'])}: " if body.get("server") else ""
            self.tools[f"{server}{_short(body['tool'])}"] += 1
        if body.get("file") in _READS and not body.get("denied"):
            self._leave(time, {"how": "read by the interface", "path": _short(body.get("path"))})

    def _add_outcome(self, time: str, body: Mapping[str, Any]) -> None:
        page = body.get("page")
        if isinstance(page, dict):
            self.reached[_short(page.get("url"))] += 1
        if isinstance(body.get("transfer"), dict):
            self._leave(time, {"how": "transferred", **body["transfer"]})

    def _add_connection(self, body: Mapping[str, Any]) -> None:
        place = f"{_short(body.get('host'))}:{_short(body.get('port'))}"
        match body.get("event"):
            case "opened":
                self.reached[place] += 1
            case "closed":
                self.bytes_up[place] += _number(body.get("bytes_up"))
                self.bytes_down[place] += _number(body.get("bytes_down"))
            case "refused":
                self.refused[f"{place} {_short(body.get('code'))}"] += 1
            case "refused-more":
                self.refused["more, not listed"] += _number(body.get("count"))
            case "leak-refused":
                self.leaks[f"{_short(body.get('secret'))} to {place}"] += 1
            case "secret-used":
                self.secrets_used[f"{_short(body.get('secret'))} at {place}"] += 1
            case "package-served" | "package-built":
                self._add_package(body)

    def _add_package(self, body: Mapping[str, Any]) -> None:
        if len(self.packages) < _MAX_LISTED:
            digest = next((body[key] for key in ("sha512", "sha256", "sha1") if key in body), "")
            self.packages[_short(body.get("package"))] = _short(digest)

    def _leave(self, time: str, what: Mapping[str, Json]) -> None:
        if len(self.files_left) < _MAX_LISTED:
            self.files_left.append({"time": time, **what})

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "first": self.first,
            "last": self.last,
            "principals": _counted(self.principals),
            "records": self.records,
            "actions": len(self.actions),
            "denied": self.denied,
            "unreadable": self.unreadable,
            "operations": list(self.commands),
            "reached": [
                {
                    "place": place,
                    "connections": count,
                    "bytes_up": self.bytes_up[place],
                    "bytes_down": self.bytes_down[place],
                }
                for place, count in self.reached.most_common(_MAX_LISTED)
            ],
            "refused": _counted(self.refused),
            "leaks_refused": _counted(self.leaks),
            "secrets_leased": sorted(self.secrets_leased)[:_MAX_LISTED],
            "secrets_used": _counted(self.secrets_used),
            "files_left": list(self.files_left),
            "packages": dict(self.packages),
            "tools": _counted(self.tools),
        }


def operation_text(body: Mapping[str, Any]) -> str:
    """One line for the operation of an intent or a denial."""
    match body:
        case {"command": [*words]}:
            return _short(" ".join(map(str, words)))
        case {"language": language, "code": code}:
            return _short(f"{language}: {code}")
        case {"url": url}:
            return _short(f"fetch {url}")
        case {"ecosystem": ecosystem, "requirements": [*names]}:
            return _short(f"install {ecosystem} {' '.join(map(str, names))}")
        case {"tool": tool, "arguments": arguments}:
            return _short(f"{tool} {arguments}")
        case {"file": name, "path": path}:
            return _short(f"file {name} {path}")
    return ""


def gather_sessions(records: Iterable[Mapping[str, Any]]) -> list[SessionFacts]:
    """The facts by session, the first first. Records of neither session nor action are together,
    and so are those of all sessions beyond a bound."""
    found: dict[str, SessionFacts] = {}
    for record in records:
        subject = record["session_id"] or record["action_id"] or _NONE
        if subject not in found and len(found) >= _MAX_SESSIONS:
            subject = _OTHERS
        facts = found.get(subject)
        if facts is None:
            facts = found[subject] = SessionFacts(subject)
        facts.add(record)
    return list(found.values())


_SECTIONS = (
    ("reached", "Reached"),
    ("refused", "Refused connections"),
    ("leaks_refused", "Secrets that were about to leak"),
    ("secrets_leased", "Secrets leased (names)"),
    ("secrets_used", "Secrets put into requests (names)"),
    ("files_left", "Files that left"),
    ("packages", "Packages installed"),
    ("tools", "Tools called"),
    ("operations", "Operations"),
)


def report_text(report: Mapping[str, Any]) -> str:
    """The report for a terminal: no control character of a record is in it."""
    lines = [f"Incident report, {report['created']}", f"reason: {_text(report['reason'])}"]
    lines += [f"{name}: {_text(value)}" for name, value in report["summary"].items()]
    told = _worth_telling(report)
    for session in told:
        lines += ["", f"== {_text(session['id'])} ==", *_head(session)]
        for key, title in _SECTIONS:
            if items := _items(session[key]):
                lines += [f"  {title}:", *(f"    {item}" for item in items)]
    lines += ["", f"{len(report['sessions']) - len(told)} more have none of these."]
    return "\n".join(lines) + "\n"


_PAGE_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>Incident report</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}code{overflow-wrap:anywhere}h2{border-top:1px solid;padding-top:1rem}
</style></head><body>"""


def report_html(report: Mapping[str, Any]) -> str:
    """The same as one page without scripts, styles from elsewhere or links."""
    summary = report["summary"].items()
    parts = [
        _PAGE_HEAD,
        f"<h1>Incident report, {_escaped(report['created'])}</h1>",
        f"<p>Reason: {_escaped(report['reason'])}</p><ul>",
        *(f"<li>{_escaped(key)}: {_escaped(value)}</li>" for key, value in summary),
        "</ul>",
    ]
    told = _worth_telling(report)
    for session in told:
        parts.append(f"<h2><code>{_escaped(session['id'])}</code></h2><ul>")
        parts += [f"<li>{_escaped(line.strip())}</li>" for line in _head(session)]
        parts.append("</ul>")
        for key, title in _SECTIONS:
            if items := _items(session[key]):
                parts.append(f"<h3>{title}</h3><ul>")
                parts += [f"<li><code>{html.escape(item)}</code></li>" for item in items]
                parts.append("</ul>")
    parts.append(f"<p>{len(report['sessions']) - len(told)} more have none of these.</p>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _worth_telling(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The JSON has all; people read those with something in them."""
    return [each for each in report["sessions"] if any(each[key] for key, _ in _SECTIONS)]


def _head(session: Mapping[str, Any]) -> list[str]:
    who, counts = ", ".join(session["principals"]), ("actions", "denied", "records", "unreadable")
    return [
        f"  by {_text(who)}, {session['first']} to {session['last']}",
        "  " + ", ".join(f"{session[name]} {name}" for name in counts),
    ]


def _items(value: Any) -> list[str]:  # noqa: ANN401  # JSON of the report
    if isinstance(value, dict):
        return [_text(f"{key} {count}") for key, count in value.items()]
    return [
        _text(" ".join(f"{key}={each[key]}" for key in each) if isinstance(each, dict) else each)
        for each in value
    ]


def _escaped(value: object) -> str:
    return html.escape(_text(value))


def _counted(found: Counter[str]) -> dict[str, Json]:
    return dict(found.most_common(_MAX_LISTED))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _short(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def _text(value: object) -> str:
    """One line of printable ASCII: a name may contain newlines, escapes and bidi controls."""
    return json.dumps(value if isinstance(value, str) else str(value))[1:-1].replace('\\"', '"')
