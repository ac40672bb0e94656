"""Good files that were damaged a little, which meets more of a reader than noise does."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, corpus: Sequence[str], pieces: st.SearchStrategy[str]) -> str:
    """One of the corpus with pieces put in, taken out and doubled."""
    text = draw(st.sampled_from(corpus))
    for _ in range(draw(st.integers(1, 6))):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        match draw(st.sampled_from(["insert", "delete", "double"])):
            case "insert":
                text = text[:at] + draw(pieces) + text[at:]
            case "delete":
                text = text[:at] + text[min(end, at + 12) :]
            case _:
                text = text[:end] + text[at : min(end, at + 40)] + text[end:]
    return text
