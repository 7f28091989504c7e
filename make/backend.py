"""The build backend: hatchling, with what builds dashboard and manual where that is missing.

An editable install, and a build of an sdist, which has both built, ask for neither.
"""

from typing import Any

import hatchling.build
from hatchling.build import *  # noqa: F403

import dashboard
import docs

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel is built with."""
    return [*hatchling.build.get_requires_for_build_wheel(config_settings), *_wanted()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Return what an sdist is built with."""
    return [*hatchling.build.get_requires_for_build_sdist(config_settings), *_wanted()]


def _wanted() -> list[str]:
    """Return the packages that the dashboard and the manual are built with."""
    return [*dashboard.wanted(), *docs.wanted()]
