"""Discord: messages of its API; answers for the `content` of one (GRD-7).

Mentions are broken by a blank behind the `@`. A zero-width space, as some libraries use, is hidden
text: a normaliser that removes it later restores the mention. A backslash only affects rendering;
the server decides before that whom to notify. A blank is visible, survives every normaliser, and
can be removed by hand.

The sender should also set `allowed_mentions: {"parse": []}`, which is the actual control, and
`flags: 4` (SUPPRESS_EMBEDS).
"""

from __future__ import annotations

import re

from cellwall.guard.channels.addresses import URL, defused, load_of
from cellwall.guard.channels.markdown import LINK, links_of, note_address, target_of
from cellwall.guard.channels.markdown_clean import visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.chat.messages import Role, Spec, read_message, words

CONTAINERS = frozenset(
    {"message", "messages", "referenced_message", "message_snapshots", "d", "data"}
)
FIELDS: dict[str, Role] = {
    "content": "shown",
    "author.username": "label",
    "author.global_name": "label",
    "member.nick": "label",
    "embeds.title": "shown",
    "embeds.description": "shown",
    "embeds.url": "link",
    "embeds.fields.name": "shown",
    "embeds.fields.value": "shown",
    "embeds.footer.text": "label",
    "embeds.footer.icon_url": "image",
    "embeds.author.name": "label",
    "embeds.author.url": "link",
    "embeds.author.icon_url": "image",
    "embeds.provider.name": "label",
    "embeds.provider.url": "link",
    "embeds.image.url": "image",
    "embeds.image.proxy_url": "image",
    "embeds.thumbnail.url": "image",
    "embeds.thumbnail.proxy_url": "image",
    "embeds.video.url": "image",
    "components.content": "shown",
    "components.label": "label",
    "components.url": "link",
    "components.custom_id": "unseen",
    "components.placeholder": "label",
    "components.options.label": "label",
    "components.options.description": "label",
    "components.options.value": "unseen",
    "components.media.url": "image",
    "components.items.media.url": "image",
    "components.items.description": "unseen",
    "attachments.filename": "label",
    "attachments.title": "label",
    "attachments.description": "unseen",
    "attachments.url": "link",
    "attachments.proxy_url": "link",
    "sticker_items.name": "label",
    "stickers.name": "label",
    "stickers.description": "unseen",
    "mentions.username": "label",
    "mentions.global_name": "label",
    "mention_channels.name": "label",
    "thread.name": "label",
    "poll.question.text": "shown",
    "poll.answers.poll_media.text": "shown",
}
_KEYS = words(
    "id type channel_id guild_id timestamp edited_timestamp tts mention_everyone mention_roles "
    "pinned flags author member avatar discriminator nonce reactions webhook_id color inline style "
    "components embeds attachments sticker_items mentions size width height content_type emoji "
    "placeholder_version op t s public_flags banner accent_color"
)
_SPOILER = re.compile(r"\|\|([^|]{1,4000})\|\|")
_CALL = re.compile(r"[@\uff20\ufe6b](?=[!&]?\d|everyone|here)", re.IGNORECASE)
_SPECIAL = re.compile(r"([\\*_~`|\[\]<>])")
_LINE_START = re.compile(r"^([ \t]*)([#\-+]|\d{1,9}(?=\.))", re.MULTILINE)
_NOT_IN_TARGET = re.compile(r"[^A-Za-z0-9:/?#&=%.,+;~_-]")
_TOKEN = re.compile(f"(?P<masked>{LINK.pattern})|(?P<url>{URL.pattern})", re.IGNORECASE)


def read(text: str) -> Extracted:
    """Parse a message, an event or a list of them; other input is text."""
    return read_message(text, _SPEC)


def clean(text: str) -> str:
    """Text without markup, mentions and previews; links show their target."""
    text = visible(text)
    parts: list[str] = []
    at = 0
    for found in _TOKEN.finditer(text):
        parts.append(_escaped(text[at : found.start()]))
        at = found.end()
        if found["url"]:
            parts.append(_target(found["url"]))
            continue
        url = target_of(found)
        parts.append(_escaped(f"{found['image']}{found['label']} ("))
        parts.append(_target(url) if URL.match(url) is not None else _escaped(url))
        parts.append(")")
    parts.append(_escaped(text[at:]))
    return _CALL.sub("@ ", "".join(parts))


def _escaped(text: str) -> str:
    return _LINE_START.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", text))


def _target(url: str) -> str:
    """Discord makes no preview of an address in angle brackets, so it does not load it."""
    if load_of(url):
        return _escaped(defused(url))
    tail = url[len(url.rstrip(").,;:!?*_]~")) :]
    url = url[: len(url) - len(tail)]
    return f"<{_NOT_IN_TARGET.sub(_percent, url)}>{_escaped(tail)}"


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace"))


def _markup(gathering: Gathering, text: str, where: str, start: int, end: int) -> None:
    gathering.add(text, where, start, end, is_hidden=False)
    links_of(gathering, text, where, start, end)
    for found in URL.finditer(text):
        note_address(gathering, found[0], start, end, is_automatic=False)
    for found in _SPOILER.finditer(text):
        gathering.add(found[1], f"{where} spoiler", start, end, is_hidden=True)


_SPEC = Spec(containers=CONTAINERS, fields=FIELDS, keys=_KEYS, markup=_markup)
