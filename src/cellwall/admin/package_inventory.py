"""A person asks which packages a lock, a template or a sandbox has, and why (PKG-1, PKG-5)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import anyio

from cellwall.admin import audit_queries
from cellwall.admin.audit_queries import Query
from cellwall.admin.packages import verify
from cellwall.admin.templates import Templates
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.outcomes import EventKind
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.inventory import (
    InstalledPackage,
    installed_lock,
    render_requirements,
    render_sbom,
)
from cellwall.packages.judge import PackageJudge
from cellwall.packages.lock_audit import (
    AuditedPackage,
    LockRules,
    audit_package,
    judge_in_index,
)
from cellwall.packages.locks.model import Lock, LockedFile, LockedPackage
from cellwall.packages.locks.read import KINDS, read_lock
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.registry.judged_index import JudgedIndex
from cellwall.packages.registry.pypi import BadIndex
from cellwall.packages.registry.upstream import HttpUpstream
from cellwall.packages.sbom import render_lock_sbom
from cellwall.runtime.app import App
from cellwall.runtime.package_judging import open_judge
from cellwall.runtime.package_record import REFUSED, SERVED
from cellwall.runtime.registries import RegistrySite, registry_sites
from cellwall.runtime.vault import AskPassphrase
from cellwall.secrets import failures as vault_failures
from cellwall.secrets.session_keys import SessionKeys

__all__ = [
    "KINDS",
    "AuditedPackage",
    "Ecosystem",
    "InstalledPackage",
    "Lock",
    "PackageEvent",
    "PackageReport",
    "audit_lock",
    "explain",
    "installed_packages",
    "lock_of_file",
    "lock_of_sandbox",
    "lock_of_template",
    "render_requirements",
    "render_sbom",
    "sbom_of_lock",
    "sbom_of_record",
]

MAX_EVENTS = 20
_MAX_REQUESTS = 8
_PROGRESS_STEP = 20
_COMMAND_CHARACTERS = 200

OnJudged = Callable[[int, int], None]
"""Called with the number of packages that are judged, and of all."""


def lock_of_file(path: str) -> Lock:
    """The lock in a file."""
    return read_lock(path)


def lock_of_template(name: str) -> Lock:
    """The packages of a template that is built; its manifest has no hashes."""
    templates = Templates()
    if name not in templates.names():
        templates.requested(name)  # raises, with the names that there are
    built = templates.find(name)
    if built is None:
        raise BadInput(
            f"the environment of {name} is not built",
            hint=f"Run `cellwall template build {name}`.",
            code="CW-TEMPLATE-NOT-BUILT",
        )
    packages = [
        LockedPackage(
            f"{package}@{version}",
            Ecosystem.PYPI,
            canonical_name(Ecosystem.PYPI, package),
            version,
            is_direct=True,
        )
        for package, version in built.packages
    ]
    return Lock("template", tuple(packages), has_graph=False)


def lock_of_sandbox(session_id: str, *, ask: AskPassphrase | None = None) -> Lock:
    """The packages that a live or ended sandbox got, by the audit log."""
    return installed_lock(_installed(_recorded(session_id, ask)))


def installed_packages(session_id: str, *, home: str, keys: SessionKeys) -> list[InstalledPackage]:
    """The packages that a sandbox of the running service got, the first first."""
    return _installed(_recorded(session_id, None, home=home, keys=keys))


def sbom_of_lock(lock: Lock, *, subject: str) -> bytes:
    """The lock as CycloneDX JSON."""
    return render_lock_sbom(lock, subject=subject)


def sbom_of_record(subject_id: str, *, ask: AskPassphrase | None = None) -> bytes:
    """The packages that an action or a sandbox got, with the records that say so."""
    return render_sbom(_installed(_recorded(subject_id, ask)), subject=subject_id)


async def audit_lock(
    app: App, lock: Lock, *, is_offline: bool, needs_hashes: bool, on_judged: OnJudged
) -> list[AuditedPackage]:
    """The verdict on each entry of a lock, in the order of the lock."""
    judge = open_judge(app.settings, app.store.home)
    # A pin of the distribution covers one file, and an entry of a lock has others.
    judge = judge.under(judge.rules_about, replace(judge.rules, pinned=frozenset()))
    sites = registry_sites(app.settings, app.store.home)
    origins = frozenset(origin for site in sites.values() for origin in site.origins)
    rules = LockRules(origins, needs_hashes)
    indexes: dict[tuple[Ecosystem, str], JudgedIndex | str] = {}
    if not is_offline:
        wanted = dict.fromkeys((each.ecosystem, each.name) for each in lock.packages)
        for ecosystem in Ecosystem:
            names = [name for kind, name in wanted if kind is ecosystem]
            found = await _load(sites[ecosystem.value], judge, names, on_judged)
            indexes |= {(ecosystem, name): index for name, index in found.items()}
    return [
        _audit(judge, package, rules, indexes.get((package.ecosystem, package.name)))
        for package in lock.packages
    ]


async def _load(
    site: RegistrySite, judge: PackageJudge, names: Sequence[str], on_judged: OnJudged
) -> dict[str, JudgedIndex | str]:
    """The index of each name; a text where the registry's document cannot be read."""
    found: dict[str, JudgedIndex | str] = {}
    limit = anyio.CapacityLimiter(_MAX_REQUESTS)

    async def load(name: str) -> None:
        async with limit:
            try:
                found[name] = await site.registry.load(name, upstream, judge)
            except BadIndex as error:
                found[name] = str(error)
            if len(found) % _PROGRESS_STEP == 0 or len(found) == len(names):
                on_judged(len(found), len(names))

    async with HttpUpstream(site.origins) as upstream, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(load, name)
    return found


