"""Programs that `loom convert` has changed: the same weights, whichever rank is killed."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness.forked_ranks import Zygote, free_port, seats
from ..harness.home import processes_of, until
from ..harness.plane_jobs import PATIENCE, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
LOOPS = Path(__file__).parent / "loops"
WORLD = 2
Lines = list[list[dict[str, Any]]]
Start = Callable[..., "Training"]


class Training:
    """One run of a converted program, judged by what its ranks wrote."""

    def __init__(self, script: Path, out: Path, world: int, hit: str) -> None:
        out.mkdir()
        words = ["-n", str(world), "-e", f"OUT={out}", "-e", f"HIT={hit}"]
        self.id: str = json.loads(loom("run", "--json", *words, str(script)))["id"]
        self.out, self.world, self.hit = out, world, hit
        if hit:
            until(lambda: any(one["is_live"] for one in self.events("watched")), PATIENCE)
            (out / "go").touch()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what the launch has noted of a kind."""
        path = self._run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == kind]

    def ended(self) -> Lines:
        """Wait for its end, which is to be a good one; return each rank's lines."""
        until(lambda: self._state() in ("SUCCEEDED", "FAILED", "CANCELLED"), PATIENCE)
        assert self._state() == "SUCCEEDED", (
            loom("logs", self.id) + (self._run / "events.jsonl").read_text()
        )
        until(lambda: not processes_of(self.id), PATIENCE)
        return lines(self.out, self.world)

    def killed(self) -> int:
        """Return how often a rank was killed: the launch saw it end by signal 9."""
        assert (self.out / "hit").exists() == bool(self.hit)
        return [one["code"] for one in self.events("exit")].count(-9)

    def restarts(self) -> int:
        return int(json.loads((self._run / "status.json").read_bytes())["restarts"])

    @property
    def _run(self) -> Path:
        return Path(os.environ["LOOM_HOME"], "runs", self.id)

    def _state(self) -> str:
        return str(json.loads((self._run / "status.json").read_bytes())["state"])


def lines(out: Path, world: int) -> Lines:
    texts = [(out / f"rank-{rank}").read_text() for rank in range(world)]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def steps_of(rank: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return what a rank wrote of each step, and at its end; of a repeated step the last line."""
    return {
        tuple(line.get(name) for name in ("epoch", "batch", "step")): {**line, "pid": 0}
        for line in rank
        if "begun" not in line
    }


@pytest.fixture(scope="module")
def converted(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the programs after `loom convert -w`."""
    folder = tmp_path_factory.mktemp("converted")
    for path in sorted(LOOPS.glob("*.py")):
        shutil.copy(path, folder)
        loom("convert", "-w", str(folder / path.name))
    return folder


@pytest.fixture(scope="module")
def start(plane: Plane, warm: None, converted: Path, tmp_path_factory: Any) -> Iterator[Start]:
    """Start converted programs; what still runs is ended afterwards."""
    found: list[Training] = []

    def begin(name: str, world: int = WORLD, hit: str = "") -> Training:
        out = tmp_path_factory.mktemp(name) / "out"
        found.append(Training(converted / f"{name}.py", out, world, hit))
        return found[-1]

    yield begin
    for one in found:
        if processes_of(one.id):
            loom("stop", "--now", one.id)


@pytest.fixture(scope="module")
def undisturbed(start: Start) -> Callable[[str], Lines]:
    """Return what ranks write whom nothing happens to."""
    known: dict[str, Lines] = {}

    def ran(name: str) -> Lines:
        if name not in known:
            training = start(name)
            known[name] = training.ended()
            assert training.killed() == 0
        return known[name]

    return ran


@pytest.mark.parametrize("world", [1, 2])
def test_a_loop_with_data_of_its_own_ends_with_the_weights_that_it_had_before(
    world: int, start: Start, undisturbed: Any, plain: Zygote, tmp_path: Path
) -> None:
    told = seats(world, free_port(), OUT=str(tmp_path))

    before = plain.run((LOOPS / "steps.py").read_text(), told)
    after = undisturbed("steps") if world == WORLD else start("steps", world).ended()

    assert [code for code, _ in before] == [0] * world, before
    original = lines(tmp_path, world)
    assert [steps_of(rank) for rank in after] == [steps_of(rank) for rank in original]
    assert len(steps_of(after[0])) == 24 + 1


@pytest.mark.parametrize(
    ("name", "hit"),
    [
        ("epochs", "1:0:0:begin"),
        ("epochs", "0:1:3:forward"),
        ("epochs", "1:1:6:backward"),
        ("epochs", "0:1:-1:evaluation"),
        ("epochs", "1:2:-1:end"),
        ("steps", "1:7:part-1"),
        ("steps", "0:11:gradients"),
        ("steps", "1:10:mean"),
    ],
)
def test_a_rank_that_is_killed_is_replaced_and_no_bit_is_another(
    name: str, hit: str, start: Start, undisturbed: Any
) -> None:
    expected = undisturbed(name)

    training = start(name, hit=hit)
    found = training.ended()

    assert (training.killed(), training.restarts()) == (1, 0)
    victim = int(hit[0])
    assert [len({line["pid"] for line in rank}) for rank in found] == [
        2 if rank == victim else 1 for rank in range(WORLD)
    ]
    for mine, theirs in zip(map(steps_of, found), map(steps_of, expected), strict=True):
        assert mine == {step: theirs[step] for step in mine}
        assert len(mine) >= len(theirs) - 1  # the step that the others had applied
        assert mine[None, None, None] == theirs[None, None, None]


def test_an_epoch_loop_learns_what_it_learned_before(
    undisturbed: Any, plain: Zygote, tmp_path: Path
) -> None:
    """The samples come in another order: the number of steps is the same, the weights are not."""
    told = seats(WORLD, free_port(), OUT=str(tmp_path))

    before = plain.run((LOOPS / "epochs.py").read_text(), told)
    after = undisturbed("epochs")

    assert [code for code, _ in before] == [0] * WORLD, before
    original = [steps_of(rank) for rank in lines(tmp_path, WORLD)]
    assert [steps_of(rank).keys() for rank in after] == [rank.keys() for rank in original]
    rates = [[line["lr"] for line in steps_of(rank).values()] for rank in after]
    assert rates == [[line["lr"] for line in rank.values()] for rank in original]
