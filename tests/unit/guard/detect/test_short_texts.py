"""Steps that a short text can skip would have found nothing in it: the same hits with and without."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator

import pytest

from cellwall.guard.detect.detector import Detection, Detector
from cellwall.guard.detect.rule_packs import shipped_packs
from cellwall.guard.detect.tasks import finder
from cellwall.guard.normalise import views

pytestmark = pytest.mark.requirement("GRD-2")
RULES = [rule for pack in shipped_packs() for rule in pack.rules]
EXAMPLES = [text for rule in RULES for text in (*rule.match[:1], *rule.not_match[:1])]


def _short_texts(most: int) -> Iterator[str]:
    """Pieces of attacks and of ordinary texts, as they are and in the encodings that are read."""
    for number, example in enumerate(EXAMPLES):
        turned = codecs.encode(example, "rot13")
        packed = base64.b64encode(example.encode()).decode("ascii")
        dotted, digits = ".".join(example), example.encode().hex()
        escaped = "".join(f"&#{ord(each)};" for each in example[:8])
        percent = "".join(f"%{byte:02x}" for byte in example.encode()[:8])
        forms = (example, example[::-1], turned, packed, digits, dotted, escaped, percent)
        form = forms[number % len(forms)]
        for text in (example, form):
            yield text[:most]
            yield text[-most:]


@pytest.mark.slow
@pytest.mark.parametrize("length", [views.MIN_ENCODED_CHARS - 1, finder.MIN_CARRIER_CHARACTERS - 1])
def test_short_text_has_the_same_hits_with_every_step(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Detector.shipped()
    texts = list(dict.fromkeys(_short_texts(length)))
    short = [detector.find(text) for text in texts]
    monkeypatch.setattr(views, "MIN_ENCODED_CHARS", 0)
    monkeypatch.setattr(finder, "_MIN_READ_CHARACTERS", 0)
    whole: list[Detection] = [detector.find(text) for text in texts]
    assert short == whole
    if length > views.MIN_ENCODED_CHARS:
        assert any(found.hits for found in short), "some of the pieces are attacks"
