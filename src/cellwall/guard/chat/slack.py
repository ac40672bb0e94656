"""Slack: messages with mrkdwn, Block Kit and attachments; answers in mrkdwn (GRD-7).

The sender should also set `unfurl_links: false`, `unfurl_media: false` and `parse: "none"`: the
data in an address cannot be recognised for certain, and Slack opens the addresses that it shows.
"""

from __future__ import annotations

import re

from cellwall.guard.channels.addresses import LIVE, URL, defused, is_disguised, load_in_text
from cellwall.guard.channels.markdown import note_address
from cellwall.guard.channels.markdown_clean import visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.chat.messages import Role, Spec, read_message, words

CONTAINERS = frozenset(
    {
        "event",
        "message",
        "messages",
        "previous_message",
        "root",
        "view",
        "blocks",
        "elements",
        "element",
        "accessory",
        "attachments",
        "message_blocks",
    }
)
FIELDS: dict[str, Role] = {
    "text": "shown",  # of a message, a part of rich text, or an attachment
    "text.text": "shown",  # of a section, a header, a button
    "fields.text": "shown",
    "fields.title": "shown",  # of an attachment
    "fields.value": "shown",
    "username": "label",
    "user_profile.real_name": "label",
    "user_profile.display_name": "label",
    "title": "shown",
    "title.text": "label",
    "label.text": "label",
    "hint.text": "label",
    "placeholder.text": "label",
    "description.text": "label",
    "submit.text": "label",
    "close.text": "label",
    "options.text.text": "label",
    "options.description.text": "label",
    "options.value": "unseen",
    "option_groups.label.text": "label",
    "option_groups.options.text.text": "label",
    "initial_value": "label",
    "confirm.title.text": "unseen",  # until the button is pressed
    "confirm.text.text": "unseen",
    "confirm.confirm.text": "unseen",
    "confirm.deny.text": "unseen",
    "value": "unseen",
    "action_id": "unseen",
    "block_id": "unseen",
    "alt_text": "unseen",
    "accessibility_label": "unseen",
    "url": "link",
    "image_url": "image",
    "thumb_url": "image",
    "video_url": "image",
    "thumbnail_url": "image",
    "slack_file.url": "image",
    "pretext": "shown",
    "fallback": "unseen",
    "author_name": "label",
    "author_link": "link",
    "author_icon": "image",
    "title_link": "link",
    "footer": "label",
    "footer_icon": "image",
    "actions.text": "label",
    "actions.value": "unseen",
    "actions.url": "link",
    "original_url": "link",
    "from_url": "link",
    "service_name": "label",
    "files.name": "label",
    "files.title": "label",
    "files.preview": "label",
    "files.alt_txt": "unseen",
    "files.url_private": "link",
    "metadata.event_type": "unseen",
}
_KEYS = words(
    "type subtype ts user team channel channel_type event_ts client_msg_id bot_id app_id style "
    "event_id event_time token team_id api_app_id thread_ts parent_user_id edited emoji verbatim "
    "bold italic strike code metadata event_payload fields options optional multiline indent "
    "border offset range unicode user_id usergroup_id channel_id mrkdwn_in color short id"
)
_CONTROL = re.compile(r"<(?P<target>[^<>|]*)(?:\|(?P<label>[^<>]*))?>")
_TO_ALL = re.compile(
    r"[@\uff20\ufe6b](?=channel|here|everyone|group)|(?<=<!)(?=[a-z])", re.IGNORECASE
)


def read(text: str) -> Extracted:
    """Parse a message, an event, a view or blocks; other input is text."""
    return read_message(text, _SPEC)


def clean(text: str) -> str:
    """mrkdwn without labelled links, broadcast mentions and addresses that carry data."""
    text = _CONTROL.sub(_plainly, visible(text))
    text = LIVE.sub(lambda found: defused(found[0]) if load_in_text(found[0]) else found[0], text)
    # As the Discord adapter does and for its reasons; the escape alone would do for Slack, but
    # libraries on the way undo it.
    text = _TO_ALL.sub(lambda found: f"{'@' if found[0] else ''} ", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plainly(found: re.Match[str]) -> str:
    """A link as its label and target; other markup unchanged."""
    target, label = found["target"], found["label"]
    if URL.match(target) is None:
        return found[0]
    return target if label is None or label == target else f"{label} ({target})"


def _markup(gathering: Gathering, text: str, where: str, start: int, end: int) -> None:
    shown = text
    if "<" in text:
        shown = _CONTROL.sub(lambda found: found["label"] or found["target"], text)
        for found in _CONTROL.finditer(text):
            _control(gathering, found, where, start, end)
    for found in URL.finditer(shown):
        note_address(gathering, _unescaped(found[0]), start, end, is_automatic=False)
    gathering.add(_unescaped(shown), where, start, end, is_hidden=False)


def _control(gathering: Gathering, found: re.Match[str], where: str, start: int, end: int) -> None:
    target, label = _unescaped(found["target"]), found["label"]
    if label is None:
        return
    gathering.add(target, f"{where} address", start, end, is_hidden=True)
    if target.startswith(("!", "@", "#")):
        return
    note_address(gathering, target, start, end, is_automatic=False)
    if is_disguised(_unescaped(label), target):
        gathering.note("link-disguised", start, end)
    if not visible(label).strip():
        gathering.note("link-unseen", start, end)


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


_SPEC = Spec(containers=CONTAINERS, fields=FIELDS, keys=_KEYS, markup=_markup)
