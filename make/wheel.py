"""Put dashboard and manual, built, into wheels and sdists: installing needs no Node, no mkdocs.

An sdist has them built; a checkout builds them, with the Node and the mkdocs-material that
`backend.py` asks pip for where the machine has none. A build that cannot have one fails, unless
`LOOM_NO_DASHBOARD=1` or `LOOM_NO_DOCS=1` says that it is not wanted. An editable install never
builds: the plane serves what `make dashboard` and `make docs` have built.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel or an sdist is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of both, built if that can be done."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "make"))
        try:
            import dashboard
            import docs

            parts = (
                ("dashboard", dashboard, dashboard.NoDashboard, "torchloom/server/static", ""),
                ("manual", docs, docs.NoManual, "torchloom/server/manual", ".build/site"),
            )
            for name, module, absent, in_wheel, in_sdist in parts:
                place = in_wheel if self.target_name == "wheel" else in_sdist
                if (folder := self._built(name, module, absent)) and place:
                    build_data["force_include"][str(folder)] = place
        finally:
            sys.path.pop(0)

    def _built(self, name: str, module: Any, absent: type[Exception]) -> Path | None:
        """Return the built files of one part; none where it is not wanted."""
        if module.is_unwanted():
            self.app.display_warning(f"this {self.target_name} has no {name}, as requested")
            return None
        try:
            built: Path = module.built()
        except absent as error:
            raise SystemExit(
                f"torchloom: the {name} of this {self.target_name} cannot be built: {error}\n"
                f"torchloom: correct that, or set {module.WITHOUT}=1 to install without the {name}"
            ) from error
        return built
