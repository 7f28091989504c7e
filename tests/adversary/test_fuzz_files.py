"""Whatever lies in a manifest of a checkpoint or in a spool: its reader refuses it, and goes on.

The readers run in a process of their own, which is told one path a line and answers each with what
became of it; anything but an answer is a failure.
"""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.spool.spool import Spool
from torchloom.checkpoint.layout import shard_name
from torchloom.messages.plane import VERSION, Head

from . import fuzzing
from .fuzzing import Dice, Fuzz, Watched

pytestmark = pytest.mark.process

READER = """
import sys
from pathlib import Path
from torchloom.bus.spool.spool import Spool
from torchloom.checkpoint.errors import BadManifest
from torchloom.checkpoint.manifest import Manifest

def manifest(path):
    try:
        found = Manifest.from_json(path.read_bytes())
    except BadManifest as error:
        return f"refused {len(str(error)) < 1000}"
    assert Manifest.from_json(found.to_json()) == found
    return "read"

def spool(path):
    found = Spool(path, "n1", 1 << 20)
    for life in found.incarnations():
        found.remove(life)
    count = sum(len(batch.records) for batch in found.batches(10))
    found.close()
    return f"refused {found.damaged < 100}" if found.damaged else f"read {count >= 0}"

for line in sys.stdin:
    kind, _, path = line.strip().partition(" ")
    print({"manifest": manifest, "spool": spool}[kind](Path(path)), flush=True)
"""
MANIFEST: dict[str, Any] = {
    "format": 1,
    "job_id": "j",
    "run_id": "j",
    "step": 5,
    "epoch": 0,
    "world_size": 2,
    "strategy": "ddp",
    "backend": "local",
    "optimizer_state": True,
    "rng_state": True,
    "generation": 0,
    "attempt": 1,
    "created_at": "2026-01-01T00:00:00+00:00",
    "knobs": 0,
    "versions": {"torch": "2.9"},
    "metrics": {"loss": 0.5},
    "trigger": "interval",
    "shards": [
        {"name": shard_name(rank), "size": 9, "hash": "blake3:" + "0" * 64, "rank": rank}
        for rank in range(2)
    ],
}


class Reader:
    """The process that reads."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", READER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def ask(self, kind: str, path: Path) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind} {path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith(("True\n", "read\n")), (answer, self.log.read_text()[-3000:])
        return answer


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path / "reader.log")
    yield made
    made.process.kill()
    made.process.communicate()


@fuzzing.short_and_long
def test_a_manifest_of_any_bytes_is_read_or_refused(
    reader: Reader, tmp_path: Path, seconds: float
) -> None:
    path, whole = tmp_path / "manifest.json", json.dumps(MANIFEST).encode()

    def attempt(dice: Dice) -> None:
        match dice.randrange(6):
            case 0:
                path.write_bytes(dice.garbage(1 << 16))
            case 1:
                path.write_bytes(dice.mutated([whole]))
            case 2:
                path.write_bytes(dice.choice((b"[", b'{"a":')) * dice.choice((10, 100_000)))
            case _:
                path.write_bytes(dice.json(MANIFEST))
        reader.ask("manifest", path)

    def answers() -> None:
        path.write_bytes(whole)
        assert reader.ask("manifest", path) == "read\n"

    watched = [Watched("reader", reader.process.pid)]
    Fuzz("manifest", seconds, watched, [reader.log]).run(attempt, answers)


@fuzzing.short_and_long
def test_a_spool_of_any_bytes_is_read_or_counted_as_damaged(
    reader: Reader, tmp_path: Path, seconds: float
) -> None:
    whole, numbers = tmp_path / "whole", itertools.count()
    spool = Spool(whole, "n1", 1 << 20)
    for rank in range(2):
        head = Head(VERSION, "job-1", 1, rank, f"life-{rank}")
        spool.open(head, 1, 1)
        for number in range(5):
            spool.append(head, b"record %d" % number, None if number % 2 else 3)
    spool.close()
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    contents = [(whole / name).read_bytes() for name in files]

    def attempt(dice: Dice) -> None:
        folder = tmp_path / f"spool-{next(numbers)}"
        shutil.copytree(whole, folder)
        for name in dice.sample(files, dice.randint(1, len(files))):
            before = (folder / name).read_bytes()
            data = dice.garbage() if dice.random() < 0.2 else dice.mutated([before, *contents])
            (folder / name).write_bytes(data)
        if dice.random() < 0.2:
            (folder / f"{dice.getrandbits(32):x}").mkdir()
        reader.ask("spool", folder)
        shutil.rmtree(folder)

    def answers() -> None:
        assert reader.ask("spool", whole) == "read True\n"

    watched = [Watched("reader", reader.process.pid)]
    Fuzz("spool", seconds, watched, [reader.log]).run(attempt, answers)
