"""Errors as every interface sees them (ERR-1)."""

from __future__ import annotations

import pytest

from cellwall.core import errors
from cellwall.core.errors import CellwallError, make_error
from cellwall.core.outcomes import ErrorInfo, Outcome, Status


@pytest.mark.requirement("ERR-1")
def test_every_error_has_one_root_a_stable_code_and_keeps_its_detail_to_itself() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert all(issubclass(kind, CellwallError) for kind in kinds)
    assert len({kind.default_code for kind in kinds}) == len(kinds)
    error = CellwallError("m", hint="n", code="CW-X", detail="/secret/path")
    assert "/secret/path" not in f"{error}{error!r}{ErrorInfo.of(error).to_json()}"


class _PartsOwnError(errors.EgressRefused):
    """A part may subclass a public error."""


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.Busy("m"), errors.Busy),
        (errors.LayerMissing("m", hint="h"), errors.LayerMissing),
        (errors.VaultError("m", code="CW-OTHER"), errors.VaultError),
        (errors.BadInput("m", code="CW-VAULT-NAME"), errors.BadInput),
        (errors.AuditFailed("m", detail="secret"), errors.AuditFailed),
        (_PartsOwnError("m", code="CW-EGRESS-FRAMING"), errors.EgressRefused),
        (CellwallError("m"), CellwallError),
    ],
)
def test_raise_for_status_raises_the_class_of_the_failure(
    error: CellwallError, expected: type[CellwallError]
) -> None:
    outcome = Outcome(status=Status.ERROR, action_id="act", error=ErrorInfo.of(error))
    with pytest.raises(CellwallError) as raised:
        outcome.raise_for_status()
    assert type(raised.value) is expected
    assert (raised.value.code, raised.value.message) == (error.code, error.message)
    assert (raised.value.hint, raised.value.detail) == (error.hint, "")


def test_every_denial_can_be_caught_as_denied() -> None:
    denied = ErrorInfo("CW-ROLE", "m", "h")
    with pytest.raises(errors.Denied) as raised:
        Outcome(status=Status.DENIED, action_id="act", error=denied).raise_for_status()
    assert raised.value.code == "CW-ROLE"


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("", "CW-VAULT-LOCKED", errors.VaultError),
        ("", "CW-VAULTED", CellwallError),
        ("", "CW-BUSY", errors.Busy),
        ("", "CW-UNHEARD-OF", CellwallError),
        ("NoSuchClass", "CW-SKILL-CHANGED", errors.SkillRefused),
        ("Busy", "CW-SKILL-CHANGED", errors.Busy),
        ("make_error", "CW-X", CellwallError),
        ("__builtins__", "CW-X", CellwallError),
    ],
)
def test_an_error_that_another_process_describes_becomes_a_public_class_and_nothing_else(
    kind: str, code: str, expected: type[CellwallError]
) -> None:
    made = make_error(kind, "m", hint="h", code=code)
    assert type(made) is expected
    assert (made.message, made.hint, made.code) == ("m", "h", code)


def test_the_class_of_an_error_is_not_part_of_its_json_form() -> None:
    assert ErrorInfo.of(errors.Busy("m")).to_json() == {
        "code": "CW-BUSY",
        "message": "m",
        "hint": "",
    }