def _audit(
    judge: PackageJudge, package: LockedPackage, rules: LockRules, index: JudgedIndex | str | None
) -> AuditedPackage:
    kind, name, version = package.ecosystem, package.name, package.version
    advisories = judge.advisories(kind, name, version) if version is not None else []
    if isinstance(index, JudgedIndex):
        judged = judge_in_index(package, index)
        return audit_package(package, judged, advisories, rules, index=index)
    judged = judge.judge_pin(kind, name, version)
    if index is not None:
        unread = Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unreadable", index)
        judged = replace(judged, reasons=(*judged.reasons, unread))
    return audit_package(package, judged, advisories, rules)


@dataclass(frozen=True, slots=True)
class PackageEvent:
    """An action that got a package, or was refused it."""

    action_id: str
    audit_id: str
    time: str
    is_refusal: bool
    version: str | None
    command: str
    reasons: tuple[str, ...]
    suggestion: str | None


@dataclass(frozen=True, slots=True)
class PackageReport:
    """Why a package is there, or is not."""

    name: str
    ecosystem: Ecosystem
    path: tuple[LockedPackage, ...]
    """From a direct requirement to the package; empty where the lock does not lead to it."""
    is_locked: bool
    has_graph: bool
    events: tuple[PackageEvent, ...]
    verdict: PackageVerdict


async def explain(
    app: App, ecosystem: Ecosystem, name: str, lock: Lock | None, *, is_offline: bool
) -> PackageReport:
    """The path in the lock, the newest actions in the audit log, and the verdict of today."""
    wanted = canonical_name(ecosystem, name)
    packages = [] if lock is None else [each for each in lock.packages if each.name == wanted]
    (verdict,) = await verify(app, ecosystem, [wanted], is_offline=is_offline)
    return PackageReport(
        wanted,
        ecosystem,
        () if lock is None else lock.path_to(wanted),
        bool(packages),
        lock is not None and lock.has_graph,
        tuple(islice(_events(app, ecosystem, wanted), MAX_EVENTS)),
        verdict,
    )


def _events(app: App, ecosystem: Ecosystem, name: str) -> Iterator[PackageEvent]:
    query = Query(kind=EventKind.CONNECTION, text=name)
    for record in audit_queries.newest(query, keys=app.keys, is_strict=True):
        body = record["body"]
        is_refusal = body.get("event") == REFUSED
        is_about = (body.get("ecosystem"), body.get("name")) == (ecosystem.value, name)
        if is_about and (is_refusal or body.get("event") == SERVED):
            yield PackageEvent(
                record["action_id"],
                record["id"],
                record["time"],
                is_refusal,
                body.get("version"),
                _command(app, record["action_id"]),
                tuple(str(each.get("text", "")) for each in body.get("reasons", ())),
                body.get("suggestion"),
            )


def _command(app: App, action_id: str) -> str:
    """The command, the code or the request of an action, shortened; empty where the log has no
    intent."""
    query = Query(action_id=action_id, kind=EventKind.INTENT)
    for record in audit_queries.newest(query, keys=app.keys):
        body = record["body"]
        command = body.get("command")
        if requirements := body.get("requirements"):  # by name, without a command
            command = ["install", f"{body.get('ecosystem')}:", *requirements]
        text = " ".join(map(str, command)) if command else str(body.get("code", ""))
        return text[:_COMMAND_CHARACTERS]
    return ""


def _recorded(
    subject_id: str,
    ask: AskPassphrase | None,
    *,
    home: str | None = None,
    keys: SessionKeys | None = None,
) -> list[dict[str, Any]]:
    records = audit_queries.about(
        check_id(subject_id), home=home, ask=ask, keys=keys, is_strict=True
    )
    if not records:
        raise BadInput(
            f"the audit log has no record of {subject_id}",
            hint="See `cellwall audit tail`.",
            code="CW-NO-RECORD",
        )
    if any(each["body"].get("sealed") == "erased" for each in records):
        raise vault_failures.session_erased()  # a list without its packages would be wrong
    return [each for each in records if each["body"].get("event") == SERVED]


def _installed(records: Sequence[dict[str, Any]]) -> list[InstalledPackage]:
    found = []
    for record in records:
        body = record["body"]
        algorithm = next(each for each in ("sha256", "sha512") if each in body)
        found.append(
            InstalledPackage(
                Ecosystem(body["ecosystem"]),
                body["name"],
                body["version"],
                os.path.basename(body["file"]),
                "",
                algorithm,
                body[algorithm],
                body["size"],
                record["action_id"],
                record["id"],
                _source_of(body.get("source")),
            )
        )
    return found


def _source_of(body: dict[str, Any] | None) -> LockedFile | None:
    """The source archive of a wheel that was built from it."""
    if body is None:
        return None
    hashes = (("sha256", str(body["sha256"])),)
    return LockedFile(os.path.basename(body["file"]), str(body["url"]), hashes)
