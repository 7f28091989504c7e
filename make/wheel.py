"""Put the built dashboard into wheels and sdists: nobody who installs torchloom needs Node.

An sdist has it built; a checkout builds it where Node is at hand. Where none is, the wheel has no
dashboard, and says so when it is served. An editable install never builds: the plane serves what
`make dashboard` has built.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_INSIDE = "torchloom/server/static"


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel or an sdist is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of the dashboard, built if that can be done."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "make"))
        import dashboard

        try:
            folder = dashboard.built()
        except dashboard.NoDashboard as error:
            self.app.display_warning(f"this {self.target_name} has no dashboard: {error}")
            return
        finally:
            sys.path.pop(0)
        if self.target_name == "wheel":
            build_data["force_include"][str(folder)] = _INSIDE
