"""Three ranks with a weaver that is a script: one is killed, and every step has the same bits."""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from torchloom.messages.membership import Arrived, Broke, Finished, Training
from torchloom.messages.plane import Event

from ...harness.home import until
from .weaver import Forker, Weaver

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPT = Path(__file__).parent / "scripts/train.py"
WORLD = 3
Row = dict[str, Any]


class Jobs:
    """Runs the script under a weaver, one job after the other."""

    def __init__(self, forker: Forker, stack: ExitStack) -> None:
        self._forker = forker
        self._stack = stack

    def start(self, **told: Any) -> Weaver:
        name = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loom-test-")
        folder = Path(self._stack.enter_context(name))
        env: dict[str, str] = told.pop("env", {})
        weaver = Weaver(self._forker, folder, WORLD, SCRIPT, TOLD=json.dumps(told), **env)
        self._stack.callback(weaver.close)
        return weaver

    def run(self, **told: Any) -> Weaver:
        weaver = self.start(**told)
        weaver.run()
        return weaver


def rows(weaver: Weaver, rank: int) -> list[Row]:
    text = (weaver.folder / f"rank-{rank}").read_text()
    return [json.loads(line) for line in text.splitlines()]


def steps(weaver: Weaver, rank: int) -> dict[int, Row]:
    """Return what was seen of each step; no rank does one twice."""
    found = [row for row in rows(weaver, rank) if "step" in row]
    assert len({row["step"] for row in found}) == len(found)
    own = ("pid", "life", "generation")
    return {row["step"]: {k: v for k, v in row.items() if k not in own} for row in found}


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    one = Forker()
    yield one
    one.close()


@pytest.fixture
def jobs(forker: Forker) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(forker, stack)


@pytest.fixture(scope="module")
def undisturbed(forker: Forker) -> Iterator[Weaver]:
    with ExitStack() as stack:
        yield Jobs(forker, stack).run()


@pytest.mark.parametrize(
    ("victim", "place", "step"),
    [
        (1, "begin", 5),
        (0, "forward", 0),
        (2, "forward", 4),
        (0, "backward", 6),
        (1, "optimizer", 7),
        (2, "forward", 11),
    ],
)
def test_a_rank_is_killed_and_every_step_has_the_bits_of_an_undisturbed_run(
    jobs: Jobs, undisturbed: Weaver, victim: int, place: str, step: int
) -> None:
    weaver = jobs.run(hurt={victim: [(place, step, "SIGKILL")]})

    assert weaver.codes == {rank: [-9, 0] if rank == victim else [0] for rank in range(WORLD)}
    for rank in range(WORLD):
        expected, found = steps(undisturbed, rank), steps(weaver, rank)
        if rank == victim and place in ("backward", "optimizer") and step not in found:
            del expected[step]  # the others had applied it
        assert found == expected
    survivor = rows(weaver, (victim + 1) % WORLD)
    assert len({row["pid"] for row in survivor}) == 1
    assert [survivor[0]["generation"], survivor[-1]["generation"]] == [0, 1]


@pytest.mark.parametrize(
    "told", [{"loader": "stock"}, {"loader": "generators"}, {"workers": 1}], ids=str
)
def test_loaders_that_are_not_ours_and_workers_deal_the_same_batches(
    jobs: Jobs, told: dict[str, Any]
) -> None:
    whole = jobs.run(**told)

    weaver = jobs.run(hurt={1: [("forward", 5, "SIGKILL")]}, **told)

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(whole, rank) for rank in range(WORLD)
    ]


def test_a_second_loop_is_gone_on_with_in_its_own_place(jobs: Jobs) -> None:
    whole = jobs.run(loops=2)

    weaver = jobs.run(loops=2, hurt={1: [("forward", 17, "SIGKILL")]})

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(whole, rank) for rank in range(WORLD)
    ]
    assert max(steps(weaver, 0)) == 23


def test_what_rank_0_told_is_told_again_to_a_newcomer(jobs: Jobs) -> None:
    weaver = jobs.run(hurt={2: [("forward", 3, "SIGKILL")]})

    told = [row["told"] for rank in range(WORLD) for row in rows(weaver, rank) if "told" in row]

    assert told == [[0, [0, 1, 2]]] * 4


def test_a_section_is_passed_over_by_those_who_lost_a_peer_in_it(
    jobs: Jobs, undisturbed: Weaver
) -> None:
    weaver = jobs.run(sections=[3, 8], hurt={1: [("section", 3, "SIGKILL")]})

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(undisturbed, rank) for rank in range(WORLD)
    ]
    ended = [row for row in rows(weaver, 0) if "section_done" in row]
    assert [(row["number"], row["section_done"]) for row in ended] == [(3, False), (8, True)]


