"""`python -m torchloom.weaver.core`: a weaver in the foreground, with the rest of its plane.

It uses the NATS server at LOOM_NATS or torchLoom_ADDR, else the one on port 4222 of this host, if
that server accepts this user's keys; otherwise the plane starts its own. The weaver process alone
is `python -m torchloom.weaver`.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from torchloom.client import plane
from torchloom.errors import Failure, LoomError
from torchloom.launch.keeper.spawn import SpawnOrder, spawn
from torchloom.plane.credentials import credentials
from torchloom.plane.parts import NATS

_PLANE = (sys.executable, "-P", "-m", "torchloom.plane", "--pinned")


def main(words: Sequence[str] | None = None) -> int:
    """Run a weaver until Ctrl-C; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchloom.weaver.core", description=__doc__)
    parser.add_argument(
        "--account", action="store_true", help="print what nats/account.conf contains, and exit"
    )
    try:
        if parser.parse_args(words).account:
            sys.stdout.write(credentials().trusted)
            return 0
        return _run()
    except LoomError as error:
        sys.stderr.write(f"weaver: {error}\n")
        return error.exit_code


def _run() -> int:
    """Start the plane as a child that ends with this process, and wait for it."""
    report, theirs = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    pid = spawn(SpawnOrder(_PLANE, plane.plane_environment(), os.sep, (null, theirs, 2)))
    for fd in (null, theirs):
        os.close(fd)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: os.kill(pid, signal.SIGTERM))
    with open(report) as lines:
        _announce(json.loads(lines.readline() or "{}"))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _say("the plane is down")
    return code


def _announce(report: dict[str, Any]) -> None:
    """Print where the plane is; an error if it did not start."""
    if report.get("ok") == "other":
        raise Failure("this user's plane is running already; `loom down` ends it")
    if report.get("ok") != "up":
        raise Failure(str(report.get("error", f"the plane ended at once; see {plane.log()}")))
    found = plane.find() or {}
    whose = "started by the plane" if NATS in found["parts"] else "that was running already"
    _say(f"up, with the NATS server {whose}, at {found['nats']}")
    if found["note"]:
        _say(found["note"])
    _say(f"HTTP at {found['url']}; Ctrl-C ends all of it")


def _say(text: str) -> None:
    sys.stdout.write(f"weaver: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
