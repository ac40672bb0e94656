"""The public names are the ones that are written down, and nothing else leaks."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import cellwall
from cellwall.core import errors
from cellwall.interfaces.sdk import asynchronous, blocking


def test_all_names_are_there_and_no_others_are_promised():
    assert sorted(cellwall.__all__) == sorted(cellwall._HOMES)
    for name in cellwall.__all__:
        assert getattr(cellwall, name).__name__ == name


def test_dir_shows_the_public_names_alone():
    assert dir(cellwall) == sorted([*cellwall.__all__, "__version__"])


def test_the_import_of_the_package_imports_none_of_its_modules():
    script = (
        "import sys; before = set(sys.modules); import cellwall; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split() if name != "cellwall"}
    assert loaded <= {"__future__", "importlib", "warnings"}


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Sandbax'"):
        _ = cellwall.Sandbax


@pytest.mark.requirement("ERR-1")
def test_every_error_has_the_one_root_and_a_code_of_its_own():
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    ]
    assert all(issubclass(found, errors.CellwallError) for found in classes)
    codes = [found.default_code for found in classes]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith("CW-") for code in codes)
    assert {found.__name__ for found in classes} <= set(cellwall.__all__)


@pytest.mark.requirement("ERR-1")
def test_detail_is_for_the_record_and_never_shown():
    error = errors.SandboxFailed("it broke", hint="Mend it.", detail="/secret/host/path")
    assert "/secret" not in str(error)
    assert (error.code, error.message, error.hint) == ("CW-SANDBOX-FAILED", "it broke", "Mend it.")


def public(kind: type) -> dict[str, str]:
    return {
        name: str(inspect.signature(value)).replace("Async", "")
        for name, value in vars(kind).items()
        if not name.startswith("_") and callable(value)
    }


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize(
    ("blocking_kind", "async_kind"),
    [
        (blocking.Files, asynchronous.AsyncFiles),
        (blocking.Commands, asynchronous.AsyncCommands),
    ],
)
def test_both_faces_have_the_same_names_and_arguments(blocking_kind, async_kind):
    assert public(blocking_kind) == public(async_kind)


@pytest.mark.requirement("INT-1")
def test_both_sandboxes_can_do_the_same():
    mine, theirs = public(blocking.Sandbox), public(asynchronous.AsyncSandbox)
    assert mine["run_code"] == theirs["run_code"]
    assert mine.keys() <= theirs.keys()
