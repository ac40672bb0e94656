"""The list of MCP servers is read again after each change, and only then (SRV-7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.guard.scanning import Scanner
from cellwall.mcp_servers.definitions import tool_set
from cellwall.mcp_servers.pins import accept
from cellwall.runtime.offered_tools import Offer, OfferedServers
from cellwall.runtime.server_catalog import ServerCatalog, ServerEntry, ServerSettings

pytestmark = pytest.mark.requirement("SRV-7")
SEEN = tool_set({"name": "one"}, [{"name": "echo", "inputSchema": {"type": "object"}}])


def accepted(entry: ServerEntry) -> ServerEntry:
    names = frozenset({"echo"})
    return replace(entry, pins=accept(entry.pins, SEEN, names, despite_findings=frozenset()))


def known(offers: OfferedServers) -> Offer:
    """The offer, once the folder has not changed for a tick of the clock of files."""
    offers.current()
    while offers.catalog.version() is None:
        offers.catalog.names()
    found = offers.current_if_known()
    assert found is not None
    return found


def test_an_offer_is_computed_again_after_a_change_by_another_process(tmp_path: Path) -> None:
    offers, other = OfferedServers(str(tmp_path), Scanner), ServerCatalog(str(tmp_path))
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
    offers = OfferedServers(str(tmp_path), Scanner)
    offers.catalog.add(ServerSettings(name="one", argv=("true",)))
    offers.catalog.update("one", accepted)
    assert ("one", "echo") in known(offers).tools
    file = tmp_path / "gateway" / "one.json"
    text = file.read_text()
    with file.open("r+") as edited:
        edited.write(text.replace('"accepted":{"echo"', '"accepted":{"ohce"'))
    with pytest.raises(Exception, match="damaged"):
        offers.catalog.read("one")
