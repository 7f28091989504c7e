"""A program that kills one of four ranks at a seeded moment and starts them all again, N times.

`python killing.py file|process SEED ROUNDS` prints a line of JSON: how each second attempt ended.
"""

import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from torchloom.worker.process import rendezvous, store

WORLD = 4
MOMENTS = ("start", "init", "reduce", "teardown")


class Attempt:
    """One life of all ranks, with a store of its own."""

    def __init__(self, kind: str, folder: Path, number: int) -> None:
        self._read_end, self._write_end = os.pipe()
        self._store = 0
        self._env = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        if kind == "file":
            self._env["LOOM_STORE"] = f"file://{folder}/attempt-{number}"
        else:
            self._serve()
        self.pids = [self._fork(rank) for rank in range(WORLD)]
        os.close(self._write_end)

    def _serve(self) -> None:
        parent = os.getpid()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._store = os.fork()
            if not self._store:
                store.serve(listener.fileno(), ready=self._write_end, parent=parent)
            port = listener.getsockname()[1]
        self._env |= {
            "MASTER_PORT": str(port),
            "LOOM_STORE": f"tcp://127.0.0.1:{port}",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RES_OPTIONS": store.RESOLVER,
        }

    def _fork(self, rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        os.environ.update(self._env, RANK=str(rank))
        code = 1
        try:
            rendezvous.install()
            code = self._train(rank)
        finally:
            os._exit(code)

    def _train(self, rank: int) -> int:
        torch.set_num_threads(1)
        self._say(rank, "start")
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        self._say(rank, "init")
        value = torch.full((100_000,), float(rank))
        dist.all_reduce(value)
        self._say(rank, "reduce")
        dist.all_reduce(value)
        self._say(rank, "teardown")
        dist.barrier()
        dist.destroy_process_group()
        return 0 if value[0].item() == WORLD * sum(range(WORLD)) else 1

    def _say(self, rank: int, moment: str) -> None:
        os.write(self._write_end, f"{rank} {moment}\n".encode())

    def kill(self, victim: int, moment: str, delay: float) -> None:
        """Kill the victim once it has said the moment, a little later; then end the others."""
        said = b""
        while f"{victim} {moment}\n".encode() not in said and (part := os.read(self._read_end, 99)):
            said += part
        time.sleep(delay)  # the moment itself, not a wait for something
        os.kill(self.pids[victim], signal.SIGKILL)
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)

    def codes(self) -> list[int]:
        """Return how the ranks ended; their store is ended with them."""
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        if self._store:
            os.kill(self._store, signal.SIGTERM)
            os.waitpid(self._store, 0)
        os.close(self._read_end)
        return ended


def main(kind: str, seed: int, rounds: int) -> None:
    dice = random.Random(seed)
    outcomes = []
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="loom-test-", dir="/dev/shm"))
        victim, moment, delay = dice.randrange(WORLD), MOMENTS[number % 4], dice.random() * 0.03
        broken = Attempt(kind, folder, 0)
        broken.kill(victim, moment, delay)
        broken.codes()
        begun = time.monotonic()
        codes = Attempt(kind, folder, 1).codes()
        took = round(time.monotonic() - begun, 3)
        outcomes.append({"moment": f"{victim} {moment}", "codes": codes, "seconds": took})
        shutil.rmtree(folder)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
