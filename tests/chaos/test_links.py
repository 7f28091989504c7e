"""The network between two hosts is struck: a link is cut, or slow; the ranks wait and go on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness.chaos_training import (
    LIMIT,
    LONG,
    SCRIPT,
    Book,
    all_is_well,
    planned,
    read,
    same_books,
    slowness,
)
from ..harness.home import until
from ..harness.host_launches import LOOM, Launches
from ..harness.watched_job import Watched

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD, STEPS, PACE, LINK = 2, 250, 0.08, "eth0"
CUT = {"kind": "cut-link", "link": LINK, "lasts": 0.8}
SLOW = {"kind": "slow-link", "link": LINK, "lasts": 1.0}
KILL = {"kind": "kill", "rank": 0}
FAULTS = [CUT, SLOW, KILL]


class OverHosts:
    """A training of one rank on each of two hosts, with a plane on the first."""

    def __init__(self, launches: Launches, watched: Watched, name: str, pace: float) -> None:
        self.launches, self.watched = launches, watched
        self.out, self.digests = launches.folder / name, launches.folder / f"{name}-ledger"
        for path in (self.out, self.digests):
            path.mkdir()
        told: dict[str, object] = {"OUT": self.out, "LOOM_LEDGER": self.digests, "STEPS": STEPS}
        told["PACE"] = pace * slowness()
        self.env = watched.variables() | {key: str(value) for key, value in told.items()}
        words = ["--hostfile", str(launches.hostfile(n1=1, n2=1)), "--policy", "live"]
        words += ["--nnodes", "2", "--max-restarts", "5"]
        self.launch = launches.start("n1", *LOOM, "launch", *words, SCRIPT, env=self.env)

    def ready(self) -> "OverHosts":
        until(self._is_live, LONG)
        until(self._is_served, LONG)  # else nothing is known of the API
        return self

    def _is_served(self) -> bool:
        status = self.launches.start("n1", *LOOM, "up", "--status", "--json", env=self.env)
        return str(json.loads(status.communicate()[0] or "{}").get("url")).startswith("http")

    def _is_live(self) -> bool:
        assert self.launch.poll() is None, self.launch.communicate()
        found = (self.launches.home / "runs").glob("*/events.jsonl")
        lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
        return any(told["event"] == "watched" and told["is_live"] for told in lines)

    def strike(self, against: Path) -> dict[str, Any]:
        plan = self.launches.folder / "plan.yaml"
        plan.write_text(json.dumps(planned(FAULTS, 2.5)))
        words = ["chaos", self.launches.app_id, "--plan", str(plan), "-y", "--json"]
        argv = [*LOOM, *words, "--against", str(against), "--limit", LIMIT]
        done = self.launches.cluster.run("n1", argv, self.env, timeout=LONG)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def ends(self) -> list[Book]:
        (self.out / "quick").touch()
        out, err = self.launch.communicate(timeout=LONG)
        assert self.launch.returncode == 0, f"{out}{err}"
        return [read(self.out / f"rank-{rank}") for rank in range(WORLD)]


@pytest.fixture
def watched(launches: Launches) -> Iterator[Watched]:
    """Give what asks the plane of the first host; it goes last."""
    watched = Watched(launches)
    yield watched
    watched.loom("down")


def test_a_link_that_is_cut_or_slow_costs_nothing(launches: Launches, watched: Watched) -> None:
    calm = OverHosts(launches, watched, "calm", pace=0.0)
    expected = calm.ends()
    launches.home.joinpath("runs").rename(launches.folder / "before")
    job = OverHosts(launches, watched, "struck", pace=PACE).ready()

    report = job.strike(calm.digests)
    books = job.ends()

    all_is_well(report, FAULTS)
    same_books(books, expected)
