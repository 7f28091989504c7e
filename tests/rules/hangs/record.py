"""Record the stacks of real ranks that hang: `python -m tests.rules.hangs.record [HOW ..]`.

It starts four ranks of `train.py`, looks at them as a node's agent does, and writes `HOW.json`.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from torchloom.launch.node_agent import stacks
from torchloom.launch.node_agent.stacks import APART
from torchloom.messages.plane import ProcessSample

HERE = Path(__file__).parent
WORLD = 4
WAYS = (
    *("sleep", "stopped", "regex", "spin", "io", "loader", "evaluation"),
    *("everyone", "barrier", "handle", "apart"),
)
PLACES = (
    (re.compile(r"^.*/site-packages/"), "/venv/lib/python3.11/site-packages/"),
    (re.compile(r"^.*/lib/python3\.(\d+)/(?!site-packages)"), r"/usr/lib/python3.\1/"),
    (re.compile(f"^{re.escape(str(HERE))}/"), "/job/"),
)


def record(how: str, scratch: Path) -> dict[str, Any]:
    """Return what two looks at four ranks see when one of them is stuck."""
    fifo = scratch / f"{how}.fifo"
    os.mkfifo(fifo)
    ranks = [_start(how, rank, port, fifo) for port in [_free_port()] for rank in range(WORLD)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        time.sleep(2.0)  # the only sign of a rank that waits is that nothing comes from it
        seen = asyncio.run(_look_twice([rank.pid for rank in ranks]))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return {"how": how, "steps": [20] * WORLD, "looks": seen}


def _start(how: str, rank: int, port: int, fifo: Path) -> "subprocess.Popen[bytes]":
    env = {"HOW": how, "FIFO": str(fifo), "OMP_NUM_THREADS": "1"}
    env |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, str(HERE / "train.py")]
    return subprocess.Popen(
        words, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


async def _look_twice(pids: list[int]) -> list[list[Any]]:
    first = [await _look(pid) for pid in pids]
    await asyncio.sleep(APART)
    last = [await _look(pid) for pid in pids]
    return [list(pair) for pair in zip(first, last, strict=True)]


async def _look(pid: int) -> Any:
    threads = await stacks.threads_of(pid, stacks.py_spy())
    look = msgspec.structs.replace(stacks.kernel_sees(pid), source="py-spy", threads=threads)
    return _without_our_places(msgspec.to_builtins(look))


def _without_our_places(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_our_places(one) for one in value]
    if isinstance(value, str):
        for pattern, place in PLACES:
            value = pattern.sub(place, value)
    return value


def recorded(how: str) -> tuple[list[int], list[tuple[ProcessSample, ...]]]:
    """Return steps and looks of a recording, by rank."""
    found = json.loads((HERE / f"{how}.json").read_text())
    looks = [msgspec.convert(pair, tuple[ProcessSample, ...]) for pair in found["looks"]]
    return found["steps"], looks


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    import tempfile

    for way in sys.argv[1:] or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(record(way, Path(folder)), separators=(",", ":"))
        (HERE / f"{way}.json").write_text(text.replace("],[[", "],\n[[") + "\n")
        print(way)
