"""A decision as the tree of its parts: constructs of the shell around the commands in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellwall.core.verdict import Decision


@dataclass(slots=True)
class DecisionNode:
    """A construct with its parts, or one judged part."""

    construct: str = ""
    decision: Decision | None = None
    children: list[DecisionNode] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The name and line of the policy file, without its folder."""
        return "" if self.decision is None else os.path.basename(self.decision.source)


def tree_of(decision: Decision) -> list[DecisionNode]:
    """The parts in their order, each below the constructs that contain it."""
    root = DecisionNode()
    for part in decision.parts or (decision,):
        _enter(root, part.place).children.append(DecisionNode(decision=part))
    return root.children


def _enter(node: DecisionNode, place: Sequence[str]) -> DecisionNode:
    for construct in place:
        last = node.children[-1] if node.children else None
        if last is None or last.decision is not None or last.construct != construct:
            last = DecisionNode(construct=construct)
            node.children.append(last)
        node = last
    return node
