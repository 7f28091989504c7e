"""What a check of this host found, and the host that is checked."""

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

Ask = Callable[[Sequence[str], float], str]  # runs words for some seconds, returns what they print


class CheckState(StrEnum):
    """How well a thing is; only a problem keeps ranks from running well here."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of one check: what was found, and what to do about it unless all is well."""

    name: str
    state: CheckState
    text: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.state is not CheckState.PROBLEM


def ok(name: str, text: str) -> CheckFinding:
    """Return a finding about something that is well."""
    return CheckFinding(name, CheckState.OK, text)


def note(name: str, text: str, remedy: str) -> CheckFinding:
    """Return a finding that some users have to know."""
    return CheckFinding(name, CheckState.NOTE, text, remedy)


def problem(name: str, text: str, remedy: str) -> CheckFinding:
    """Return a finding that has to be mended."""
    return CheckFinding(name, CheckState.PROBLEM, text, remedy)


def ask(words: Sequence[str], limit: float) -> str:
    """Run a program and return what it prints; one that fails or hangs raises."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=True
    )
    return done.stdout


def why(error: Exception) -> str:
    """Return the last line a failed program wrote, or what kept it from running."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:g} s"
    return str(error)


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The host and the folders that are checked."""

    env: Mapping[str, str]
    own_host: str
    home: Path
    runtime: Path
    user: str
    logs: Path | None = None  # where logs go, when that is not the home
    hostfile: Path | None = None  # as the user gave it
    root: Path = Path("/")  # of /dev, /proc and /sys
    databases: Path | None = None  # where the plane's are, when that is not the home
    ask: Ask = ask

    @property
    def shm(self) -> Path:
        """Where shared memory is."""
        return self.root / "dev/shm"


Check = Callable[[HostPlace], Iterable[CheckFinding]]
