"""The beginning and the end of a large output."""

from __future__ import annotations

import pytest

from cellwall.core.outcomes import RunResult
from cellwall.runtime.output_view import OutputView


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100, 1000])
def test_view_holds_the_beginning_and_the_end_within_its_bound(chunk_bytes):
    said = bytes(range(32, 127)) * 20
    view = OutputView(400)
    for at in range(0, len(said), chunk_bytes):
        view.add("stdout", said[at : at + chunk_bytes])
    view.add("stderr", b"err")
    shown = view.show(RunResult(0))
    note = b"\n[%d bytes left out]\n" % (len(said) - 300)
    assert shown.stdout == said[:200] + note + said[-100:]
    assert (shown.stderr, shown.truncated) == (b"err", True)


def test_output_that_fits_is_whole():
    view = OutputView(400)
    view.add("stdout", b"x" * 250)  # one half, and some of the end
    shown = view.show(RunResult(0))
    assert (shown.stdout, shown.truncated) == (b"x" * 250, False)
