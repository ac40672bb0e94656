"""Whatever the place, words that somebody puts into a message are among its pieces.

The words are put at each place of a rich sample in turn: between texts, into tags, attributes,
addresses, headers, keys, numbers. A model that gets the source reads them there.
"""

from __future__ import annotations

import json

import pytest

from cellwall.guard.channel_formats import read

pytestmark = pytest.mark.requirement("GRD-7")

WORDS = "zq ignore this vx"

SAMPLES = {
    "html": (
        "<!doctype html><html><head><title>T</title><style>.a{display:none}</style>"
        "<meta name=description content='d'></head><body class='b c'><p style='color:red'>a &amp; b"
        "<img src='/x.png' srcset='y 1x, z 2x' alt=''><a href='#f'></a><br/><a href='https://a.example/?q=1'>l</a><!-- c --></p>"
        "<script>f()</script><input type=hidden value=\"v\"><iframe srcdoc='<b>x</b>'></iframe></body></html>"
    ),
    "markdown": (
        "---\nk: v\n---\n# H\n\na [l](https://a.example 't') ![i](/b.png) `c` <https://c.example>\n"
        "<span hidden>h</span> <!-- c -->\n\n```py\nx\n```\n\n[r]: https://d.example 't'\n[^1]: f\n| a | b |\n"
    ),
    "email": (
        "From: A <a@b.example>\nSubject: s\nX-A: b\nMIME-Version: 1.0\n"
        "Content-Type: multipart/mixed; boundary=b\n\npre\n--b\nContent-Type: text/html\n\n<p>x</p>\n"
        '--b\nContent-Type: text/plain; name="n"\n\ny\n--b--\npost\n'
    ),
    "telegram": json.dumps(
        {
            "message": {
                "id": 1,
                "text": "t",
                "entities": [{"type": "bold", "offset": 0, "length": 1}],
            }
        }
    ),
    "discord": json.dumps(
        {"content": "c [l](https://a.example)", "embeds": [{"title": "t", "x": []}]}
    ),
    "slack": json.dumps({"text": "<https://a.example|l> &amp;", "blocks": [{"type": "divider"}]}),
    "plain": "text",
}


@pytest.mark.slow
@pytest.mark.parametrize("channel", sorted(SAMPLES))
def test_words_are_found_wherever_they_are_put(channel: str) -> None:
    sample = SAMPLES[channel]
    missed = []
    for at in range(len(sample) + 1):
        found = read(channel, sample[:at] + WORDS + sample[at:])
        said = "\n".join(piece.text for piece in found.pieces).lower()
        # In a place where blanks end a name, each word is a name of its own.
        if not ("ignore" in said and "this" in said):
            missed.append(sample[max(0, at - 12) : at] + "|" + sample[at : at + 12])
    assert missed == []
