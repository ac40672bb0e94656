"""Parts that were read apart: also what stands between them has its place in the original."""

from __future__ import annotations

import pytest

from cellwall.guard.normalise import unfold


@pytest.mark.requirement("GRD-1")
@pytest.mark.parametrize("text", ["%69\n\n%69", "%69\n\n\n%69 %20", "a%69\n\n%69b"])
def test_each_letter_of_a_reading_has_a_place(text: str) -> None:
    readings = [view for view in unfold(text).views if view.via == ("url",)]
    assert readings
    for view in readings:
        spans = [view.span(at, at + 1) for at in range(len(view.plain))]
        assert all(0 <= low < high <= len(text) for low, high in spans)
