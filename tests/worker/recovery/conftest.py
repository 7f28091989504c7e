"""Ranks that are forked from a process with torch, and a folder in shared memory for them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...harness.forked_ranks import Zygote, warm_zygote

# Every script of a rank begins with this; `tell` writes down what the test is to know.
BEGIN = """
import json, os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from torchloom.worker.recovery import recovery as joining, leave as leaving
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["FOLDER"])
(folder / f"pid-{rank}").write_text(str(os.getpid()))

def tell(**facts):
    with open(folder / f"told-{rank}", "a") as file:
        file.write(json.dumps(facts) + "\\n")

def join(generation=0, timeout=60.0, **more):
    return joining.join(f"file://{folder}/g{generation}", rank, world, "gloo", timeout, **more)

def raised(act):
    since = time.monotonic()
    try:
        act()
    except BaseException as error:
        is_collective = leaving.is_collective_error(error)
        tell(error=str(error), is_collective=is_collective, seconds=time.monotonic() - since)

def has_died(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # and whoever waited for it knows
        return True

def until(condition):
    while not condition():
        time.sleep(0.001)
"""


class Ranks:
    """Runs scripts in ranks that share a folder."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.folder = folder
        self._zygote = zygote

    def run(self, script: str, world: int = 3, codes: tuple[int, ...] = (), **more: str) -> None:
        """Run a script to its end in every rank; all end as they are expected to."""
        common = {"WORLD_SIZE": str(world), "FOLDER": str(self.folder), **more}
        seats = [{**common, "RANK": str(rank)} for rank in range(world)]
        ended = self._zygote.run(BEGIN + script, seats, install=False)
        assert [code for code, _ in ended] == list(codes or (0,) * world), ended

    def told(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has told."""
        path = self.folder / f"told-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def zygote_of_groups() -> Iterator[Zygote]:
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready


@pytest.fixture
def ranks(zygote_of_groups: Zygote) -> Iterator[Ranks]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loom-test-") as name:
        yield Ranks(zygote_of_groups, Path(name))
