"""How many fields a packed header block of HTTP/2 has (RFC 7541, 6), without unpacking it. Pure.

A field can be one byte, and costs its reader a thousand times what it costs its sender: what has
too many is not unpacked at all.
"""

from __future__ import annotations


def count_fields(block: bytes, most: int) -> int:
    """Counted up to one more than `most`. What is malformed is for who unpacks it to say."""
    place = count = 0
    while place < len(block) and count <= most:
        first = block[place]
        count += 1
        if first & 0x80:  # one that both sides know
            _, place = _number(block, place, 7)
        elif first & 0xE0 == 0x20:  # no field, but the table's size; it is no less work
            _, place = _number(block, place, 5)
        else:
            known, place = _number(block, place, 6 if first & 0x40 else 4)
            for _ in range(1 if known else 2):
                place = _after_text(block, place)
    return count


def _after_text(block: bytes, place: int) -> int:
    if place >= len(block):
        return place
    length, place = _number(block, place, 7)
    return place + length


def _number(block: bytes, place: int, bits: int) -> tuple[int, int]:
    """A number and the place behind it."""
    most = (1 << bits) - 1
    number = block[place] & most
    place += 1
    if number < most:
        return number, place
    shift = 0
    while place < len(block):
        byte = block[place]
        place += 1
        # More digits than a length can have would only make the sum expensive.
        number += (byte & 0x7F) << min(shift, 32)
        shift += 7
        if not byte & 0x80:
            break
    return number, place
