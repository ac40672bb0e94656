"""The guard as configured; its rules load with the first text that needs them."""

# ruff: noqa: PLC0415  # late imports: rule sets load with the first text that needs them, not with every run

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from cellwall.audit.files import DIRECTORY, closing_fd, replace_file
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.config.sections import GuardSection
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.errors import ConfigError
from cellwall.core.home import cache_path
from cellwall.core.languages import canonical
from cellwall.core.outcomes import SEVERITIES, Finding, Outcome, RunResult, Severity
from cellwall.core.types import Action, OutputSink, Principal, RunCommand
from cellwall.guard.mark import MODES, Mode, unwrap, wrap
from cellwall.guard.report import GuardSettings, Report, TextTreatment, Treatments
from cellwall.guard.scanning import Scanner
from cellwall.guard.service import GuardService, RedactedSink
from cellwall.parsing.derived_cache import use_cache
from cellwall.runtime.secret_leases import SecretLeaser

if TYPE_CHECKING:
    from cellwall.guard.detect import Pack
    from cellwall.guard.pii import Pseudonyms
    from cellwall.guard.redact import Redactor, SecretRules
    from cellwall.parsing.canaries.canary_set import CanarySet

__all__ = [
    "CompiledRuleCache",
    "GuardService",
    "LazyGuard",
    "Mode",
    "Report",
    "guard_for",
    "guard_of",
    "known_values",
    "mark",
    "pseudonyms",
    "screened_code",
    "shown",
    "unmark",
    "withheld",
]

_MAX_FILE_BYTES = 8 << 20
_MAX_CACHED_BYTES = 64 << 20
_MAX_CACHED_FILES = 64
_DIGEST_BYTES = 32
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LazyGuard:
    """Implements `GuardPort`; builds the guard on first use: a run without text needs none."""

    def __init__(self, make: Callable[[], GuardService]) -> None:
        self._make = make
        self._made: GuardService | None = None

    @property
    def guard(self) -> GuardService:
        if self._made is None:
            self._made = self._make()  # two threads may both build it; the results are equal
        return self._made

    def load(self) -> None:
        self.guard.load()

    def screen(self, action: Action) -> Sequence[Finding]:
        return self.guard.screen(action)

    def clean(self, action: Action, result: RunResult) -> RunResult:
        return self.guard.clean(action, result)

    def redact(self, text: str) -> str:
        return self.guard.redact(text)

    def read_message(self, message: ReceiveMessage | SendReply) -> str:
        return self.guard.read_message(message)

    def tell(self, action: Action, text: str) -> str:
        return self.guard.tell(action, text)

    def stream(self, sink: OutputSink) -> RedactedSink:
        return self.guard.stream(sink)

    def end_session(self, session_id: str) -> None:
        if self._made is not None:
            self._made.end_session(session_id)


def guard_of(
    settings: Settings,
    environ: Mapping[str, str],
    known: Callable[[], Mapping[str, bytes]] | None = None,
    canaries: Callable[[], CanarySet | None] = lambda: None,
) -> GuardService:
    """The guard as configured. `known` gives values to redact whatever their form, `canaries` the
    registered texts that are withheld."""
    use_cache(CompiledRuleCache(os.path.join(cache_path(environ), "prepared")))
    section = settings.guard
    chosen = _settings(section)
    # The user's own files are read now: a mistake in them must be reported before a run.
    packs = tuple(_pack(path) for path in section.rule_files)
    extra = [_gitleaks(path) for path in section.secret_rule_files]
    return GuardService(
        chosen,
        scanner=Scanner(chosen, packs),
        redactor=functools.partial(_redactor, extra, known),
        canaries=canaries,
    )


def _redactor(
    extra: Sequence[SecretRules], known: Callable[[], Mapping[str, bytes]] | None
) -> Redactor:
    from cellwall.guard.redact import Redactor, shipped

    rules = functools.reduce(lambda all_, more: all_.with_rules(more), extra, shipped())
    return Redactor(rules, known=known)


def _pack(path: str) -> Pack:
    from cellwall.guard.detect import load_pack

    return load_pack(_read(path), name=path)


def guard_for(
    *, config: str | None, profile: str | None, environ: Mapping[str, str]
) -> GuardService:
    """A guard for texts alone: no sandbox, no audit log, no vault."""
    settings = load_settings(file=config, profile=profile, environ=environ)
    return guard_of(settings, environ)


