"""The list of MCP servers is read again after each change, and only then (SRV-7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.admin.tool_reviews import ServerReview
from cellwall.guard.scanning import Scanner
from cellwall.interfaces.cli.mcp_review_text import review_text
from cellwall.mcp_servers.definitions import tool_set
from cellwall.mcp_servers.pins import accept
from cellwall.runtime.offered_tools import Offer, OfferedServers
from cellwall.runtime.server_catalog import ServerCatalog, labels_together
from cellwall.runtime.server_entries import ServerEntry, ServerSettings

pytestmark = pytest.mark.requirement("SRV-7")
SEEN = tool_set({"name": "one"}, [{"name": "echo", "inputSchema": {"type": "object"}}])


def accepted(entry: ServerEntry) -> ServerEntry:
    names = frozenset({"echo"})
    return replace(entry, pins=accept(entry.pins, SEEN, names, despite_findings=frozenset()))


@pytest.mark.requirement("POL-9")
def test_consent_to_all_labels_of_a_server_ends_with_another_set_of_tools(tmp_path: Path) -> None:
    catalog = ServerCatalog(str(tmp_path), None)
    catalog.add(ServerSettings(name="one", url="https://a.example/mcp", secrets=("KEY",)))
    catalog.note_seen("one", SEEN)

    def agree(entry: ServerEntry, *, together: bool = True) -> ServerEntry:
        names, none = frozenset({"echo"}), frozenset[str]()
        pins = accept(entry.pins, SEEN, names, despite_findings=none, together=together)
        return replace(entry, pins=pins)

    assert not catalog.update("one", accepted).is_named_together
    assert catalog.update("one", agree).is_named_together
    assert ServerCatalog(str(tmp_path), None).read("one").is_named_together
    assert not catalog.update("one", lambda each: agree(each, together=False)).is_named_together
    catalog.update("one", agree)
    other = tool_set({"name": "one"}, [{"name": "send", "inputSchema": {"type": "object"}}])
    assert not catalog.note_seen("one", other).is_named_together
    # The server is shown with what it brings; one without a secret or a domain brings less.
    text = review_text(ServerReview(catalog.read("one"), other, ()))
    assert "private data (secret KEY) and egress (a.example:443)" in text
    assert "--accept --together" in text
    for less in ({"url": "https://a.example/mcp"}, {"argv": ("true",), "secrets": ("KEY",)}):
        assert labels_together(ServerSettings(name="one", **less)) == ""  # type: ignore[arg-type]


def known(offers: OfferedServers) -> Offer:
    """The offer, once the folder has not changed for a tick of the clock of files."""
    offers.current()
    while offers.catalog.version() is None:
        offers.catalog.names()
    found = offers.current_if_known()
    assert found is not None
    return found


def test_an_offer_is_computed_again_after_a_change_by_another_process(tmp_path: Path) -> None:
    offers, other = OfferedServers(str(tmp_path), Scanner, None), ServerCatalog(str(tmp_path), None)
    other.add(ServerSettings(name="one", argv=("true",)))
    assert known(offers).tools == {}
    assert offers.current_if_known() is known(offers)  # the control: nothing has changed
    other.update("one", accepted)
    assert offers.current_if_known() is None
    assert set(known(offers).tools) == {("one", "echo")}
    other.remove("one")
    assert offers.current_if_known() is None
    assert known(offers).tools == {}


def test_an_entry_that_is_edited_in_place_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    offers = OfferedServers(str(tmp_path), Scanner, None)
    offers.catalog.add(ServerSettings(name="one", argv=("true",)))
    offers.catalog.update("one", accepted)
    assert ("one", "echo") in known(offers).tools
    file = tmp_path / "gateway" / "one.json"
    text = file.read_text()
    with file.open("r+") as edited:
        edited.write(text.replace('"accepted":{"echo"', '"accepted":{"ohce"'))
    with pytest.raises(Exception, match="damaged"):
        offers.catalog.read("one")
