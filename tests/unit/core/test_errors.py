"""Errors as every interface sees them (ERR-1)."""

from __future__ import annotations

import pytest

from cellwall.core import errors
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import ErrorInfo


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
