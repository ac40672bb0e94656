"""Whether packages may be installed for somebody: the one place where that is asked.

It is asked twice for each build: with the names that were asked for, before an index is asked for
them, and with the names and versions that the index answered, before anything of them is unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.config.models import Settings
from cellwall.core.packages import Package
from cellwall.core.roles import Permission
from cellwall.core.types import Principal
from cellwall.runtime.permissions import require


@dataclass(frozen=True, slots=True)
class PackageGate:
    """For one principal, under the settings in force."""

    settings: Settings
    principal: Principal

    def check(self, packages: Sequence[Package]) -> None:
        """Raises `Denied` for packages that must not be installed."""
        if packages:
            require(self.settings, self.principal, Permission.PACKAGES_INSTALL)
