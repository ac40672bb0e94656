"""The elements and attributes of HTML by what they mean for a reader. Pure data."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Several at once, as people write them."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
BLOCK = names(
    "address article aside audio blockquote body br canvas caption center col colgroup dd desc "
    "details dialog dir div dl dt embed fieldset figcaption figure footer foreignobject form frame "
    "frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe input legend li link listing "
    "main marquee menu meta metadata nav noembed noframes noscript object ol optgroup option p "
    "param plaintext pre rp rt script search section select source style summary svg table tbody "
    "td template text textarea tfoot th thead title tr track ul video xmp"
)
"""They stand on lines of their own. All others, those that nobody has heard of among them, are
drawn within the line: `ig<x-a>nore</x-a>` is one word for whoever looks at it."""
ENDS_ALONE = names("p br")
"""An end without its beginning is no element, but for these two."""
UNSEEN_ELEMENTS = {
    **dict.fromkeys(names("script style iframe noembed noframes noscript template"), "not shown"),
    **dict.fromkeys(names("object audio video canvas datalist desc metadata"), "stand-in"),
}
"""What stands in them is for programs, or for browsers that lack something."""
SHOWN_ATTRIBUTES = names("placeholder value label summary")
UNSEEN_ATTRIBUTES = names(
    "alt title aria-label aria-description aria-placeholder aria-roledescription content "
    "data-title data-content data-tooltip again"
)
LOADED_ATTRIBUTES = names("src srcset poster background data lowsrc dynsrc imagesrcset")
"""Browsers fetch them without a question, and so they are beacons."""
OPENED_ATTRIBUTES = names("href action formaction cite longdesc ping xlink:href manifest")
LOADED_HREFS = names("link image use feimage script")
SWITCHES = names(
    "hidden open async defer checked disabled selected required readonly multiple autofocus "
    "controls loop muted autoplay novalidate allowfullscreen itemscope nowrap noshade reversed "
    "ismap default nomodule playsinline inert crossorigin compact download alt value class content"
)
"""Attributes that stand without a value. Any other name without one is a word somebody wrote."""
ENDED_BY = {
    "p": names("p div ul ol dl table h1 h2 h3 h4 h5 h6 section article pre blockquote form hr"),
    "li": names("li"),
    "td": names("td th tr"),
    "th": names("td th tr"),
    "tr": names("tr"),
    "dt": names("dt dd"),
    "dd": names("dt dd"),
    "option": names("option optgroup"),
}
MAY_HIDE = frozenset({*UNSEEN_ELEMENTS, "details", "dialog", "summary"})
"""By their names alone."""
