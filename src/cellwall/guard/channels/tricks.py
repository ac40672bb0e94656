"""The tricks of form that channels know, as data. What the words say is for the detectors."""

from __future__ import annotations

from typing import NamedTuple

from cellwall.core.outcomes import Severity


class Trick(NamedTuple):
    """What is told about a trick."""

    category: str
    severity: Severity
    score: float
    message: str


TRICKS: dict[str, Trick] = {
    "beacon-template": Trick(
        "beacon",
        "high",
        0.9,
        "an address that is loaded without asking has a place for data to be filled in",
    ),
    "beacon-text": Trick(
        "beacon", "medium", 0.6, "an address that is loaded without asking carries encoded text"
    ),
    # Signed and versioned addresses look the same, so this alone is no more than worth knowing.
    "beacon-opaque": Trick(
        "beacon", "low", 0.15, "an address that is loaded without asking carries opaque data"
    ),
    "link-template": Trick(
        "beacon", "medium", 0.6, "a link has a place for data of the conversation to be filled in"
    ),
    "link-text": Trick("beacon", "low", 0.2, "a link carries encoded text"),
    # People mail links through counters of clicks, so a difference alone is no attack.
    "link-disguised": Trick("hidden", "low", 0.3, "a link shows another address than it opens"),
    "link-unseen": Trick("hidden", "medium", 0.5, "a link stands on text that nobody sees"),
    "link-script": Trick("code-injection", "medium", 0.5, "an address runs code when it is opened"),
    "text-unseen": Trick(
        "hidden", "low", 0.2, "text is styled so that people do not see it and programs do"
    ),
    "mail-alternatives": Trick(
        "hidden", "low", 0.3, "the plain part of a mail says something else than its HTML part"
    ),
    "mail-reply-to": Trick(
        "hidden", "low", 0.2, "answers to a mail go to another domain than it came from"
    ),
    "mail-twice": Trick(
        "hidden", "low", 0.3, "a mail has a header twice, and programs differ in which one counts"
    ),
    "json-twice": Trick(
        "hidden", "low", 0.3, "a message has a key twice, and programs differ in which one counts"
    ),
}
"""`beacon`: data leaves by an address. `hidden`: what people see is not what is there."""
