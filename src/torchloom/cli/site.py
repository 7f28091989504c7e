"""The site of this host: which output lines it hides, which modules it loads before the ranks."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom.errors import Failure
from torchloom.launch.host.identity import host_name
from torchloom.settings import environment, loom_home

if TYPE_CHECKING:
    from torchloom.launch.hosts.sites import NoiseFilter, Site

TABLE = "sites.toml"  # in $LOOM_HOME


def here() -> "Site":
    """Return the site of this host from the built-in table and the user's."""
    from torchloom.launch.hosts.sites import site_of

    return site_of(host_name(), environment(), loom_home() / TABLE)


def noise() -> "NoiseFilter | None":
    """Return the filter for this site's known noise; None if it has none."""
    from torchloom.launch.hosts.sites import NoiseFilter

    site = here()
    return NoiseFilter(site.noise, site.name) if site.noise else None


def modules() -> tuple[str, ...]:
    """Return the modules to load before the ranks: $LOOM_MODULES, else those of the site.

    The built-in table names no modules, so the site is only read if the user has a table.
    """
    from torchloom.launch.variables import MODULES_VARIABLE

    named = here().modules if (loom_home() / TABLE).exists() else ()
    asked = environment().get(MODULES_VARIABLE)
    return named if asked is None else tuple(asked.split())


def run_after(loaded: Sequence[str]) -> None:
    """Replace this process by the same command after `module load`."""
    from torchloom.launch.assembly.launchers import after_modules

    words = after_modules([sys.executable, *sys.orig_argv[1:]], loaded)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise Failure(f"cannot load modules: {words[0]}: {error.strerror}") from error
