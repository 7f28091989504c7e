"""Real repositories for tests, and git itself to judge by."""

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> bytes:
    """Ask git, with nothing of ours between."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)
    return done.stdout


def committed(folder: Path) -> str:
    """Make a folder with all that is in it a repository; return its only commit."""
    git(folder, "init", "-q", "-b", "work")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return git(folder, "rev-parse", "HEAD").decode().strip()
