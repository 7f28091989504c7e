"""The build backend: hatchling, with a Node to build the dashboard where the machine has none.

An editable install, and a build of an sdist, which has the dashboard built, ask for no Node.
"""

from typing import Any

import hatchling.build
from hatchling.build import *  # noqa: F403

import dashboard

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel is built with."""
    return [*hatchling.build.get_requires_for_build_wheel(config_settings), *dashboard.wanted()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Return what an sdist is built with."""
    return [*hatchling.build.get_requires_for_build_sdist(config_settings), *dashboard.wanted()]
