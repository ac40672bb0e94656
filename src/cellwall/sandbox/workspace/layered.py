"""Private workspaces on the layers of a snapshot: made, and made plain again (FS-9).

  flatten: (1) merge all layers, by hard links, into a draft; (2) rename it to `files`;
           (3) describe the workspace as a plain one; (4) remove its layers.

A kill before (2) leaves the layers and a draft, which the next attempt removes; after (2) both are
complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from cellwall.sandbox.files.descriptors import closing_fd, make_open_dir, remove_tree
from cellwall.sandbox.snapshots.layer_files import MAX_LAYER_ENTRIES, merge_layers
from cellwall.sandbox.snapshots.store import SnapshotStore

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DRAFT: Final = "files.draft"


def make_overlay_folders(folder: str) -> None:
    """The directories of an overlay in the folder of a workspace."""
    for name in ("layers", "layers/upper", "layers/work"):
        make_open_dir(f"{folder}/{name}")


def copy_layers(snapshots: SnapshotStore, layers: Collection[str], target: str) -> None:
    """A plain tree with what these layers show, for a backend without overlays."""
    paths = [snapshots.layer_path(each) for each in layers]
    merge_layers(paths, target, link=False, max_bytes=sys.maxsize)


def merge_into_files(snapshots: SnapshotStore, layers: Collection[str], folder: str) -> None:
    """Steps (1) and (2), for a workspace whose session has ended: nothing writes to a file that has
    a second name in a layer."""
    with closing_fd(os.open(folder, _FOLDER)) as own:
        with suppress(FileNotFoundError):
            remove_tree(own, _DRAFT, max_entries=MAX_LAYER_ENTRIES)
        os.mkdir(_DRAFT, 0o755, dir_fd=own)
        paths = [snapshots.layer_path(each) for each in layers]
        upper = f"{folder}/layers/upper"
        merge_layers([upper, *paths], f"{folder}/{_DRAFT}", link=True, max_bytes=sys.maxsize)
        os.rename(_DRAFT, "files", src_dir_fd=own, dst_dir_fd=own)


def remove_overlay_folders(folder: str) -> None:
    """Step (4)."""
    with closing_fd(os.open(folder, _FOLDER)) as own, suppress(FileNotFoundError):
        remove_tree(own, "layers", max_entries=MAX_LAYER_ENTRIES)
