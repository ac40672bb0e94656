"""Names need an extra; without it they are an error that says what to do (GRD-6)."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from cellwall.core.errors import CellwallError
from cellwall.guard.pii import PiiHit, Pseudonyms, find, people


def specs(*present: str) -> object:
    return lambda name: ModuleSpec(name, None) if name in present else None


@pytest.mark.requirement("GRD-6")
def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "find_spec", specs())
    with pytest.raises(CellwallError) as missing:
        people.NameFinder()
    assert (missing.value.code, missing.value.hint) == (
        "CW-PII-NAMES",
        "pip install 'cellwall[names]'",
    )


def test_a_missing_language_model_is_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "find_spec", specs("presidio_analyzer"))
    monkeypatch.setattr(people, "import_module", pytest.fail)
    with pytest.raises(CellwallError) as missing:
        people.NameFinder(model="xx_none")
    assert missing.value.hint == "python -m spacy download xx_none"


def analyzing(answer: object) -> dict[str, ModuleType]:
    """A library in presidio's shape."""
    library, engines = ModuleType("presidio_analyzer"), ModuleType("presidio_analyzer.nlp_engine")
    provider = SimpleNamespace(create_engine=lambda: "engine")
    engines.NlpEngineProvider = lambda nlp_configuration: provider  # type: ignore[attr-defined]  # a stand-in
    library.AnalyzerEngine = lambda **given: SimpleNamespace(analyze=answer)  # type: ignore[attr-defined]  # as above
    return {"presidio_analyzer": library, "presidio_analyzer.nlp_engine": engines}


def installed(monkeypatch: pytest.MonkeyPatch, answer: object) -> people.NameFinder:
    monkeypatch.setattr(people, "find_spec", specs("presidio_analyzer", "en_core_web_lg"))
    for name, module in analyzing(answer).items():
        monkeypatch.setitem(sys.modules, name, module)
    return people.NameFinder()


def test_names_are_found_and_hidden_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(text: str, **_: object) -> list[SimpleNamespace]:
        at = text.find("Ada Lovelace")
        return [SimpleNamespace(start=at, end=at + 12)] if at >= 0 else []

    finder = installed(monkeypatch, answer)
    text = "x\n" * 30_000 + "Ada Lovelace, ada@example.com"  # more than one piece
    start = text.index("Ada")
    assert find(text, names=finder) == (
        PiiHit("name", start, start + 12),
        PiiHit("mail", start + 14, len(text)),
    )
    session = Pseudonyms(names=finder)
    hidden = session.hide("by Ada Lovelace")
    assert hidden.startswith("by [name-1-")
    assert session.restore(hidden) == "by Ada Lovelace"


def test_an_error_of_the_library_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(**_: object) -> list[SimpleNamespace]:
        raise OSError("/home/somebody/model is broken")

    with pytest.raises(CellwallError) as failed:
        installed(monkeypatch, answer)("text")
    assert "somebody" not in str(failed.value)
    assert failed.value.__cause__ is None
