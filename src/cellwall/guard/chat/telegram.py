"""Telegram: messages and updates of the Bot API; answers in MarkdownV2 (GRD-7).

The sender should also set `link_preview_options: {"is_disabled": true}`: the data in an address
cannot be recognised for certain, and Telegram opens the first address of a message by itself.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cellwall.guard.channels.addresses import LIVE, URL, defused, is_disguised, load_in_text
from cellwall.guard.channels.markdown import LINK, note_address, target_of
from cellwall.guard.channels.markdown_clean import visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.chat.messages import Fields, Role, Spec, Text, read_message, words

CONTAINERS = frozenset(
    {
        "message",
        "edited_message",
        "channel_post",
        "edited_channel_post",
        "business_message",
        "edited_business_message",
        "reply_to_message",
        "pinned_message",
        "result",
        "messages",
        "callback_query",
        "external_reply",
        "story",
    }
)
FIELDS: dict[str, Role] = {
    "text": "shown",
    "text.text": "shown",
    "caption": "shown",
    "quote.text": "shown",
    "from.first_name": "label",
    "from.last_name": "label",
    "from.username": "label",
    "sender_chat.title": "label",
    "chat.title": "label",
    "chat.first_name": "label",
    "chat.last_name": "label",
    "author_signature": "label",
    "forward_from.first_name": "label",
    "forward_from.last_name": "label",
    "forward_sender_name": "label",
    "forward_signature": "label",
    "forward_from_chat.title": "label",
    "forward_origin.sender_user_name": "label",
    "forward_origin.author_signature": "label",
    "forward_origin.sender_user.first_name": "label",
    "forward_origin.chat.title": "label",
    "contact.first_name": "label",
    "contact.last_name": "label",
    "contact.phone_number": "label",
    "contact.vcard": "unseen",
    "poll.question": "shown",
    "poll.options.text": "shown",
    "poll.explanation": "unseen",
    "venue.title": "label",
    "venue.address": "label",
    "game.title": "label",
    "game.description": "label",
    "invoice.title": "label",
    "invoice.description": "label",
    "checklist.title": "shown",
    "checklist.tasks.text": "shown",
    "document.file_name": "label",
    "audio.title": "label",
    "audio.performer": "label",
    "audio.file_name": "label",
    "video.file_name": "label",
    "sticker.emoji": "label",
    "reply_markup.inline_keyboard.text": "label",
    "reply_markup.inline_keyboard.url": "link",
    "reply_markup.inline_keyboard.web_app.url": "link",
    "reply_markup.inline_keyboard.login_url.url": "link",
    "reply_markup.inline_keyboard.callback_data": "unseen",
    "reply_markup.keyboard.text": "label",
    "reply_markup.input_field_placeholder": "label",
    "entities.url": "link",
    "caption_entities.url": "link",
    "entities.user.first_name": "unseen",
    "entities.language": "unseen",
    "link_preview_options.url": "image",
    "text.href": "link",
}
_ENTITIES = (
    ("text", "entities"),
    ("caption", "caption_entities"),
    ("question", "question_entities"),
    ("explanation", "explanation_entities"),
    ("text", "text_entities"),
    ("title", "title_entities"),
)
"""A text, and the ranges within it that look or act otherwise."""
_KEYS = words(
    "update_id message_id message_thread_id id is_bot is_premium language_code date type offset "
    "length entities caption_entities question_entities text_entities photo file_id title "
    "file_unique_id file_size width height mime_type duration thumbnail title_entities "
    "custom_emoji_id is_anonymous explanation_entities"
)
_MAX_ENTITIES = 2_000
_MAX_SHOWN_LINK = 300
_FOLDED = ("spoiler", "expandable_blockquote")
_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_DEEP_LINK = re.compile(
    r"(?<!\w)(tg|ton|tonsite|javascript|data|file|intent):(?=\S)", re.IGNORECASE
)


class _Range(NamedTuple):
    start: int
    end: int
    kind: str
    url: Any

    def place(self) -> tuple[int, int]:
        return self.start, self.end


def read(text: str) -> Extracted:
    """Parse a message, an update or a list of them; other input is text."""
    return read_message(text, _SPEC)


def clean(text: str) -> str:
    """MarkdownV2 with all markup escaped, and without addresses that carry data."""
    text = LINK.sub(lambda found: f"{found['label']} ({target_of(found)})", visible(text))
    text = _DEEP_LINK.sub(r"\1 :", text)
    text = LIVE.sub(lambda found: defused(found[0]) if load_in_text(found[0]) else found[0], text)
    return _SPECIAL.sub(r"\\\1", text)


def _markup(gathering: Gathering, text: str, where: str, start: int, end: int) -> None:
    gathering.add(text, where, start, end, is_hidden=False)
    for found in URL.finditer(text):
        note_address(gathering, found[0], start, end, is_automatic=False)


def _look(gathering: Gathering, fields: Fields, path: str) -> None:
    for name, entities in _ENTITIES:
        text, ranges = fields.get(name), fields.get(entities)
        if isinstance(text, Text) and isinstance(ranges, list):
            # Telegram counts in units of UTF-16: an emoji is two of them.
            units = text.value.encode("utf-16-le", "surrogatepass")
            where = f"{path}.{name}" if path else name
            found = [
                _Range(offset, offset + length, kind.value, fields.get("url"))
                for fields in map(_as_fields, ranges[:_MAX_ENTITIES])
                if isinstance(kind := fields.get("type"), Text)
                and type(offset := fields.get("offset")) is int
                and type(length := fields.get("length")) is int
                and offset >= 0
                and length >= 0
            ]
            _links(gathering, found, text, units)
            _folded(gathering, found, text, units, where)


def _as_fields(entity: Any) -> Fields:  # noqa: ANN401  # JSON
    pairs = entity if isinstance(entity, list) else []
    return dict(pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2)


def _shown(units: bytes, start: int, end: int) -> str:
    return units[2 * start : 2 * end].decode("utf-16-le", "replace")


# The ranges may all be the whole text, so of each only a bounded part is read again.


def _links(gathering: Gathering, ranges: list[_Range], text: Text, units: bytes) -> None:
    for start, end, kind, target in ranges:
        if kind == "text_link" and isinstance(target, Text):
            shown = _shown(units, start, min(end, start + _MAX_SHOWN_LINK))
            _text_link(gathering, shown, target.value, text)


def _folded(
    gathering: Gathering, ranges: list[_Range], text: Text, units: bytes, where: str
) -> None:
    """What is seen after a touch only; each place once, however many ranges are about it."""
    for kind in _FOLDED:
        at = 0
        for start, end, _, _ in sorted(
            (found for found in ranges if found.kind == kind), key=_Range.place
        ):
            shown = _shown(units, max(start, at), end)
            gathering.add(shown, f"{where} {kind}", text.start, text.end, is_hidden=True)
            at = max(at, end)


def _text_link(gathering: Gathering, shown: str, target: str, text: Text) -> None:
    if is_disguised(shown, target):
        gathering.note("link-disguised", text.start, text.end)
    if not visible(shown).strip():
        # The usual way to have an image loaded under a message without a visible address.
        gathering.note("link-unseen", text.start, text.end)


_SPEC = Spec(containers=CONTAINERS, fields=FIELDS, keys=_KEYS, markup=_markup, look=_look)
