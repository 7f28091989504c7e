"""A weaver that dies between any two steps loses no job and starts none twice."""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.weaver.store import DatabasePlace, open_store

from ...harness.queue_world import Crash, Fate, Plane, World, given_twice, stored

pytestmark = pytest.mark.process  # it takes a while
SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(50), id="short"),
        pytest.param(range(400), id="long", marks=pytest.mark.soak),
    ],
)
JOBS = 6
CPUS = {"node1": 3, "node2": 2}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with all tables and nothing in them."""
    folder = tmp_path_factory.mktemp("empty")
    open_store(DatabasePlace(folder)).close()
    return folder


class Story:
    """Somebody submits jobs to weavers that die; runs end when they like."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.world = World()
        self.needs: dict[str, int] = {}  # of those whose submission was acknowledged
        self.left = JOBS
        self.lives = self.turns = 0

    def live(self) -> None:
        """Be one weaver after another until all is done."""
        while True:
            self.lives += 1
            last = self.chance.randint(1, 40) if self.lives <= 3 else 1 << 30
            if asyncio.run(self._one_life(Fate(last))):
                return
            for job in sorted(self.world.running):
                if self.chance.random() < 0.3:
                    self.world.running.discard(job)  # it ends while no weaver is there

    async def _one_life(self, fate: Fate) -> bool:
        """Be a weaver; tell whether it came to the end of everything."""
        try:
            plane = Plane(self.folder, self.world, fate)
            plane.learn()
            plane.coordinator.start()
            for name, cpus in CPUS.items():
                plane.node(name, cpus)
            while self.left or plane.jobs.active():
                self.turns += 1
                assert self.turns < 1000, f"some wait for ever: {plane.jobs.active()}"
                await self._something_happens(plane)
                await plane.settled()
                if fate.is_over:
                    raise Crash
                assert given_twice(self.folder, CPUS, self.needs) == []
            await plane.close()
            return True
        except Crash:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            return False

    async def _something_happens(self, plane: Plane) -> None:
        if self.left and self.chance.random() < 0.6:
            workers = self.chance.randint(1, 5)
            job = await plane.submit("job", workers, priority=self.chance.randint(0, 2))
            self.left -= 1
            self.needs[job] = workers
        elif self.world.running:
            plane.end(self.chance.choice(sorted(self.world.running)))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that needs no disk: here processes die, the machine does not."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else tmp_path) as folder:
        yield Path(folder)


@SEEDS
def test_a_crash_between_any_two_steps_loses_no_job_and_starts_none_twice(
    empty: Path, memory: Path, seeds: range
) -> None:
    lives = 0
    for seed in seeds:
        folder = memory / str(seed)
        shutil.copytree(empty, folder)

        story = Story(seed, folder)
        story.live()

        known = dict(stored(folder, "SELECT id, state FROM jobs"))
        assert set(story.needs) <= set(known), f"seed {seed}: acknowledged and lost"
        assert set(known.values()) == {"COMPLETED"}, f"seed {seed}"
        assert dict(story.world.starts) == dict.fromkeys(known, 1), f"seed {seed}"
        assert stored(folder, "SELECT * FROM placements") == [], f"seed {seed}"
        lives += story.lives
        shutil.rmtree(folder)
    assert lives > 3 * len(seeds)  # nearly all of them did die


class Again(Story):
    """The same with people who have jobs go on that have ended."""

    resumes = 4

    async def _something_happens(self, plane: Plane) -> None:
        over = [job.id for job in plane.jobs.all() if job.state == "COMPLETED"]
        if self.resumes and over and self.chance.random() < 0.4:
            self.resumes -= 1
            plane.resume(self.chance.choice(sorted(over)))
        else:
            await super()._something_happens(plane)


@SEEDS
def test_a_crash_between_any_two_steps_of_a_resume_starts_each_attempt_exactly_once(
    empty: Path, memory: Path, seeds: range
) -> None:
    attempts = 0
    for seed in seeds:
        folder = memory / str(seed)
        shutil.copytree(empty, folder)

        story = Again(seed, folder)
        story.live()

        known = stored(folder, "SELECT id, state, attempt FROM jobs")
        assert {state for _, state, _ in known} == {"COMPLETED"}, f"seed {seed}"
        wanted = {job: attempt for job, _, attempt in known}
        assert dict(story.world.starts) == wanted, f"seed {seed}"
        assert stored(folder, "SELECT * FROM placements") == [], f"seed {seed}"
        attempts += sum(wanted.values()) - len(wanted)
        shutil.rmtree(folder)
    assert attempts > len(seeds)  # many did go on
