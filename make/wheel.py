"""Put the built dashboard into wheels and sdists: installing torchloom needs no Node.

An sdist has it built; a checkout builds it, with a Node that `backend.py` asks pip for where the
machine has none. A build that cannot have it fails, unless `LOOM_NO_DASHBOARD=1` says that none is
wanted. An editable install never builds: the plane serves what `make dashboard` has built.
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

        if dashboard.is_unwanted():
            self.app.display_warning(f"this {self.target_name} has no dashboard, as requested")
            return
        try:
            folder = dashboard.built()
        except dashboard.NoDashboard as error:
            raise SystemExit(_no_dashboard(self.target_name, error)) from error
        finally:
            sys.path.pop(0)
        if self.target_name == "wheel":
            build_data["force_include"][str(folder)] = _INSIDE


def _no_dashboard(target: str, why: Exception) -> str:
    return (
        f"torchloom: the dashboard of this {target} cannot be built: {why}\n"
        "torchloom: correct that, or set LOOM_NO_DASHBOARD=1 to install without the dashboard"
    )
