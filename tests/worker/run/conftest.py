"""Lives of a run: ranks that are forked, an agent that hears them, and somebody who commits."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import (
    AlreadyCommitted,
    Draft,
    Manifest,
    Shard,
    ShardMap,
    Storage,
    TrainerFiles,
    open_storage,
)
from torchloom.messages.plane import Event, Goodbye

from ...harness.forked_ranks import Zygote, free_port, seats, warm_zygote
from ..threadlet.fake_agent import FakeAgent, listening

SCRIPTS = Path(__file__).parent / "scripts"
Row = dict[str, Any]


class Lives:
    """Starts one life of a run after another, each with an agent of its own."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "checkpoints"
        self.agent: FakeAgent
        self._zygote = zygote
        self._pool = ThreadPoolExecutor(1)
        self._stack = contextlib.ExitStack()
        self._life = 0

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.root), os.environ)

    def start(
        self, world: int = 1, script: str = "train.py", resume: int | str = "", **told: Any
    ) -> "Future[list[tuple[int, str]]]":
        """Begin a life; the future has exit codes and what was printed."""
        self.close()
        self._life += 1
        folder = self.folder / f"life-{self._life}"
        folder.mkdir()
        self.agent = self._stack.enter_context(listening(folder / "agent", told.pop("changes", ())))
        place = self.storage.place_of(resume) if isinstance(resume, int) else resume
        each: dict[int, dict[str, str]] = told.pop("each", {})
        env = {name: str(value) for name, value in told.pop("env", {}).items()}
        common = {"LOOM_JOB": "job", "LOOM_NODE": "here", "LOOM_CHECKPOINT_ROOT": str(self.root)}
        common |= {"LOOM_GENERATION": str(self._life - 1), "LOOM_ATTEMPT": str(self._life - 1)}
        common |= {"TOLD": json.dumps(told), "OUT": str(folder)}
        common |= {"LOOM_AGENT": str(folder / "agent")} | ({"LOOM_RESUME": place} if place else {})
        common |= env
        told_seats = seats(world, free_port(), f"file://{folder}/store", **common)
        for rank, seat in enumerate(told_seats):
            seat.setdefault("LOOM_PAGE", str(folder / f"page-{rank}"))
            seat.update(each.get(rank, {}))
        text = (SCRIPTS / script).read_text()
        return self._pool.submit(self._zygote.run, text, told_seats)

    def run(self, world: int = 1, code: int = 0, **told: Any) -> list[list[Row]]:
        """Live to the end, commit what was saved; return what each rank wrote down itself."""
        ended = self.start(world, **told).result(timeout=180)
        assert [one for one, _ in ended] == [code] * world, ended
        self.printed = [text for _, text in ended]
        if not told.get("env", {}).get("LOOM_AGENT", "here"):
            return self.rows(world)
        self.agent.wait(Goodbye, world)
        self.commit()
        return self.rows(world)

    def rows(self, world: int) -> list[list[Row]]:
        """Return the rows of this life."""
        folder = self.folder / f"life-{self._life}"
        texts = [(folder / f"rank-{rank}").read_text() for rank in range(world)]
        return [[json.loads(line) for line in text.splitlines()] for text in texts]

    def events(self, kind: str, rank: int | None = None) -> list[Row]:
        """Return the facts of what ranks said happened."""
        return [one.facts for one in self.agent.of(Event, rank) if one.kind == kind]

    def commit(self) -> list[int]:
        """Commit what this life has saved."""
        return commit(self.agent, self.storage)

    def close(self) -> None:
        self._stack.close()


def commit(agent: FakeAgent, storage: Storage) -> list[int]:
    """Commit every checkpoint of which all shards were told, as a weaver has it done."""
    told: dict[int, dict[int, Row]] = {}
    for one in agent.of(Event):
        if one.kind == "checkpoint_shard":
            told.setdefault(one.facts["step"], {})[one.facts["rank"]] = one.facts
    whole = {step: by for step, by in told.items() if len(by) == by[min(by)]["world_size"]}
    for step, by in sorted(whole.items()):
        with contextlib.suppress(AlreadyCommitted):
            storage.commit(*_manifest(step, by))
    return sorted(whole)


def _manifest(step: int, by: dict[int, Row]) -> tuple[Draft, Manifest]:
    first = by[0]
    shards = [Shard(one["name"], one["size"], one["hash"], rank) for rank, one in by.items()]
    manifest = Manifest(
        job_id="job",
        run_id="job",
        step=step,
        shards=tuple(sorted(shards, key=lambda shard: shard.rank)),
        created_at="2026-01-01T00:00:00+00:00",
        **{name: first[name] for name in ("epoch", "world_size", "strategy", "backend")},
        **{name: first[name] for name in ("optimizer_state", "rng_state", "versions", "metrics")},
        **{name: first[name] for name in ("generation", "attempt", "trigger")},
        trainer=TrainerFiles.from_dict(first["trainer"]) if "trainer" in first else None,
        sharding=ShardMap.joined(
            [one["places"] for one in by.values() if "places" in one], first["world_size"]
        ),
    )
    return Draft(step, first["generation"], first["attempt"]), manifest


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready


@pytest.fixture
def lives(zygote: Zygote) -> Iterator[Lives]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loom-test-") as name:
        one = Lives(zygote, Path(name))
        yield one
        one.close()
