"""The content type of a response, and its decoded text (NET-4). Pure."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from cellwall.core.errors import EgressRefused

_MAX_HEAD_BYTES = 4096
_TYPE = re.compile(
    r"[ \t]*([!#$%&'*+.^_`|~0-9a-z-]{1,100}/[!#$%&'*+.^_`|~0-9a-z-]{1,100})[ \t]*(;.*)?"
)
_CHARSET = re.compile(r""";[ \t]*charset[ \t]*=[ \t]*["']?([a-z0-9_:.-]{1,40})""")
_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,512}?charset[ \t\r\n]{0,16}=[ \t\r\n]{0,16}["']?([A-Za-z0-9_:.-]{1,40})""",
    re.IGNORECASE,
)
_XML_CHARSET = re.compile(rb"""<\?xml[^>]{0,256}?encoding=["']([A-Za-z0-9_:.-]{1,40})["']""")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_XHTML = "application/xhtml+xml"
_TEXTS = frozenset(
    f"application/{kind}"
    for kind in (
        *("json", "xml", "xhtml+xml", "javascript", "x-javascript", "ecmascript", "markdown"),
        *("yaml", "x-yaml", "toml", "x-ndjson", "jsonl", "json5", "graphql", "sql", "x-sh"),
    )
)
# The encodings of the web (WHATWG) by their Python names. Not all codecs of Python: `punycode`
# takes quadratic time, `utf-7` and `unicode_escape` decode plain ASCII to other text.
_ENCODINGS = {
    **dict.fromkeys(("utf-8", "utf8"), "utf-8"),
    **dict.fromkeys(("utf-16", "utf-16le"), "utf-16-le"),
    "utf-16be": "utf-16-be",
    **dict.fromkeys(
        ("us-ascii", "ascii", "iso-8859-1", "iso8859-1", "latin1", "latin-1", "windows-1252"),
        "cp1252",
    ),
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **dict.fromkeys(("iso-8859-9", "windows-1254"), "cp1254"),
    **dict.fromkeys(("iso-8859-11", "tis-620", "windows-874"), "cp874"),
    **{f"windows-{page}": f"cp{page}" for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **dict.fromkeys(("koi8-r", "koi8-u"), "koi8-u"),
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs"), "big5hkscs"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987"), "cp949"),
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "ibm866": "cp866",
    "macintosh": "mac_roman",
}


@dataclass(frozen=True, slots=True)
class Content:
    """A Content-Type; empty without a header."""

    kind: str = ""
    """The media type in lower case, without parameters."""
    charset: str = ""

    @classmethod
    def of(cls, header: bytes | None) -> Content:
        """Parse a Content-Type; a malformed one is not text."""
        if header is None:
            return cls()
        text = header.decode("latin-1").lower()
        found = _TYPE.fullmatch(text)
        if found is None:
            return cls("unknown")
        charset = _CHARSET.search(found[2] or "")
        return cls(found[1], charset[1] if charset else "")

    @property
    def is_html(self) -> bool:
        return self.kind in ("text/html", _XHTML)

    @property
    def is_xml(self) -> bool:
        return self.kind.endswith(("/xml", "+xml"))

    @property
    def may_be_text(self) -> bool:
        """Whether the body may be text; without a header its bytes decide."""
        is_text = self.kind.startswith("text/") or self.kind in _TEXTS
        return not self.kind or is_text or self.kind.endswith(("+json", "+xml"))

    def text_of(self, body: bytes, *, is_cut: bool) -> str:
        """Decode by byte order mark, header or meta element, else UTF-8; refuse binary bodies."""
        if not self.kind and not _is_utf8(body, is_cut=is_cut):
            raise self.refusal()
        text = self._decode(body)
        if "\0" in text:  # text never contains NUL, whatever the header states
            raise self.refusal()
        return text

    def _decode(self, body: bytes) -> str:
        for mark, encoding in _MARKS:
            if body.startswith(mark):
                return body[len(mark) :].decode(encoding, "replace")
        encoding = _ENCODINGS.get(self.charset, "")
        if not encoding and (self.is_html or self.is_xml):
            head = body[:_MAX_HEAD_BYTES]
            found = _XML_CHARSET.match(head) or _META_CHARSET.search(head)
            stated = found[1].decode("ascii").lower() if found else ""
            # A declaration that is readable as ASCII cannot be in UTF-16 (HTML 13.2.3.2).
            encoding = "" if stated.startswith("utf-16") else _ENCODINGS.get(stated, "")
        return body.decode(encoding or "utf-8", "replace")

    def refusal(self) -> EgressRefused:
        """The error for a body that is not text."""
        kind = self.kind or "not text and has no content type"
        return EgressRefused(
            f"the response is {kind}; only text is fetched",
            hint="To get such a file, download it with a program in a sandbox, with "
            "`--allow-domain` for the host.",
            code="CW-CONTENT-TYPE",
        )


def _is_utf8(body: bytes, *, is_cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body, final=not is_cut)
    except UnicodeDecodeError:
        return False
    return True