def test_an_exception_of_the_program_is_raised_by_its_steps(jobs: Jobs) -> None:
    weaver = jobs.start(hurt={1: [("forward", 4, "raise")]})

    weaver.run()  # its next life goes on

    assert weaver.codes[1] == [1, 0]
    asked = [one for one in weaver.of(Broke) if one.head.rank == 1]
    assert {(one.step, one.is_collective, one.why) for one in asked} == {
        (4, False, "ValueError: own in step 4")
    }
    text = (weaver.folder / "out-1-1").read_text()
    assert ", in hit\n" in text  # its own traceback
    assert text.rstrip().endswith("ValueError: own in step 4")
    assert [weaver.codes[0], weaver.codes[2]] == [[0], [0]]


def test_the_traceback_of_a_rank_that_met_new_members_twice_has_its_prefix_once(jobs: Jobs) -> None:
    kills = {0: [("forward", 3, "SIGKILL")], 2: [("forward", 6, "SIGKILL")]}
    weaver = jobs.run(hurt={**kills, 1: [("forward", 9, "raise")]})

    assert weaver.codes == {0: [-9, 0], 1: [1, 0], 2: [-9, 0]}
    lines = (weaver.folder / "out-1-1").read_text().splitlines()
    begin = lines.index("[rank1]: Traceback (most recent call last):")
    assert lines[-1] == "[rank1]: ValueError: own in step 9"
    assert {line.count("[rank1]: ") for line in lines[begin:]} == {1}


def test_knobs_that_were_changed_and_are_to_be_changed_are_a_newcomers_too(jobs: Jobs) -> None:
    changes = [({"name": "lr", "value": 0.02}, 3), ({"name": "lr", "value": 0.07}, 8)]
    changes += [
        ({"name": "temperature", "value": 2.0}, 4),
        ({"name": "temperature", "value": 3}, 9),
    ]
    whole, weaver = jobs.start(gate=1), jobs.start(gate=1, hurt={1: [("forward", 5, "SIGKILL")]})
    whole.changes = weaver.changes = changes

    whole.run()
    weaver.run()

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(whole, rank) for rank in range(WORLD)
    ]
    assert [steps(weaver, 1)[at]["rate"] for at in (2, 5, 9)] == [
        [pytest.approx(0.05), 0.5],
        [pytest.approx(0.02), 2.0],
        [pytest.approx(0.07 * 0.9), 3.0],
    ]


def test_a_checkpoint_that_lacks_the_part_of_a_dead_rank_is_made_again(
    jobs: Jobs, tmp_path: Path
) -> None:
    env = {"LOOM_CHECKPOINT_ROOT": str(tmp_path)}
    weaver = jobs.start(every=4, hurt={1: [("begin", 4, "SIGKILL")]}, env=env)

    weaver.run()

    shards = [one.facts for one in weaver.of(Event) if one.kind == "checkpoint_shard"]
    found = {(one["step"], one["generation"], one["rank"]) for one in shards}
    assert {(step, 1, rank) for step in (4, 8, 12) for rank in range(WORLD)} <= found


def test_those_who_wait_for_a_stopped_peer_are_freed_by_the_word_alone(
    jobs: Jobs, undisturbed: Weaver
) -> None:
    weaver = jobs.start(hurt={1: [("forward", 5, "SIGSTOP")]})

    def give_up() -> None:
        until(lambda: 1 in weaver.pids and _state(weaver.pids[1]) == "T")
        weaver.give_up(1)

    thread = threading.Thread(target=give_up)
    thread.start()
    weaver.run()
    thread.join()

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(undisturbed, rank) for rank in range(WORLD)
    ]
    assert weaver.codes == {0: [0], 1: [-9, 0], 2: [0]}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_that_leaves_its_loop_waits_for_nobody(jobs: Jobs) -> None:
    weaver = jobs.run(leave=4, gate=4)

    said = {(one.head.rank, one.step) for one in weaver.of(Finished)}
    assert said == {(rank, 5) for rank in range(WORLD)}
    assert [rows(weaver, rank)[-1]["ended"] for rank in range(WORLD)] == [5] * WORLD


def test_one_loss_after_the_other_and_two_at_once(jobs: Jobs, undisturbed: Weaver) -> None:
    hurt = {0: [("forward", 3, "SIGKILL")], 1: [("forward", 6, "SIGKILL")]}
    hurt[2] = [("forward", 6, "SIGKILL")]
    weaver = jobs.start(hurt=hurt)

    weaver.run()

    assert [steps(weaver, rank) for rank in range(WORLD)] == [
        steps(undisturbed, rank) for rank in range(WORLD)
    ]
    assert weaver.codes == {rank: [-9, 0] for rank in range(WORLD)}


def test_a_job_that_is_not_live_says_nothing_of_it(jobs: Jobs) -> None:
    weaver = jobs.start(hurt={1: [("forward", 4, "raise")]})
    for seat in weaver._seats:
        seat["LOOM_AGENT"] = ""

    with pytest.raises(AssertionError):
        weaver.run()

    assert weaver.of(Training) == weaver.of(Arrived) == []
    text = (weaver.folder / "out-1-1").read_text()
    assert text.rstrip().endswith("ValueError: own in step 4")
