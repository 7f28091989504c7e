"""Environments with a few packages of others, linked from the one that runs the tests."""

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def make_environment(folder: Path, packages: Iterable[str]) -> Path:
    """Make an environment with these packages, what they require and torchloom; return its Python.

    Nothing is downloaded: its site-packages have links to what is installed here.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in _required(packages):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            place = Path(str(found.locate_file(top)))
            if place.exists() and not (site / top).exists():
                (site / top).symlink_to(place)
    (site / "torchloom.pth").write_text(f"{SOURCE}\n")
    return folder / "bin" / "python"


def _required(packages: Iterable[str]) -> set[str]:
    """Return packages and what they require on this machine, by name."""
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop().lower()
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:  # required on another system
            continue
        if name not in found:
            found.add(name)
            plain = (line for line in requirements if "extra ==" not in line)
            waiting += [match[0] for line in plain if (match := _NAME.match(line))]
    return found
