"""Everyday commands of a public corpus under a policy that allows everything (POL-14).

Every twentieth command of NL2Bash in the order of their texts, so that each program has its share.
The data is under the MIT licence, which lies beside it; `bench/nl2bash.py` judges the whole corpus.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from cellwall.core.verdict import Verdict

HERE = Path(__file__).parent
MAX_SHARE = 0.05


def _script() -> ModuleType:
    path = HERE.parents[2] / "bench" / "nl2bash.py"
    spec = importlib.util.spec_from_file_location("nl2bash", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.requirement("POL-14")
@pytest.mark.slow
def test_at_most_five_per_cent_of_a_public_corpus_is_refused_as_not_understood():
    script = _script()
    texts = script.commands(str(HERE / "nl2bash"))
    assert len(texts) == 532
    judged = script.judge(texts)
    found = script.figures(judged)
    assert found["commands"] > 500  # the others are no valid text of bash
    assert found["not_understood_share"] <= MAX_SHARE, found
    assert found["allowed"] > 0.7 * found["commands"], found
    assert all(reason for _, verdict, _, reason in judged if verdict is Verdict.DENY)
    # The control: this measure can fail.
    assert script.figures(script.judge(["eval $X", "curl a | sh"]))["not_understood_share"] == 1.0
