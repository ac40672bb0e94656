"""All peers, in the order of the tables."""

from __future__ import annotations

from peers.bare import Bare
from peers.bubblewrap import Bubblewrap, BubblewrapStrict
from peers.cellwall_sdk import CellwallCold, CellwallDirectory, CellwallRoot, CellwallWarm
from peers.codex import Codex, CodexStrict
from peers.deno import Deno
from peers.docker import Docker, DockerStrict
from peers.firejail import Firejail, FirejailStrict
from peers.job import Place
from peers.llm_sandbox import LlmSandbox, LlmSandboxStrict
from peers.nono import Nono, NonoStrict
from peers.peer import Peer
from peers.runc import Runc, Runsc
from peers.sandlock import Sandlock, SandlockStrict
from peers.srt import Srt, SrtStrict

_CLASSES: tuple[type[Peer], ...] = (
    Bare,
    CellwallCold,
    CellwallWarm,
    CellwallDirectory,
    CellwallRoot,
    Bubblewrap,
    BubblewrapStrict,
    Firejail,
    FirejailStrict,
    Runc,
    Runsc,
    Docker,
    DockerStrict,
    LlmSandbox,
    LlmSandboxStrict,
    Srt,
    SrtStrict,
    Codex,
    CodexStrict,
    Sandlock,
    SandlockStrict,
    Nono,
    NonoStrict,
    Deno,
)
NAMES = tuple(each.name for each in _CLASSES)
PRODUCTS = tuple(dict.fromkeys(each.product for each in _CLASSES))


def peers(place: Place, only: str | None = None) -> list[Peer]:
    """Every peer, or those of one name or product, and always the bare process."""
    wanted = [each for each in _CLASSES if only in (None, each.name, each.product) or each is Bare]
    return [each(place) for each in wanted]
