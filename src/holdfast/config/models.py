"""The settings, each with its default, its bounds and the reason for it (CFG-1, CFG-2).

Every section is frozen, refuses unknown keys and takes no value for another type's. A truth value
here is always a wall taken away, so it is called `dangerously_…` and is false by default.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from holdfast.core.approvals import CHANNELS
from holdfast.core.errors import BadInput
from holdfast.core.limits import GIB, KIB, MIB, Limits, parse_size
from holdfast.core.notes import BadNote, PublicKey
from holdfast.core.roles import INTERFACE_NAMES, OWNER, ROLE_NAMES

ProfileName = Literal["production", "paranoid", "development"]
PROFILE_NAMES: tuple[ProfileName, ...] = get_args(ProfileName)
DEFAULT_PROFILE: ProfileName = "production"

Number = TypeVar("Number", int, float)
NumberOrNone = TypeVar("NumberOrNone", int, None)


class Section(BaseModel):
    """One table of the file. Strict: "yes" is not true and 1.5 is not a count."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        validate_default=True,
    )


# What is wrong with a value is told as the rest of a sentence that begins with the value.


def _read_size(value: object) -> object:
    """`"512m"` -> bytes; all else is left to the integer check behind this."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except BadInput:
        raise PydanticCustomError("size", "is not a size. Write for example 512m.") from None


Size = Annotated[int, BeforeValidator(_read_size)]

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
_A_HOME = re.compile(r"/home/[^/]+")
_PATH_MOST_BYTES = 4096


def _check_shared_path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//") or posixpath.normpath(text) != text:
        raise PydanticCustomError(
            "path", 'is not a plain absolute path. Write it without ".", ".." or a last "/".'
        )
    if not text.isprintable() or len(text.encode()) > _PATH_MOST_BYTES:
        raise PydanticCustomError("path", "has characters or a length that no path here may have.")
    if text in _CLOSED or text.startswith(_CLOSED_BELOW) or _A_HOME.fullmatch(text):
        raise PydanticCustomError(
            "path", "would show the host's own secrets. Name the one directory that is needed."
        )
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class _SizeSchema:
    """In the JSON schema a size is a number within bounds or a text; TOML has no null."""

    least: int
    most: int

    def __call__(self, schema: dict[str, Any]) -> None:
        for key in ("type", "minimum", "maximum", "anyOf"):
            schema.pop(key, None)
        if schema.get("default", 0) is None:
            del schema["default"]
        schema["anyOf"] = [
            {"type": "integer", "minimum": self.least, "maximum": self.most},
            {"type": "string", "pattern": r"^[0-9]{1,15}(\.[0-9]{1,3})? *[kmgtKMGT]?([iI]?[bB])?$"},
        ]


def _number(default: Number, reason: str, *, least: Number, most: Number) -> Number:
    return Field(default=default, description=reason, ge=least, le=most)


def _size(default: NumberOrNone, reason: str, *, least: int, most: int) -> NumberOrNone:
    schema = _SizeSchema(least, most)
    return Field(default=default, description=reason, ge=least, le=most, json_schema_extra=schema)


def _list(default: tuple[str, ...], reason: str, *, most: int) -> tuple[str, ...]:
    return Field(default=default, description=reason, max_length=most, strict=False)


def _danger(reason: str) -> bool:
    return Field(default=False, description=reason)


class _LimitsSection(Section):
    """What one run may use, unless the run itself asks for something else (LIM-1)."""

    def to_limits(self) -> Limits:
        return Limits(**self.model_dump())


def _limit_fields() -> dict[str, Any]:
    types = get_type_hints(Limits)
    found: dict[str, Any] = {}
    for spec in dataclasses.fields(Limits):
        is_size = "bytes" in spec.name.split("_")
        make: Callable[..., Any] = _size if is_size else _number
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

    uid_base: int = _number(
        1_900_000_000,
        "first host uid for sandboxes; a range that neither distributions nor systemd hand out",
        least=65_536,
        most=2_147_000_000,
    )
    max_code_bytes: Size = _size(
        10 * MIB, "size of the code of one run; it is held in memory", least=KIB, most=GIB
    )
    max_result_bytes: Size = _size(
        8 * MIB, "value and results of one run; untrusted and parsed outside", least=KIB, most=GIB
    )
    max_stdin_bytes: Size = _size(
        64 * MIB, "standard input of one run; it is held in memory", least=KIB, most=4 * GIB
    )
    template_idle_s: int = _number(
        300, "after this time without a run a waiting interpreter is let go", least=1, most=86_400
    )
    tmp_bytes: Size = _size(
        64 * MIB, "the private /tmp; it lives in the run's memory", least=64 * KIB, most=64 * GIB
    )
    shm_bytes: Size = _size(
        32 * MIB, "the private /dev/shm; it lives in memory too", least=64 * KIB, most=64 * GIB
    )
    extra_read_only_paths: tuple[Annotated[str, AfterValidator(_check_shared_path)], ...] = _list(
        (), "host directories shown read-only at the same path; all code can read them", most=64
    )
    dangerously_without_cgroup: bool = _danger(
        "run with process limits alone where the host gives no cgroup; many small processes "
        "together can then use more than the limits say"
    )
    dangerously_without_landlock: bool = _danger(
        "run without Landlock where the kernel lacks it; the mount namespace is then the only "
        "wall around files"
    )


class GovernorSection(Section):
    """How much may run at once on this host (LIM-4)."""

    max_concurrent: int = _number(
        64, "sandboxes at one time; more wait in the queue", least=1, most=4096
    )
    max_promised_memory_bytes: Size | None = _size(
        None,
        "sum of the memory limits of what runs; left out, 80 % of the host's memory",
        least=8 * MIB,
        most=64 * 1024 * GIB,
    )
    queue_timeout_s: float = _number(
        30.0, "a caller learns that the host is full rather than hang", least=0.0, most=3600.0
    )
    min_available_memory_bytes: Size = _size(
        256 * MIB,
        "refuse new runs below this, so that the host itself never swaps or kills",
        least=16 * MIB,
        most=1024 * GIB,
    )
    # Not up to 100: a pressure nobody can reach would switch the check off without saying so.
    max_memory_pressure_percent: float = _number(
        60.0, "refuse new runs above this memory pressure (PSI some, avg10)", least=1.0, most=95.0
    )


class WorkspaceSection(Section):
    """What may be in a workspace and what of it code may see (FS-3, FS-4)."""

    blocked_extensions: tuple[Annotated[str, AfterValidator(_check_extension)], ...] = _list(
        (".lnk", ".scr", ".pif", ".hta", ".vbs", ".jse", ".wsf", ".msi", ".cpl"),
        "files only useful to attack the desktop of whoever opens the workspace",
        most=256,
    )
    max_walk_entries: int = _number(
        200_000,
        "entries looked at when a workspace is checked or compared",
        least=100,
        most=10_000_000,
    )
    extra_protected_names: tuple[Annotated[str, AfterValidator(_check_protected)], ...] = _list(
        (),
        "names to hide beside the built-in ones, in any folder; * and ? match within one name",
        most=256,
    )
    keep_changes_days: int = _number(
        7, "how long copy-on-write changes wait for `diff` and `apply`", least=1, most=365
    )
    dangerously_expose_sensitive_names: bool = _danger(
        "show .env, .ssh, key files and agent settings inside a given directory to the code"
    )


def _check_public_key(text: str) -> str:
    try:
        PublicKey.parse(text)
    except BadNote:
        raise PydanticCustomError(
            "key", "is not a public key. Write it as `holdfast skills sign` prints it."
        ) from None
    return text


class SkillsSection(Section):
    """Whose skills may be used (SKL-1)."""

    trusted_keys: tuple[Annotated[str, AfterValidator(_check_public_key)], ...] = _list(
        (), "public keys whose signature on a skill counts, beside the user's own", most=64
    )


def _one_of(*words: str) -> AfterValidator:
    def check(text: str) -> str:
        if text not in words:
            told = " or ".join(f'"{word}"' for word in words)
            raise PydanticCustomError("word", f"is not known. Write {told}.")
        return text

    return AfterValidator(check)


def _word(reason: str, *words: str) -> str:
    return Field(
        default=words[0],
        description=reason,
        max_length=max(map(len, words)),
        json_schema_extra={"enum": list(words)},
    )


def _check_policy_file(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or len(text.encode()) > _PATH_MOST_BYTES:
        raise PydanticCustomError(
            "path", 'is not an absolute path. Write for example "/etc/team/policy.toml".'
        )
    return text


class PolicySection(Section):
    """Rules for what agents ask for; see the guide on policies."""

    files: tuple[Annotated[str, AfterValidator(_check_policy_file)], ...] = _list(
        (),
        "policy files that judge every action, in place of the user's and the project's own",
        most=16,
    )
    dangerously_observe: bool = _danger(
        "what would be denied or asked about is only recorded as such, and goes on; to find out "
        "which rules are needed"
    )


class HookSection(Section):
    """What `holdfast hook` answers to an agent that asks before it uses a tool."""

    commands: Annotated[str, _one_of("outside", "inside")] = _word(
        "where shell commands that are allowed run: as the agent would, or in a sandbox",
        "outside",
        "inside",
    )
    questions: Annotated[str, _one_of("agent", "nobody")] = _word(
        "who is asked where a rule says so: the person at the agent's own prompt, or nobody, and "
        "then it is denied",
        "agent",
        "nobody",
    )


def _check_absolute(text: str) -> str:
    if not posixpath.isabs(text) or "\0" in text:
        raise PydanticCustomError("path", "is not an absolute path.")
    return text


class AuditSection(Section):
    """The record of what was decided and done."""

    max_field_bytes: Size = _size(
        4 * KIB,
        "longest text kept of one field; a flood must not fill the record",
        least=64,
        most=8 * KIB,
    )
    segment_bytes: Size = _size(
        64 * MIB, "a file of records is sealed and packed at this size", least=MIB, most=4 * GIB
    )
    segment_days: float = _number(
        7.0, "or at this age, so that retention can work on whole files", least=0.01, most=3650.0
    )
    checkpoint_events: int = _number(
        1000, "the log is signed after so many events at the latest", least=1, most=1_000_000
    )
    checkpoint_s: float = _number(
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
        description="an Ed25519 private key (PEM); left out, Holdfast makes one of its own",
        max_length=4096,
    )
    witness_directory: Annotated[str, AfterValidator(_check_absolute)] | None = Field(
        default=None,
        description="a directory, best on another machine, that gets a copy of each signature",
        max_length=4096,
    )
    witness_command: tuple[str, ...] = _list(
        (), "a program and its arguments that get each signature on standard input", most=32
    )


def _check_role(text: str) -> str:
    if text not in ROLE_NAMES:
        raise PydanticCustomError("role", f"is not a role. Write one of {', '.join(ROLE_NAMES)}.")
    return text


def _check_interfaces(table: dict[str, str]) -> dict[str, str]:
    # A misspelled name would leave that interface unbounded, in silence.
    if not table.keys() <= set(INTERFACE_NAMES):
        raise PydanticCustomError(
            "interface", f"names an unknown interface. Known: {', '.join(INTERFACE_NAMES)}."
        )
    return table


def _check_users(table: dict[str, str]) -> dict[str, str]:
    if not all(0 < len(name) <= 64 and name.isprintable() for name in table):
        raise PydanticCustomError("user", "has a name that no user can have.")
    return table


RoleText = Annotated[str, AfterValidator(_check_role)]


class RolesSection(Section):
    """Who may do what at most (RBAC-1). Of all that is said about somebody the strictest counts."""

    default: RoleText = Field(
        default=OWNER,
        description="the role of users that are not named below; who starts Holdfast on their own "
        "machine owns it",
        max_length=32,
        json_schema_extra={"enum": list(ROLE_NAMES)},
    )
    users: Annotated[dict[str, RoleText], AfterValidator(_check_users)] = Field(
        default={}, description="roles of single users, by name", max_length=1000
    )
    interfaces: Annotated[dict[str, RoleText], AfterValidator(_check_interfaces)] = Field(
        default={},
        description="the most that anybody may be who comes through this interface; an agent's "
        "hook needs less than its owner has",
        max_length=len(INTERFACE_NAMES),
    )


def _check_channel(text: str) -> str:
    if text not in CHANNELS:
        raise PydanticCustomError("channel", f"is no channel. Known: {', '.join(CHANNELS)}.")
    return text


class ApprovalsSection(Section):
    """How a person is asked where policy says so (POL-8). Without an answer it is a denial."""

    timeout_s: float = _number(
        120.0, "who has not answered by then has said no", least=1.0, most=86_400.0
    )
    channels: tuple[Annotated[str, AfterValidator(_check_channel)], ...] = _list(
        CHANNELS,
        "where answers may come from: the terminal of the run, `holdfast approvals` in another one "
        "(the queue, which runs in the supervisor need too), a function of the embedding program",
        most=len(CHANNELS),
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
    return isinstance(spec.json_schema_extra, _SizeSchema)


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
