"""Real ranks: processes that import what users import, started by hand or by a real launcher."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
PATIENCE = 90  # seconds; generous, for loaded machines
SOURCE = Path(__file__).parents[3] / "src"
RECORDINGS = Path(__file__).parents[2] / "launch" / "environments" / "recordings"
PRELUDE = """
import json, os, sys
import torch
from torchloom.worker import dist

def tell(value):
    name = f"{os.environ['TOLD']}/{dist.get_rank()}"
    with open(name + ".new", "w") as file:
        json.dump(value, file)
    os.rename(name + ".new", name)

def place():
    return [dist.get_rank(), dist.get_world_size(), dist.get_local_rank(),
            dist.get_local_world_size(), dist.get_node_index(), dist.get_num_nodes()]
"""


class Ranks:
    """Run a script as ranks; what each told is the answer, in rank order."""

    def __init__(self, folder: Path, forks: "subprocess.Popen[str]") -> None:
        self._folder = folder
        self._forks = forks
        self._runs = 0

    def group(self, script: str, size: int, **more: str) -> list[Any]:
        """Run ranks of one host with torchrun's numbers and nowhere to meet."""
        numbers = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), **more}
        each = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        return self.by_hand(script, [{**numbers, **own} for own in each])

    def by_hand(self, script: str, envs: Sequence[Mapping[str, str]]) -> list[Any]:
        """Run a fork for each environment, with nothing else in it."""
        ended = self.ending(script, envs)
        assert [code for code, _ in ended] == [0] * len(envs), ended
        return self._told(len(envs))

    def ending(self, script: str, envs: Sequence[Mapping[str, str]]) -> list[tuple[int, str]]:
        """Return exit code and words of the ranks, however they end."""
        self._runs += 1
        told = self._folder / "told" / str(self._runs)
        told.mkdir(parents=True)
        outs = [told / f"out{rank}" for rank in range(len(envs))]
        request = {
            "script": PRELUDE + script,
            "outs": list(map(str, outs)),
            "envs": [{**self._clean(), **env} for env in envs],
        }
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(request) + "\n")
        self._forks.stdin.flush()
        codes = json.loads(self._forks.stdout.readline())
        return list(zip(codes, (out.read_text()[-3000:] for out in outs), strict=True))

    def by(self, launcher: Sequence[str], script: str, size: int) -> list[Any]:
        """Let a real launcher start them, as new processes."""
        self._runs += 1
        (self._folder / "told" / str(self._runs)).mkdir(parents=True)
        path = self._folder / f"script{self._runs}.py"
        path.write_text(PRELUDE + script)
        done = subprocess.run(
            [*launcher, str(path)],
            env=self._clean(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return self._told(size)

    def _clean(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "XDG_RUNTIME_DIR": str(self._folder),
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "TOLD": str(self._folder / "told" / str(self._runs)),
        }

    def _told(self, size: int) -> list[Any]:
        folder = self._folder / "told" / str(self._runs)
        return [json.loads((folder / str(rank)).read_text()) for rank in range(size)]


@pytest.fixture(scope="session")
def forks() -> Iterator["subprocess.Popen[str]"]:
    """The process that forks ranks."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forks.py"))],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def ranks(tmp_path: Path, forks: "subprocess.Popen[str]") -> Ranks:
    """A way to start ranks in folders of their own."""
    return Ranks(tmp_path, forks)


@pytest.fixture
def torchrun() -> Callable[[int], list[str]]:
    """Return torchrun's own command line for so many ranks."""

    def words(size: int) -> list[str]:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*run, "--nproc-per-node", str(size)]

    return words


@pytest.fixture
def recorded() -> Callable[[str], list[dict[str, str]]]:
    """Return the environments of a real launch's ranks, in rank order."""

    def envs(name: str) -> list[dict[str, str]]:
        tasks = json.loads((RECORDINGS / f"{name}.json").read_text())["tasks"]
        return [task["env"] for task in sorted(tasks, key=lambda task: int(task["rank"]))]

    return envs
