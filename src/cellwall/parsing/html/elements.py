"""The elements and attributes of HTML by their meaning for a reader. Pure data."""

from __future__ import annotations

from typing import NamedTuple


def names(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
"""Elements without content and without an end tag."""
FORMATTING = names(
    "a abbr b bdi bdo big cite code del dfn em font i ins kbd label mark q s samp small span "
    "strike strong sub sup tt u var"
)
RECONSTRUCTED = names("a b big code em font i nobr s small strike strong tt u")
"""Browsers open these again behind a block that ended before their end tag (HTML 13.2.4.3)."""
TABLE = names("table thead tbody tfoot tr td th caption")
HEADINGS = names("h1 h2 h3 h4 h5 h6")
SECTIONS = names(
    "address article aside center details dialog dir div fieldset figcaption figure footer form "
    "header hgroup legend main menu nav option optgroup search section select summary textarea"
)
BLOCK = (
    SECTIONS
    | HEADINGS
    | TABLE
    | names(
        "audio blockquote body br canvas col colgroup dd desc dl dt embed foreignobject frame "
        "frameset head hr html iframe input li link listing marquee meta metadata noembed noframes "
        "noscript object ol p param plaintext pre rp rt script source style svg template text "
        "title track ul video xmp"
    )
)
"""Elements drawn on lines of their own. All others, unknown ones included, are drawn within the
line: `ig<x-a>nore</x-a>` is one word for a human reader."""

# Visibility

UNSEEN_ELEMENTS = {
    **dict.fromkeys(names("script style iframe noembed noframes noscript template"), "not shown"),
    **dict.fromkeys(names("object audio video canvas datalist desc metadata"), "stand-in"),
}
"""Their content is for programs, or for browsers that lack a feature."""
MAY_HIDE = frozenset({*UNSEEN_ELEMENTS, "details", "dialog", "summary"})
"""Elements whose name alone can decide about visibility."""

# Implied end tags


class ImpliedEnd(NamedTuple):
    """Elements that a start tag ends without an end tag (HTML 13.1.2.4), and the scope of that."""

    ends: frozenset[str]
    within: frozenset[str]
    """Elements outside of which nothing is ended."""


_ROWS = ImpliedEnd(TABLE - {"table"}, names("table"))
_CELLS = ImpliedEnd(names("td th"), names("tr table"))
_TERMS = ImpliedEnd(names("dt dd"), names("dl table"))
_OPTIONS = ImpliedEnd(names("option"), names("select"))
IMPLIED_ENDS = {
    "li": ImpliedEnd(names("li"), names("ul ol menu dir table")),
    "dt": _TERMS,
    "dd": _TERMS,
    "td": _CELLS,
    "th": _CELLS,
    "tr": ImpliedEnd(names("tr td th caption"), names("table")),
    "thead": _ROWS,
    "tbody": _ROWS,
    "tfoot": _ROWS,
    "option": _OPTIONS,
    "optgroup": _OPTIONS,
    "a": ImpliedEnd(names("a"), TABLE),
}
PARAGRAPH_END = ImpliedEnd(names("p"), names("button") | TABLE)
ENDS_PARAGRAPH = (SECTIONS | HEADINGS | names("p ul ol dl li pre blockquote table hr")) - names(
    "option optgroup select textarea"
)
ENDS_ALONE = names("p br")
"""An end tag without a start tag is no element, except for these two."""

# Attributes

SHOWN_ATTRIBUTES = names("placeholder value label summary")
UNSEEN_ATTRIBUTES = names(
    "alt title aria-label aria-description aria-placeholder aria-roledescription content "
    "data-title data-content data-tooltip again"
)
LOADED_ATTRIBUTES = names("src srcset poster background data lowsrc dynsrc imagesrcset")
"""Browsers fetch these URLs without a click, so each can be a beacon."""
OPENED_ATTRIBUTES = names("href action formaction cite longdesc ping xlink:href manifest")
LOADED_HREFS = names("link image use feimage script")
BOOLEAN_ATTRIBUTES = names(
    "hidden open async defer checked disabled selected required readonly multiple autofocus "
    "controls loop muted autoplay novalidate allowfullscreen itemscope nowrap noshade reversed "
    "ismap default nomodule playsinline inert crossorigin compact download alt value class content"
)
"""Attributes that may lack a value. Any other name without one is a word."""
