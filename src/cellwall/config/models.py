"""The settings, each with its default, its bounds and the reason for it (CFG-1, CFG-2).

Every section is frozen, refuses unknown keys and takes no value for another type's. A truth value
here is always a wall taken away, so it is called `dangerously_…` and is false by default.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from cellwall.config.content import GuardSection
from cellwall.config.egress import EgressSection, VaultSection
from cellwall.config.fields import (
    PATH_MOST_BYTES,
    Section,
    Size,
    SizeSchema,
    danger,
    listed,
    number,
    size,
)
from cellwall.config.people import ApprovalsSection, HookSection, PolicySection, RolesSection
from cellwall.core.limits import GIB, KIB, MIB, Limits
from cellwall.core.notes import BadNote, PublicKey

ProfileName = Literal["production", "paranoid", "development"]
PROFILE_NAMES: tuple[ProfileName, ...] = get_args(ProfileName)
DEFAULT_PROFILE: ProfileName = "production"

_EXTENSION = re.compile(r"\.[a-z0-9_+-]{1,16}")


def _check_extension(text: str) -> str:
    if _EXTENSION.fullmatch(text) is None:
        raise PydanticCustomError(
            "extension",
            'is not a file extension. Write it in lower case with its dot, for example ".lnk".',
        )
    return text


_NAME_MOST_BYTES = 255  # the kernel's own limit for one name


def _check_protected(text: str) -> str:
    # What no file can be called would protect nothing, in silence. "\\" is a Windows habit.
    for name in text.split("/"):
        fits = 0 < len(name.encode()) <= _NAME_MOST_BYTES and name.isprintable()
        if not fits or name in {".", ".."} or "\\" in name:
            raise PydanticCustomError(
                "name",
                'is not a relative path of plain names. Write for example ".npmrc", "keys/*.pem".',
            )
    return text


# ISO-2: these hold the host's secrets and its doors; no setting opens them as a whole.
_CLOSED = frozenset(
    ("/", "/root", "/home", "/etc", "/proc", "/sys", "/run", "/dev", "/var", "/tmp", "/var/run")
)
# Sockets, devices and other processes' memory: nothing below these is a plain directory of data.
_CLOSED_BELOW = ("/proc/", "/sys/", "/dev/", "/run/", "/var/run/")
# What a sandbox has of its own there covers anything of the host's.
_OF_CELLS = ("/tmp/", "/workspace/", "/code/", "/skills/", "/.cellwall/")
_A_HOME = re.compile(r"/home/[^/]+")


def _check_shared_path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//") or posixpath.normpath(text) != text:
        raise PydanticCustomError(
            "path", 'is not a plain absolute path. Write it without ".", ".." or a last "/".'
        )
    if not text.isprintable() or len(text.encode()) > PATH_MOST_BYTES:
        raise PydanticCustomError("path", "has characters or a length that no path here may have.")
    if text in _CLOSED or text.startswith(_CLOSED_BELOW) or _A_HOME.fullmatch(text):
        raise PydanticCustomError(
            "path", "would show the host's own secrets. Name the one directory that is needed."
        )
    if f"{text}/".startswith(_OF_CELLS):
        raise PydanticCustomError(
            "path", "is where a sandbox has files of its own. Put what is needed somewhere else."
        )
    return text


class _LimitsSection(Section):
    """What one run may use, unless the run itself asks for something else (LIM-1)."""

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
    """The walls, and the sizes of what passes through them."""

    uid_base: int = number(
        1_900_000_000,
        "first host uid for sandboxes; a range that neither distributions nor systemd hand out",
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
        300, "after this time without a run a waiting interpreter is let go", least=1, most=86_400
    )
    tmp_bytes: Size = size(
        64 * MIB, "the private /tmp; it lives in the run's memory", least=64 * KIB, most=64 * GIB
    )
    shm_bytes: Size = size(
        32 * MIB, "the private /dev/shm; it lives in memory too", least=64 * KIB, most=64 * GIB
    )
    extra_read_only_paths: tuple[Annotated[str, AfterValidator(_check_shared_path)], ...] = listed(
        (), "host directories shown read-only at the same path; all code can read them", most=64
    )
    dangerously_without_cgroup: bool = danger(
        "measure memory and processor time where the host gives no cgroup that enforces them; "
        "between two measurements a run can use more than the limits say"
    )
    dangerously_without_landlock: bool = danger(
        "run without Landlock where the kernel lacks it; the mount namespace is then the only "
        "wall around files"
    )


class GovernorSection(Section):
    """How much may run at once on this host (LIM-4)."""

    max_concurrent: int = number(
        64, "sandboxes at one time; more wait in the queue", least=1, most=4096
    )
    max_promised_memory_bytes: Size | None = size(
        None,
        "sum of the memory limits of what runs; left out, 80 % of the host's memory",
        least=8 * MIB,
        most=64 * 1024 * GIB,
    )
    queue_timeout_s: float = number(
        30.0, "a caller learns that the host is full rather than hang", least=0.0, most=3600.0
    )
    min_available_memory_bytes: Size = size(
        256 * MIB,
        "refuse new runs below this, so that the host itself never swaps or kills",
        least=16 * MIB,
        most=1024 * GIB,
    )
    # Not up to 100: a pressure nobody can reach would switch the check off without saying so.
    max_memory_pressure_percent: float = number(
        60.0, "refuse new runs above this memory pressure (PSI some, avg10)", least=1.0, most=95.0
    )


class WorkspaceSection(Section):
    """What may be in a workspace and what of it code may see (FS-3, FS-4)."""

    blocked_extensions: tuple[Annotated[str, AfterValidator(_check_extension)], ...] = listed(
        (".lnk", ".scr", ".pif", ".hta", ".vbs", ".jse", ".wsf", ".msi", ".cpl"),
        "files only useful to attack the desktop of whoever opens the workspace",
        most=256,
    )
    max_walk_entries: int = number(
        200_000,
        "entries looked at when a workspace is checked or compared",
        least=100,
        most=10_000_000,
    )
    extra_protected_names: tuple[Annotated[str, AfterValidator(_check_protected)], ...] = listed(
        (),
        "names to hide beside the built-in ones, in any folder; * and ? match within one name",
        most=256,
    )
    keep_changes_days: int = number(
        7, "how long copy-on-write changes wait for `diff` and `apply`", least=1, most=365
    )
    dangerously_expose_sensitive_names: bool = danger(
        "show .env, .ssh, key files and agent settings inside a given directory to the code"
    )


def _check_public_key(text: str) -> str:
    try:
        PublicKey.parse(text)
    except BadNote:
        raise PydanticCustomError(
            "key", "is not a public key. Write it as `cellwall skills sign` prints it."
        ) from None
    return text


class SkillsSection(Section):
    """Whose skills may be used (SKL-1)."""

    trusted_keys: tuple[Annotated[str, AfterValidator(_check_public_key)], ...] = listed(
        (), "public keys whose signature on a skill counts, beside the user's own", most=64
    )


def _check_absolute(text: str) -> str:
    if not posixpath.isabs(text) or "\0" in text:
        raise PydanticCustomError("path", "is not an absolute path.")
    return text


class AuditSection(Section):
    """The record of what was decided and done."""

    max_field_bytes: Size = size(
        4 * KIB,
        "longest text kept of one field; a flood must not fill the record",
        least=64,
        most=8 * KIB,
    )
    segment_bytes: Size = size(
        64 * MIB, "a file of records is sealed and packed at this size", least=MIB, most=4 * GIB
    )
    segment_days: float = number(
        7.0, "or at this age, so that retention can work on whole files", least=0.01, most=3650.0
    )
    checkpoint_events: int = number(
        1000, "the log is signed after so many events at the latest", least=1, most=1_000_000
    )
    checkpoint_s: float = number(
        30.0, "or after so many seconds, and at the end of a process", least=0.1, most=86_400.0
    )
    keep_days: int | None = Field(
        default=None,
        description="sealed files older than this are deleted; left out, nothing ever is",
        ge=1,
        le=36_500,
    )
    signing_key: Annotated[str, AfterValidator(_check_absolute)] | None = Field(
        default=None,
        description="an Ed25519 private key (PEM); left out, Cellwall makes one of its own",
        max_length=4096,
    )
    witness_directory: Annotated[str, AfterValidator(_check_absolute)] | None = Field(
        default=None,
        description="a directory, best on another machine, that gets a copy of each signature",
        max_length=4096,
    )
    witness_command: tuple[str, ...] = listed(
        (),
        "a program and its arguments that get each signature on standard input; its absolute path, "
        "or a name in the system's own places (PATH is not searched)",
        most=32,
    )


class Settings(Section):
    """The effective configuration: a profile, then the file on top of it."""

    profile: ProfileName = Field(
        default=DEFAULT_PROFILE, description="the named set of settings the file builds on"
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
    vault: VaultSection = VaultSection()
    guard: GuardSection = GuardSection()
    audit: AuditSection = AuditSection()


SECTIONS: dict[str, type[Section]] = {
    name: spec.annotation
    for name, spec in Settings.model_fields.items()
    if isinstance(spec.annotation, type) and issubclass(spec.annotation, Section)
}


def weakened(settings: Settings) -> tuple[str, ...]:
    """The names of all `dangerously_` settings that are switched on (CFG-1, CFG-3)."""
    return tuple(
        f"{section}.{name}"
        for section, model in SECTIONS.items()
        for name in model.model_fields
        if name.startswith("dangerously_") and getattr(getattr(settings, section), name)
    )


def is_size(spec: FieldInfo) -> bool:
    """Whether the field takes a text such as `512m`."""
    return isinstance(spec.json_schema_extra, SizeSchema)


def bounds(spec: FieldInfo) -> tuple[int | float, int | float] | None:
    """The least and the most a field takes, or None for what is not a number."""
    found: dict[str, int | float] = {}
    for mark in spec.metadata:
        found |= {name: getattr(mark, name) for name in ("ge", "le") if hasattr(mark, name)}
    return (found["ge"], found["le"]) if found else None


def size_text(number: int) -> str:
    """The shortest text that `parse_size` reads as this number."""
    for unit, scale in (("t", 1024 * GIB), ("g", GIB), ("m", MIB), ("k", KIB)):
        if number >= scale and number % scale == 0:
            return f"{number // scale}{unit}"
    return str(number)
