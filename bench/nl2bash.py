"""How many everyday commands a permissive policy refuses because they are not understood.

    python bench/nl2bash.py CHECKOUT [--sample N] [--seed S] [--list] [--json]

CHECKOUT is a clone of https://github.com/TellinaTool/nl2bash (the data is under the MIT licence).
The policy allows every command, every file and every address: a denial is a built-in rule, a text
that bash itself would not take, or a command that is not understood. The last share is to stay at
or below 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter

from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source

_DATA = "data/bash/all.cm"
_PERMISSIVE = ("Bash(*)", "Read(//**)", "Write(//**)", "WebFetch(*)")
_NOT_UNDERSTOOD = frozenset(("not-understood", "arguments", "variables"))
_BROKEN = ("bash would reject the text", "the text ends with a backslash")
_CWD, _HOME = "/home/ann/project", "/home/ann"


def commands(checkout: str) -> list[str]:
    """Every command of the corpus once, in order."""
    with open(os.path.join(checkout, _DATA), encoding="utf-8") as file:
        return sorted({line.strip() for line in file if line.strip()})


def judge(texts: list[str]) -> list[tuple[str, Verdict, str, str]]:
    """Each command with its verdict, the rule and the reason."""
    source = Source("permissive", folder=_CWD)
    policy = Policy(
        parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.SESSION)
        for text in _PERMISSIVE
    )
    found = []
    for text in texts:
        decision = policy.check(ToolCall("Bash", {"command": text}, _CWD, _HOME))
        found.append((text, decision.verdict, decision.rule, decision.reason))
    return found


def figures(judged: list[tuple[str, Verdict, str, str]]) -> dict[str, float | int]:
    """Counts, and the share that is refused as not understood."""
    valid = [each for each in judged if not each[3].startswith(_BROKEN)]
    refused = [each for each in valid if each[1] is Verdict.DENY]
    not_understood = [each for each in refused if each[2] in _NOT_UNDERSTOOD]
    return {
        "commands": len(valid),
        "allowed": sum(each[1] is Verdict.ALLOW for each in valid),
        "asked": sum(each[1] is Verdict.ASK for each in valid),
        "built_in_denials": len(refused) - len(not_understood),
        "not_understood": len(not_understood),
        "not_understood_share": round(len(not_understood) / max(1, len(valid)), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout")
    parser.add_argument("--sample", type=int, default=2435)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--list", action="store_true", help="print each command not understood")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        texts = commands(options.checkout)
    except OSError as error:
        print(f"nl2bash: {error}; give the path of a clone of the corpus", file=sys.stderr)
        return 2
    random.seed(options.seed)
    judged = judge(random.sample(texts, min(options.sample, len(texts))))
    found = figures(judged)
    if options.json:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        print(f"{name:22} {value}")
    missed = [each for each in judged if each[1] is Verdict.DENY and each[2] in _NOT_UNDERSTOOD]
    for reason, count in Counter(each[3][:90] for each in missed).most_common(12):
        print(f"{count:5} {reason}")
    if options.list:
        for text, _, _, reason in missed:
            print(f"{text[:160]}\n      {reason[:120]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
