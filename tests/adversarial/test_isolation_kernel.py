"""System calls that take walls down, and files that would outlive them (ISO-6)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from adversarial.conftest import WHO, attack_names, inside, judge, outside, throwaway
