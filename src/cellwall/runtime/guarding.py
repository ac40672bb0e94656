"""The guard, made from the configuration; its rules are read when the first text comes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cellwall.config.content import GuardSection
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError
from cellwall.core.home import cache_path
from cellwall.core.languages import canonical
from cellwall.core.outcomes import Finding, Outcome, RunResult, Severity
from cellwall.core.types import Action, OutputSink, Principal, RunCommand
from cellwall.runtime.lending import Lending
from cellwall.runtime.prepared import PreparedFiles

if TYPE_CHECKING:
    from cellwall.guard.channels import Channel
    from cellwall.guard.detect import Pack
    from cellwall.guard.mark import Mode
    from cellwall.guard.pii import Pseudonyms
    from cellwall.guard.redact import Redactor, SecretRules
    from cellwall.guard.report import Report
    from cellwall.guard.service import Guard, RedactedSink
    from cellwall.guard.settings import GuardSettings, Treatments

__all__ = ["Channel", "Guard", "LazyGuard", "Mode", "Report"]
__all__ += ["guard_for", "guard_of", "known_values", "mark", "pseudonyms", "screened_code"]
__all__ += ["shown", "unmark", "withheld"]

_MAX_FILE_BYTES = 8 << 20


class LazyGuard:
    """Keeps `GuardPort`; made with its first use, since a `--help` or a quiet run needs none."""

    def __init__(self, make: Callable[[], Guard]) -> None:
        self._make = make
        self._made: Guard | None = None

    @property
    def guard(self) -> Guard:
        if self._made is None:
            self._made = self._make()  # twice at most, by two threads: they are the same
        return self._made

    def screen(self, action: Action) -> Sequence[Finding]:
        return self.guard.screen(action)

    def clean(self, action: Action, result: RunResult) -> RunResult:
        return self.guard.clean(action, result)

    def redact(self, text: str) -> str:
        return self.guard.redact(text)

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
) -> Guard:
    """As configured. `known` are values that must not be shown, whatever they look like."""
    # What it knows of words, secrets and codes is much: loaded by what looks at a text.
    from cellwall.guard.scanning import Scanner  # noqa: PLC0415  # see above
    from cellwall.guard.service import Guard  # noqa: PLC0415  # see above
    from cellwall.parsing.keeping import keep_with  # noqa: PLC0415  # see above

    keep_with(PreparedFiles(os.path.join(cache_path(environ), "prepared")))
    section = settings.guard
    chosen = _settings(section)
    # The user's own files are read now: a mistake in them must be told before anything runs.
    packs = tuple(_pack(path) for path in section.rule_files)
    extra = [_gitleaks(path) for path in section.secret_rule_files]
    return Guard(
        chosen, scanner=Scanner(chosen, packs), redactor=functools.partial(_redactor, extra, known)
    )


def _redactor(
    extra: Sequence[SecretRules], known: Callable[[], Mapping[str, bytes]] | None
) -> Redactor:
    from cellwall.guard.redact import Redactor, shipped  # noqa: PLC0415  # as above

    rules = functools.reduce(lambda all_, more: all_.with_rules(more), extra, shipped())
    return Redactor(rules, known=known)


def _pack(path: str) -> Pack:
    from cellwall.guard.detect import load_pack  # noqa: PLC0415  # as above

    return load_pack(_read(path), name=path)


def guard_for(*, config: str | None, profile: str | None, environ: Mapping[str, str]) -> Guard:
    """For texts alone: no sandbox, no record, no vault."""
    settings = load_settings(file=config, profile=profile, environ=environ)
    return guard_of(settings, environ)


def known_values(lending: Lending) -> Callable[[], Mapping[str, bytes]]:
    """What the vault holds while it is open; who never opens it has nothing that could be shown."""

    def known() -> Mapping[str, bytes]:
        vault = lending.opened
        return {} if vault is None else vault.values()

    return known


def _settings(section: GuardSection) -> GuardSettings:
    from cellwall.guard.mark import MODES  # noqa: PLC0415  # as above
    from cellwall.guard.settings import GuardSettings  # noqa: PLC0415  # as above

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
    from cellwall.core.outcomes import SEVERITIES  # noqa: PLC0415  # as above
    from cellwall.guard.report import Treatment  # noqa: PLC0415  # as above

    found: dict[Severity, Treatment] = {}
    for severity in SEVERITIES:
        chosen = Treatment(getattr(section, f"{kind}_{severity}"))
        if section.dangerously_only_annotate:
            chosen = min(chosen, Treatment.ANNOTATE, key=lambda each: each.rank)
        found[severity] = chosen
    return found


def _gitleaks(path: str) -> SecretRules:
    from cellwall.guard.redact import load_gitleaks  # noqa: PLC0415  # as above

    return load_gitleaks(_read(path))


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(
                f"{os.path.basename(path)} is larger than rules are",
                hint="Name a file of rules in [guard].",
            )
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the rules in {path} cannot be read", hint="Mend or remove it in [guard]."
        ) from error


def shown(guard: Guard, outcome: Outcome) -> str:
    """An outcome that a program got, as a model may see it."""
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
    # What it was asked for stands in no outcome; only files are named by it.
    action = Action(principal=Principal("", ""), operation=RunCommand(()), audience="model")
    told = guard.clean(action, result)
    return withheld(told.withheld) if told.withheld else told.shown


def withheld(why: str) -> str:
    """What a model sees in the place of what it may not see."""
    return f"[cellwall: withheld: {why}]"


def screened_code(code: str, language: str) -> tuple[Finding, ...]:
    """Advice about code (GRD-9)."""
    from cellwall.guard.code import screen  # noqa: PLC0415  # as above

    return tuple(hit.finding() for hit in screen(code, canonical(language)))


def mark(text: str, *, source: str, mode: Mode) -> str:
    """A text as data for a model (GRD-4)."""
    from cellwall.guard.mark import wrap  # noqa: PLC0415  # as above

    return wrap(text, source=source, mode=mode)


def unmark(text: str) -> str:
    """What was marked."""
    from cellwall.guard.mark import unwrap  # noqa: PLC0415  # as above

    return unwrap(text)


def pseudonyms() -> Pseudonyms:
    """A table of tokens for personal data, empty."""
    from cellwall.guard.pii import Pseudonyms  # noqa: PLC0415  # as above

    return Pseudonyms()
