"""Whether a run would have its walls on this host, for whoever promises one."""

from __future__ import annotations

import os

from cellwall.runtime.wiring import House
from cellwall.sandbox.linux.layers import HostLayers, walls_for
from cellwall.sandbox.protection.host_directory import open_host_directory, own_path


def check_walls(house: House) -> None:
    """Raise `LayerMissing`, with a hint, if a run under this configuration would be refused."""
    walls_for(house.native, HostLayers.detect(), uid_offset=0, open_files=house.limits.open_files)


def check_workspace(house: House, directory: str) -> None:
    """Raise `WorkspaceError`, with a hint, if this directory cannot be given at its own path."""
    descriptor, place = open_host_directory(directory, state_home=house.store.home)
    os.close(descriptor)
    own_path(place)