def known_values(leaser: SecretLeaser) -> Callable[[], Mapping[str, bytes]]:
    """The values of the vault while it is unlocked; a vault never opened has nothing to leak."""

    def known() -> Mapping[str, bytes]:
        vault = leaser.unlocked
        return {} if vault is None else vault.values()

    return known


def _settings(section: GuardSection) -> GuardSettings:
    (marking,) = [mode for mode in MODES if mode == section.marking]
    return GuardSettings(
        input=_treatments(section, "input"),
        output=_treatments(section, "output"),
        marking=marking,
        max_characters=section.max_characters,
        max_shown_characters=section.max_shown_characters,
        denied_code=section.denied_code,
        code_patterns=section.code_patterns,
        hide_personal_data=section.personal_data == "hide",
    )


def _treatments(section: GuardSection, kind: str) -> Treatments:
    found: dict[Severity, TextTreatment] = {}
    for severity in SEVERITIES:
        chosen = TextTreatment(getattr(section, f"{kind}_{severity}"))
        if section.dangerously_only_annotate:
            chosen = min(chosen, TextTreatment.ANNOTATE, key=lambda each: each.rank)
        found[severity] = chosen
    return found


def _gitleaks(path: str) -> SecretRules:
    from cellwall.guard.redact import load_gitleaks

    return load_gitleaks(_read(path))


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(
                f"{os.path.basename(path)} is too large for a rule file",
                hint="Name a rule file in [guard].",
            )
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the rules in {path} cannot be read", hint="Fix the file, or remove it from [guard]."
        ) from error


def shown(guard: GuardService, outcome: Outcome) -> str:
    """The outcome of a program's call as a model may see it."""
    result = RunResult(
        outcome.exit_code,
        outcome.stdout_bytes,
        outcome.stderr_bytes,
        value=outcome.value,
        text=outcome.text,
        results=outcome.results,
        code_error=outcome.code_error,
        payload=outcome.payload,
    )
    # An outcome does not hold its operation, which the guard needs only for file names.
    action = Action(principal=Principal("", ""), operation=RunCommand(()), audience="model")
    cleaned = guard.clean(action, result)
    return withheld(cleaned.withheld) if cleaned.withheld else cleaned.shown


def withheld(why: str) -> str:
    """The text that a model sees in place of withheld content."""
    return f"[cellwall: withheld: {why}]"


def screened_code(code: str, language: str) -> tuple[Finding, ...]:
    """Findings about code: advice, never the boundary (GRD-9)."""
    from cellwall.guard.code import screen

    return tuple(hit.finding() for hit in screen(code, canonical(language)))


def mark(text: str, *, source: str, mode: Mode) -> str:
    """The text marked as data for a model (GRD-4)."""
    return wrap(text, source=source, mode=mode)


def unmark(text: str) -> str:
    """The text that was marked."""
    return unwrap(text)


def pseudonyms() -> Pseudonyms:
    """An empty table of tokens for personal data."""
    from cellwall.guard.pii import Pseudonyms

    return Pseudonyms()


class CompiledRuleCache:
    """Compiled rules in the user's cache directory, by the digest of their source.

    To compile some thousand words takes 100 ms and more, to read the result back 1 ms. A file that
    is damaged, or that another user could have written, is compiled anew: the cache saves time and
    decides nothing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, source: bytes, make: Callable[[], bytes]) -> bytes:
        """The result of `make`, from the cache where it holds one for the same source."""
        name = sha256(source).hexdigest()
        kept = self._read(name)
        if kept is None:
            kept = make()
            with suppress(OSError):  # a full disk costs time alone
                self._write(name, kept)
        return kept

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = os.open(os.path.join(self._folder, name), _READ)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not is_ours or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                return None
            data = file.read(_MAX_CACHED_BYTES)
        kept, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        return kept if sha256(kept).digest() == digest else None

    def _write(self, name: str, data: bytes) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._make_room()
        with closing_fd(os.open(self._folder, DIRECTORY)) as folder:
            replace_file(name, data + sha256(data).digest(), folder, durable=False)

    def _make_room(self) -> None:
        """Remove all files once there are too many: old versions must not pile up."""
        names = os.listdir(self._folder)
        if len(names) < _MAX_CACHED_FILES:
            return
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, name))
