"""A fork that becomes a rank takes every signal that is sent to it, from its first moment on."""

import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.wire import Connection

RANKS = 20
# A keeper whose warm ranks end by themselves after a while: then a signal was lost.
KEEP = """
import os, socket, sys, time
from pathlib import Path
from torchloom.launch.host.descendants import JobShare as Share
from torchloom.launch.keeper.service import Keeper

def run(order):
    time.sleep(5)
    os._exit(0)

channel = socket.socket(fileno=int(sys.argv[1]))
channel.set_inheritable(False)
Keeper(Share(sys.argv[2], "here"), channel, Path(sys.argv[3]), run, 60.0).serve()
"""


def codes_of(keeper: Connection, selector: selectors.BaseSelector, heard: list[Any]) -> list[int]:
    """Return how all ranks ended, then have the keeper leave."""
    codes: dict[int, int] = {}
    while len(codes) < RANKS:
        for key, ready in selector.select(30):
            key.data(ready)
        told = [child for each in heard if each["say"] == "exited" for child in each["children"]]
        codes = {child["id"]: child["code"] for child in told}
    keeper.send({"do": "end"})
    return list(codes.values())


@pytest.mark.process
def test_a_warm_rank_that_is_stopped_as_it_starts_ends(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    words = [str(theirs.fileno()), f"app-{os.getpid()}", str(tmp_path / "keeper")]
    process = subprocess.Popen([sys.executable, "-c", KEEP, *words], pass_fds=[theirs.fileno()])
    theirs.close()
    selector, heard = selectors.DefaultSelector(), list[Any]()
    keeper = Connection(ours, selector, lambda message, _: heard.append(message), lambda: None)
    order = {
        "argv": ["python"],
        "env": {},
        "cwd": "/",
        "given": 3,
        "note": {},
        "warm": True,
    }

    with open(os.devnull, "r+b") as null:
        for number in range(RANKS):
            keeper.send({"do": "start", "id": number, **order}, [null.fileno()] * 3)
            keeper.send({"do": "signal", "id": number, "signum": int(signal.SIGTERM)})

    codes = codes_of(keeper, selector, heard)
    code = process.wait(30)
    keeper.close()
    selector.close()

    assert (codes, code) == ([-signal.SIGTERM] * RANKS, 0)
