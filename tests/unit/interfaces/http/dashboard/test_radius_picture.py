"""The picture of the blast radius has a dot for each line, in its place."""

from __future__ import annotations

import math

from cellwall.admin.blast_radius import VERBS, Ability, BlastRadius
from cellwall.interfaces.http.dashboard.radius_picture import (
    CENTRE,
    HEIGHT,
    WALL_RADIUS,
    WIDTH,
    Dot,
    draw,
)


def line(verb: str, number: int, kind: str) -> Ability:
    return Ability(
        id=f"{verb}.{number}-{kind}",
        what="x",
        is_possible=kind != "cannot",
        is_weakened=kind == "weak",
    )


def radius(**counts: int) -> BlastRadius:
    lines = [
        line(verb, number, kind)
        for verb in VERBS
        for kind, count in counts.items()
        for number in range(count)
    ]
    return BlastRadius("production", tuple(lines), ())


def distance(dot: Dot) -> float:
    return math.dist((dot.x, dot.y), CENTRE)


def test_each_line_is_one_dot_inside_outside_or_on_the_wall() -> None:
    for counts in ({"can": 9, "cannot": 5, "weak": 2}, {"can": 60, "cannot": 60}, {}):
        found = radius(**counts)
        picture = draw(found)
        assert {dot.ability.id for dot in picture.dots} == {each.id for each in found.abilities}
        assert len({(dot.x, dot.y) for dot in picture.dots}) == len(picture.dots)
        for dot in picture.dots:
            off = {"can": -1, "weak": 0, "cannot": 1}[dot.kind]
            wall = WALL_RADIUS + off * 10
            assert off * distance(dot) >= off * wall
            assert off != 0 or abs(distance(dot) - WALL_RADIUS) < 0.1
            assert 0 < dot.x < WIDTH
            assert 0 < dot.y < HEIGHT


def test_the_words_say_what_is_drawn() -> None:
    assert draw(radius(can=2, cannot=1, weak=1)).words.startswith(
        "read: 3 can, 1 cannot, 1 weakened; write: 3 can, 1 cannot, 1 weakened; "
    )
