"""A `torchrun` to be first on an app's PATH, so that what calls torchrun gets our launcher."""

import os
import sys
from collections.abc import Mapping

FOLDER = os.path.dirname(os.path.abspath(__file__))
CHOICE = "LOOM_TORCHRUN"  # `real` leads past the shim
PYTHON = "LOOM_PYTHON"  # the interpreter that has torchloom


def shimmed(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make `torchrun` ours for a process with this environment."""
    others = [folder for folder in env.get("PATH", os.defpath).split(":") if folder != FOLDER]
    return {"PATH": ":".join([FOLDER, *others]), PYTHON: env.get(PYTHON) or sys.executable}
