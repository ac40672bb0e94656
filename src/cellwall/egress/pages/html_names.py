"""The elements of HTML by what they mean for a reader. Pure data."""

from __future__ import annotations

from typing import NamedTuple


def names(text: str) -> frozenset[str]:
    """Several at once, as people write them."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
"""They hold nothing and have no end tag."""
UNSEEN = names(
    "script style iframe noembed noframes noscript template svg object audio video canvas datalist"
)
FORMATTING = names(
    "a abbr b bdi bdo big cite code del dfn em font i ins kbd label mark q s samp small span "
    "strike strong sub sup tt u var"
)
TABLE = names("table thead tbody tfoot tr td th caption")
_HEADINGS = names("h1 h2 h3 h4 h5 h6")
_BLOCKS = names(
    "address article aside center details dialog dir div fieldset figcaption figure footer form "
    "header hgroup legend main menu nav option optgroup search section select summary textarea"
)
_AS_THEY_ARE = _HEADINGS | names(
    "a b i code del pre blockquote p ul ol li dl dt dd table tr td th caption"
)
SHOWN = {
    **dict.fromkeys(_BLOCKS, "div"),
    **{name: name for name in _AS_THEY_ARE},
    "strong": "b",
    "em": "i",
    **dict.fromkeys(names("s strike"), "del"),
    **dict.fromkeys(names("kbd samp tt"), "code"),
    "xmp": "pre",
}
"""As what an element is shown; of all others only the text is."""
INDENTS = names("li blockquote dd")
LISTS = names("ul ol")


class Reach(NamedTuple):
    """What a start tag ends without an end tag (HTML 13.1.2.4), and out of what it does not."""

    ends: frozenset[str]
    within: frozenset[str]


_ROWS = Reach(TABLE - {"table"}, names("table"))
_CELLS = Reach(names("td th"), names("tr table"))
_TERMS = Reach(names("dt dd"), names("dl table"))
ENDS = {
    "li": Reach(names("li"), names("ul ol menu dir table")),
    "dt": _TERMS,
    "dd": _TERMS,
    "td": _CELLS,
    "th": _CELLS,
    "tr": Reach(names("tr td th caption"), names("table")),
    "thead": _ROWS,
    "tbody": _ROWS,
    "tfoot": _ROWS,
    "option": Reach(names("option"), names("select")),
    "a": Reach(names("a"), TABLE),
}
PARAGRAPH = Reach(names("p"), names("button") | TABLE)
ENDS_PARAGRAPH = (_BLOCKS | _HEADINGS | names("p ul ol dl li pre blockquote table hr")) - names(
    "option optgroup select textarea"
)
