"""The settings, each with its default, its bounds and the reason for it (CFG-1, CFG-2).

Every section is frozen, refuses unknown keys and converts no value to another type. A boolean here
always disables a protection, so it is called `dangerously_…` and is false by default.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from cellwall.config.alerts_section import AlertsSection
from cellwall.config.audit_section import AuditSection
from cellwall.config.egress_sections import EgressSection, PackagesSection
from cellwall.config.fields import (
    MAX_PATH_BYTES,
    Section,
    Size,
    SizeSchema,
    absolute_path,
    danger,
    listed,
    matching,
    number,
    one_of,
    size,
    word,
)
from cellwall.config.fleet_section import FleetSection
from cellwall.config.kubernetes_section import KubernetesSection
from cellwall.config.mcp_section import McpSection
from cellwall.config.observability_section import ObservabilitySection
from cellwall.config.oidc_section import OidcSection
from cellwall.config.quota_sections import BudgetsSection, RatesSection
from cellwall.config.sections import (
    ApprovalsSection,
    GuardSection,
    HookSection,
    PolicySection,
    RetentionSection,
    RolesSection,
    SnapshotsSection,
    VaultSection,
)
from cellwall.config.server_section import ServerSection
from cellwall.config.service_sections import AccountsSection, MessagesSection, StorageSection
from cellwall.core.languages import NAMES
from cellwall.core.limits import GIB, KIB, MIB, Limits
from cellwall.core.notes import BadNote, PublicKey

ProfileName = Literal["production", "paranoid", "development"]
PROFILE_NAMES: tuple[ProfileName, ...] = get_args(ProfileName)
DEFAULT_PROFILE: ProfileName = "production"

_Extension = Annotated[
    str,
    matching(
        r"\.[a-z0-9_+-]{1,16}",
        'is not a file extension. Write it in lower case with its dot, for example ".lnk".',
    ),
]
_JAVASCRIPT = ("any", "deno")
_SECOND_USER = ("refuse", "allow")
_BACKENDS = ("native", "container", "gvisor", "kvm")
_MAX_NAME_BYTES = 255  # the kernel's own limit for one name


def _check_protected(text: str) -> str:
    # An impossible name would silently protect nothing. "\\" is a Windows separator.
    for name in text.split("/"):
        fits = 0 < len(name.encode()) <= _MAX_NAME_BYTES and name.isprintable()
        if not fits or name in {".", ".."} or "\\" in name:
            raise PydanticCustomError(
                "name",
                'is not a relative path of plain names. Write for example ".npmrc", "keys/*.pem".',
            )
    return text


# ISO-2: these hold the host's secrets and sockets; no setting shares them as a whole.
_CLOSED = frozenset(
    ("/", "/root", "/home", "/etc", "/proc", "/sys", "/run", "/dev", "/var", "/tmp", "/var/run")
)
# Sockets, devices and memory of processes: nothing below is a plain data directory.
_CLOSED_BELOW = ("/proc/", "/sys/", "/dev/", "/run/", "/var/run/")
# The sandbox mounts its own files there, over those of the host.
_OF_CELLS = ("/tmp/", "/workspace/", "/code/", "/skills/", "/.cellwall/")
_A_HOME = re.compile(r"/home/[^/]+")


def _check_shared_path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//") or posixpath.normpath(text) != text:
        raise PydanticCustomError(
            "path", 'is not a plain absolute path. Write it without ".", ".." or a last "/".'
        )
    if not text.isprintable() or len(text.encode()) > MAX_PATH_BYTES:
        raise PydanticCustomError("path", "has invalid characters or is too long.")
    if text in _CLOSED or text.startswith(_CLOSED_BELOW) or _A_HOME.fullmatch(text):
        raise PydanticCustomError(
            "path", "would expose the host's own secrets. Name the one directory that is needed."
        )
    if f"{text}/".startswith(_OF_CELLS):
        raise PydanticCustomError(
            "path", "is a directory of the sandbox itself. Use another directory."
        )
    return text


class _LimitsSection(Section):
    """Limits of one run, unless the run sets its own (LIM-1)."""

    def to_limits(self) -> Limits:
        return Limits(**self.model_dump())


def _limit_fields() -> dict[str, Any]:
    types = get_type_hints(Limits)
    found: dict[str, Any] = {}
    for spec in dataclasses.fields(Limits):
        is_size = "bytes" in spec.name.split("_")
        make: Callable[..., Any] = size if is_size else number
        least, most = spec.metadata["least"], spec.metadata["most"]
        found[spec.name] = (
            Size if is_size else types[spec.name],
            make(spec.default, spec.metadata["reason"], least=least, most=most),
        )
    return found


if TYPE_CHECKING:
    LimitsSection = _LimitsSection
else:
    LimitsSection = create_model(
        "LimitsSection", __base__=_LimitsSection, __doc__=_LimitsSection.__doc__, **_limit_fields()
    )


class SandboxSection(Section):
    """Isolation layers, and sizes of the data that passes them."""

    uid_base: int = number(
        1_900_000_000,
        "first of the 35,000 host uids for sandboxes, 20,000 of which are used with second users "
        "alone; a range that neither distributions nor systemd assign",
        least=65_536,
        most=2_147_000_000,
    )
    max_code_bytes: Size = size(
        10 * MIB, "size of the code of one run; it is held in memory", least=KIB, most=GIB
    )
    max_result_bytes: Size = size(
        8 * MIB, "value and results of one run; untrusted and parsed outside", least=KIB, most=GIB
    )
    max_stdin_bytes: Size = size(
        64 * MIB, "standard input of one run; it is held in memory", least=KIB, most=4 * GIB
    )
    template_idle_s: int = number(
        300, "an idle prepared interpreter ends after this time", least=1, most=86_400
    )
    tmp_bytes: Size = size(
        64 * MIB, "the private /tmp; it lives in the run's memory", least=64 * KIB, most=64 * GIB
    )
    shm_bytes: Size = size(
        32 * MIB, "the private /dev/shm; it lives in memory too", least=64 * KIB, most=64 * GIB
    )
    extra_read_only_paths: tuple[Annotated[str, AfterValidator(_check_shared_path)], ...] = listed(
        (), "host directories mounted read-only at the same path; all code can read them", most=64
    )
    backend: Annotated[str, one_of(*_BACKENDS)] = word(
        "builds the outer wall: bubblewrap; a container engine with its usual runtime or with "
        "gVisor; or kvm, a virtual machine for each cell",
        *_BACKENDS,
    )
    javascript: Annotated[str, one_of(*_JAVASCRIPT)] = word(
        "runs JavaScript and TypeScript: Deno, or Node without it; or Deno alone, whose "
        "permissions are one more layer inside the cell",
        *_JAVASCRIPT,
    )
    allowed_languages: tuple[Annotated[str, one_of(*NAMES, noun="a language")], ...] = listed(
        NAMES,
        "languages in which code may be run. A command may start any interpreter that the sandbox "
        "sees: the rules of the policy decide about commands",
        most=len(NAMES),
    )
    second_user: Annotated[str, one_of(*_SECOND_USER)] = word(
        "whether a sandbox that asks for it gets a second unprivileged user, `root`, beside "
        "`sandbox`: no capability and the same walls, but one more uid of the host for each",
        *_SECOND_USER,
    )
    engine_socket: Annotated[str, absolute_path("/run/docker.sock")] | None = Field(
        default=None,
        description="socket of Docker or of Podman's service; left out, the first that is found",
        max_length=107,  # of an address in the kernel
    )
    machine_kernel: Annotated[str, absolute_path("/boot/vmlinuz-6.1.0-40-amd64")] | None = Field(
        default=None,
        description="kernel of virtual machines (kvm), whose modules are beside it in lib/modules; "
        "left out, the newest of /boot",
        max_length=4096,
    )
    dangerously_without_cgroup: bool = danger(
        "poll memory and CPU time where the host has no cgroup that enforces them; between two "
        "polls a run can exceed its limits"
    )
    dangerously_without_landlock: bool = danger(
        "run without Landlock where the kernel lacks it; the mount namespace is then the only "
        "layer around files"
    )
    dangerously_without_user_namespace: bool = danger(
        "run containers of an engine in the user namespace of the host where the engine gives "
        "them none; code is then an unprivileged user of the host itself"
    )
    dangerously_emulate_machines: bool = danger(
        "run virtual machines (kvm) in software where the host has no /dev/kvm: slow, and the "
        "emulator is not made to withstand hostile code, so that the machine is no boundary"
    )


class GovernorSection(Section):
    """Capacity of this host (LIM-4)."""

    max_concurrent: int = number(
        64, "concurrent sandboxes; more wait in the queue", least=1, most=4096
    )
    max_promised_memory_bytes: Size | None = size(
        None,
        "sum of the memory limits of all runs; left out, 80 % of the host's memory",
        least=8 * MIB,
        most=64 * 1024 * GIB,
    )
    queue_timeout_s: float = number(
        30.0,
        "a caller gets an error instead of waiting for a full host",
        least=0.0,
        most=3600.0,
    )
    min_available_memory_bytes: Size = size(
        256 * MIB,
        "refuse new runs below this, so that the host neither swaps nor kills processes",
        least=16 * MIB,
        most=1024 * GIB,
    )
    # Not up to 100: an unreachable pressure would silently disable the check.
    max_memory_pressure_percent: float = number(
        60.0, "refuse new runs above this memory pressure (PSI some, avg10)", least=1.0, most=95.0
    )


class WorkspaceSection(Section):
    """Files allowed in a workspace, and those hidden from code (FS-3, FS-4)."""

    blocked_extensions: tuple[_Extension, ...] = listed(
        (".lnk", ".scr", ".pif", ".hta", ".vbs", ".jse", ".wsf", ".msi", ".cpl"),
        "file types that only serve to attack the desktop of a person who opens the workspace",
        most=256,
    )
    max_walk_entries: int = number(
        200_000,
        "directory entries inspected when a workspace is checked or compared",
        least=100,
        most=10_000_000,
    )
    extra_protected_names: tuple[Annotated[str, AfterValidator(_check_protected)], ...] = listed(
        (),
        "names to hide beside the built-in ones, in any folder; * and ? match within one name",
        most=256,
    )
    build_files: Annotated[str, one_of("review", "protect")] = word(
        "build, task and test files (Makefile, package.json, conftest.py): code may write them, "
        "and `diff` and `apply` show them first; or they are read-only on every way in",
        "review",
        "protect",
    )
    keep_changes_days: int = number(
        7, "how long copy-on-write changes are kept for `diff` and `apply`", least=1, most=365
    )
    keep_sessions_days: int = number(
        30,
        "how long the files of ended sessions are kept that their owners keep",
        least=1,
        most=3650,
    )
    dangerously_expose_sensitive_names: bool = danger(
        "expose .env, .ssh, key files and agent settings in a given directory to the code"
    )

    @property
    def protects_build_files(self) -> bool:
        return self.build_files == "protect"


def _check_public_key(text: str) -> str:
    try:
        PublicKey.parse(text)
    except BadNote:
        raise PydanticCustomError(
            "key", "is not a public key. Write it as `cellwall skills sign` prints it."
        ) from None
    return text


class SkillsSection(Section):
    """Trusted signers of skills (SKL-1)."""

    trusted_keys: tuple[Annotated[str, AfterValidator(_check_public_key)], ...] = listed(
        (), "public keys that may sign skills, beside the user's own", most=64
    )


class Settings(Section):
    """The effective configuration: a profile, then the file on top of it."""

    profile: ProfileName = Field(
        default=DEFAULT_PROFILE, description="the named set of settings on which the file builds"
    )
    limits: LimitsSection = LimitsSection()
    sandbox: SandboxSection = SandboxSection()
    governor: GovernorSection = GovernorSection()
    workspace: WorkspaceSection = WorkspaceSection()
    skills: SkillsSection = SkillsSection()
    roles: RolesSection = RolesSection()
    approvals: ApprovalsSection = ApprovalsSection()
    policy: PolicySection = PolicySection()
    hook: HookSection = HookSection()
    egress: EgressSection = EgressSection()
    packages: PackagesSection = PackagesSection()
    vault: VaultSection = VaultSection()
    guard: GuardSection = GuardSection()
    audit: AuditSection = AuditSection()
    alerts: AlertsSection = AlertsSection()
    retention: RetentionSection = RetentionSection()
    snapshots: SnapshotsSection = SnapshotsSection()
    storage: StorageSection = StorageSection()
    accounts: AccountsSection = AccountsSection()
    server: ServerSection = ServerSection()
    observability: ObservabilitySection = ObservabilitySection()
    oidc: OidcSection = OidcSection()
    rates: RatesSection = RatesSection()
    budgets: BudgetsSection = BudgetsSection()
    messages: MessagesSection = MessagesSection()
    mcp: McpSection = McpSection()
    fleet: FleetSection = FleetSection()
    kubernetes: KubernetesSection = KubernetesSection()


SECTIONS: dict[str, type[Section]] = {
    name: spec.annotation
    for name, spec in Settings.model_fields.items()
    if isinstance(spec.annotation, type) and issubclass(spec.annotation, Section)
}


def weakened(settings: Settings) -> tuple[str, ...]:
    """The names of all enabled `dangerously_` settings (CFG-1, CFG-3)."""
    return tuple(
        f"{section}.{name}"
        for section, model in SECTIONS.items()
        for name in model.model_fields
        if name.startswith("dangerously_") and getattr(getattr(settings, section), name)
    )


def is_size(spec: FieldInfo) -> bool:
    """Whether the field accepts a text such as `512m`."""
    return isinstance(spec.json_schema_extra, SizeSchema)


def bounds(spec: FieldInfo) -> tuple[int | float, int | float] | None:
    """The bounds of a numeric field; None for other fields."""
    found: dict[str, int | float] = {}
    for mark in spec.metadata:
        found |= {name: getattr(mark, name) for name in ("ge", "le") if hasattr(mark, name)}
    return (found["ge"], found["le"]) if found else None


def schema_text() -> str:
    """The JSON schema of the configuration file, for editors that know TOML."""
    schema = Settings.model_json_schema()
    _drop_titles(schema)
    for name in SECTIONS:
        del schema["properties"][name]["default"]  # each key tells its own
    named = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Cellwall configuration",
        **schema,
    }
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"


def _drop_titles(node: object) -> None:
    """Remove titles, which only repeat the name of the key."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for child in node.values():
            _drop_titles(child)
