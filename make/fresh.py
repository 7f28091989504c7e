"""Do what a newcomer does: clone, `make demo`, `make check`, with nothing but the bare tools.

The clone has the committed HEAD, an empty home, no pip cache and a PATH of python, make, git, sh
and coreutils. Started by root, it all runs as the user `nobody`.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from witness import processes_with

ROOT = Path(__file__).resolve().parents[1]
TOOLS = """sh make git
[ basename cat chmod cksum comm cp cut date dd df dirname du echo env expr false fold head id
install join link ln ls mkdir mkfifo mktemp mv nice nl nohup nproc od paste printenv printf pwd
readlink realpath rm rmdir seq sha256sum sleep sort split stat stty sum sync tail tee test timeout
touch tr true truncate tsort tty uname uniq unlink wc whoami yes
"""
KEPT = ("TORCH", "NO_COLOR", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE")
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
PROBE = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"


class Newcomer:
    """Another user with a folder of its own: what commands are run as, and in which environment."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.user = pwd.getpwnam("nobody") if os.getuid() == 0 else None
        self.env = environment(base)

    def run(self, *words: str, cwd: Path | None = None, quiet: bool = False) -> int:
        """Run a command as the newcomer without a terminal; return its exit code."""
        ids: dict[str, Any] = (
            {}
            if self.user is None
            else {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        )
        try:
            return subprocess.run(
                words,
                cwd=cwd or self.base,
                env=self.env,
                stdin=subprocess.DEVNULL,
                capture_output=quiet,
                check=False,
                **ids,
            ).returncode
        except OSError:
            return 127

    def own(self, folder: Path) -> None:
        """Give a folder and all in it to the newcomer."""
        if self.user is None:
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.user.pw_uid, self.user.pw_gid, follow_symlinks=False)


def environment(base: Path) -> dict[str, str]:
    """Return the newcomer's environment: ours only where pip needs it to reach an index."""
    kept = {name: value for name, value in os.environ.items() if reaches_an_index(name)}
    kept.pop("PIP_CACHE_DIR", None)
    return {
        **kept,
        "HOME": str(base / "home"),
        "PATH": str(base / "bin"),
        "TMPDIR": str(base / "tmp"),
        "PIP_NO_CACHE_DIR": "1",
    }


def reaches_an_index(name: str) -> bool:
    """Say whether a variable is about pip, a proxy or a certificate, or chosen by the user."""
    return name in KEPT or name.startswith(("PIP_", "REQUESTS_")) or name.lower().endswith("_proxy")


def lay_out(newcomer: Newcomer) -> None:
    """Make the home, the bare tools and the clone."""
    base = newcomer.base
    base.chmod(0o755)
    for name in ("home", "tmp", "bin"):
        (base / name).mkdir()
    for tool in TOOLS.split():
        if where := shutil.which(tool):
            (base / "bin" / tool).symlink_to(where)
    wrapper = base / "bin/python3"
    wrapper.write_text(f'#!/bin/sh\nexec {find_python(newcomer)} "$@"\n')
    wrapper.chmod(0o755)
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(base / "repo")], check=True)
    for name in ("home", "tmp", "repo"):
        newcomer.own(base / name)


def find_python(newcomer: Newcomer) -> str:
    """Return a Python that the newcomer can run, too; the one in our home may be closed to it."""
    path = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"]
    found = [os.path.join(folder, name) for folder in path for name in PYTHONS]
    for python in (os.environ.get("PYTHON") or sys.executable, *found):
        if newcomer.run(python, "-c", PROBE, quiet=True) == 0:
            return python
    sys.exit(
        "make: no Python 3.11 with venv that an ordinary user can run: apt install python3-venv"
    )


def main() -> int:
    """Run the newcomer's commands one after the other; stop at the first that fails."""
    signal.signal(signal.SIGTERM, _stop)
    dirty = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True).stdout
    if dirty:
        print("fresh: uncommitted changes are not part of the clone", flush=True)
    base = Path(tempfile.mkdtemp(prefix="loom-fresh-"))
    try:
        newcomer = Newcomer(base)
        lay_out(newcomer)
        return visit(newcomer)
    finally:
        end_leftovers(base)
        shutil.rmtree(base, ignore_errors=True)


def visit(newcomer: Newcomer) -> int:
    """Run each command in the clone and say how long it took."""
    for target in ("demo", "check"):
        began = time.monotonic()
        code = newcomer.run("make", target, cwd=newcomer.base / "repo")
        verdict = f"failed with code {code}" if code else "ok"
        print(f"fresh: make {target}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
        if code:
            return 1
    if left := leftovers(newcomer.base):
        print(f"fresh: processes were left behind: {left}", flush=True)
        return 1
    return 0


def leftovers(base: Path) -> list[int]:
    """Return the living processes whose home is the newcomer's."""
    return processes_with(f"HOME={base / 'home'}")


def end_leftovers(base: Path) -> None:
    """Kill what an interrupted visit left, so that its folder can go."""
    for pid in leftovers(base):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
