"""The dashboard as `make dashboard` builds it: once, whichever worker of pytest asks first."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built() -> tuple[Path | None, str]:
    """Return the folder of the built dashboard, or why there is none."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "make" / "dashboard.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None, done.stderr.strip()
    return Path(done.stdout.strip()), ""
