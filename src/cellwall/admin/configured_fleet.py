"""What every administration of a fleet begins with: the state folder and checked settings."""

from __future__ import annotations

import os
from typing import Self

from cellwall.admin.fleet import check_fleet_settings
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.runtime.home import state_home


class ConfiguredFleet:
    """The fleet of one configuration; raises `ConfigError` where it describes none."""

    def __init__(self, home: str, settings: Settings) -> None:
        check_fleet_settings(settings)
        self._home, self._settings = home, settings

    @classmethod
    def configured(cls, *, config: str | None = None, profile: str | None = None) -> Self:
        """Of the configuration and the environment."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings)
