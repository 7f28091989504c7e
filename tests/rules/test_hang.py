from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.rules.hang import (
    WINDOW,
    Cleared,
    Effect,
    EndHungRank,
    Event,
    HangLimits,
    Looked,
    NotifyHang,
    ProgressReport,
    RankEnded,
    RankProgress,
    RankStarted,
    RequestStacks,
    StackFinding,
    State,
    Suspect,
    ThreadletState,
    step,
)

BOTH = RequestStacks(frozenset({0, 1}))
CULPRIT = StackFinding(1, "recv.py:7", "rank 1 is in the user's code, rank 0 waits for it")


@dataclass
class Job:
    """Two ranks under the rule, whose agent reads their words ten times a second."""

    state: State = field(default_factory=State)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.tell(RankStarted(0))
        self.tell(RankStarted(1))

    def tell(self, event: Event) -> list[Effect]:
        self.state, effects = step(self.state, event)
        return list(effects)

    def trains(self, steps: int, took: float = 0.1, phase: str = "step") -> list[Effect]:
        told: list[Effect] = []
        first = self.state.ranks[0].step or 0
        for number in range(first + 1, first + steps + 1):
            self.now += took
            told += self.tell(
                ProgressReport(self.now, dict.fromkeys((0, 1), RankProgress(number, phase)))
            )
        return told

    def stands(self, seconds: float, age: float | None = None) -> list[Effect]:
        """Nothing moves for so long; return what was wanted meanwhile."""
        self.now += seconds
        ranks = {
            rank: RankProgress(was.step, was.phase, was.age + seconds if age is None else age)
            for rank, was in self.state.ranks.items()
        }
        return self.tell(ProgressReport(self.now, ranks))


def learned() -> Job:
    """Return a job that was seen to come out of a standstill of 2 s, so 10 s are its limit."""
    job = Job()
    job.trains(20)
    job.stands(2.0)
    job.tell(Looked(StackFinding(None, "")))
    job.trains(20)
    return job


def names(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_rank_is_suspect_after_a_second_and_only_looked_at() -> None:
    job = Job()
    job.trains(20)

    assert job.stands(1.0) == []
    assert job.stands(0.1) == [
        Suspect(0, "no progress for 1.1 s in step, usually under 1.0 s"),
        Suspect(1, "no progress for 1.1 s in step, usually under 1.0 s"),
        BOTH,
    ]
    assert job.stands(1.0) == []


def test_slow_steps_make_a_slow_suspicion() -> None:
    job = Job()
    job.trains(10, took=2.0)

    assert job.stands(5.9) == []
    assert names(job.stands(0.2)) == ["Suspect", "Suspect", "RequestStacks"]


def test_a_rank_that_moves_again_is_cleared() -> None:
    job = Job()
    job.trains(20)
    job.stands(1.5)

    assert job.trains(1) == [Cleared(0), Cleared(1)]


def test_a_culprit_that_stands_still_is_given_up_at_the_learned_limit() -> None:
    job = learned()
    job.stands(1.5)
    job.tell(Looked(CULPRIT))

    assert job.stands(8.0) == []
    assert job.stands(1.0) == [BOTH]
    assert job.tell(Looked(CULPRIT)) == [EndHungRank(1, "hang_rank_1")]
    assert job.stands(20.0) == []


@pytest.mark.parametrize(
    "second", [StackFinding(1, "user.py:9"), StackFinding(None, ""), StackFinding(0, "x")]
)
def test_nobody_is_given_up_whose_stack_moved_or_who_is_not_named_twice(
    second: StackFinding,
) -> None:
    job = learned()
    job.stands(1.5)
    job.tell(Looked(CULPRIT))
    job.stands(9.0)

    assert job.tell(Looked(second)) == []


def test_two_looks_that_agree_before_the_limit_give_nobody_up() -> None:
    job = learned()
    job.tell(ThreadletState(1, True))
    job.tell(Looked(CULPRIT))

    assert names(job.stands(1.5)) == ["Suspect", "RequestStacks"]
    assert job.tell(Looked(CULPRIT)) == []


def test_without_a_culprit_nothing_is_touched_however_long_it_takes() -> None:
    job = learned()
    job.stands(1.5)
    job.tell(Looked(StackFinding(None, "")))

    for _ in range(20):
        assert job.stands(500.0) == [BOTH]
        assert job.tell(Looked(StackFinding(None, ""))) == []


def test_who_worked_at_the_first_look_and_stands_later_is_given_up() -> None:
    job = learned()
    job.stands(1.5)
    job.tell(Looked(StackFinding(None, "")))

    assert job.stands(9.0) == [BOTH]
    assert job.tell(Looked(CULPRIT)) == []
    assert job.stands(1.1) == [BOTH]
    assert job.tell(Looked(CULPRIT)) == [EndHungRank(1, "hang_rank_1")]


def test_a_limit_that_the_job_chose_counts_instead_of_what_was_learned() -> None:
    job = learned()
    job.state = replace(job.state, limits=HangLimits(fixed=3.0))
    job.stands(1.5)
    job.tell(Looked(CULPRIT))

    assert job.stands(1.4) == []
    assert job.stands(0.2) == [BOTH]
    assert job.tell(Looked(CULPRIT)) == [EndHungRank(1, "hang_rank_1")]


def test_short_standstills_teach_no_short_limit() -> None:
    job = Job()
    job.trains(50, took=0.01)

    assert job.state.longest["step"] < 0.1
    assert job.state.give_up_after(0) == 10.0


def test_a_phase_that_was_never_seen_to_end_has_a_minute() -> None:
    job = learned()
    job.trains(1, phase="eval")
    job.stands(2.0)
    job.tell(Looked(CULPRIT))

    assert job.stands(57.0) == []
    assert job.stands(1.1) == [BOTH]


def test_a_phase_that_took_long_once_may_take_long_again() -> None:
    job = learned()
    job.trains(1, phase="eval")
    job.stands(30.0)
    job.tell(Looked(CULPRIT))
    job.trains(1, phase="step")
    job.trains(1, phase="eval")
    job.stands(2.0)
    job.tell(Looked(CULPRIT))

    assert job.stands(140.0) == []
    assert job.stands(9.0) == [BOTH]


def test_an_attached_script_is_only_spoken_about() -> None:
    job = Job(State(HangLimits(kills=False)))
    job.trains(20)
    job.stands(2.0)
    job.tell(Looked(CULPRIT))
    job.stands(100.0)

    assert job.tell(Looked(CULPRIT)) == [NotifyHang(1, "hang_rank_1")]


def test_a_silent_threadlet_makes_a_suspect_and_nothing_else_while_steps_go_on() -> None:
    job = learned()

    assert job.tell(ThreadletState(1, True)) == [Suspect(1, "its threadlet is silent"), BOTH]
    job.tell(Looked(CULPRIT))
    assert job.trains(2000) == []
    assert job.tell(Looked(CULPRIT)) == []
    assert job.tell(ThreadletState(1, False)) == [Cleared(1)]


def test_a_silent_rank_that_stands_too_is_given_up_as_a_heartbeat_timeout() -> None:
    job = learned()
    job.tell(ThreadletState(1, True))
    job.tell(Looked(CULPRIT))
    job.stands(1.5)
    job.stands(9.0)

    assert job.tell(Looked(CULPRIT)) == [EndHungRank(1, "heartbeat_timeout_worker_1")]


def test_a_rank_without_boundaries_never_hangs() -> None:
    job = Job()

    for _ in range(10):
        job.now += 1000
        unknown = dict.fromkeys((0, 1), RankProgress(None, age=job.now))
        assert job.tell(ProgressReport(job.now, unknown)) == []


def test_stacks_asked_for_before_a_rank_ended_prove_nothing_after() -> None:
    job = learned()
    job.stands(1.5)
    job.tell(RankEnded(0))

    assert job.tell(Looked(CULPRIT)) == []
    assert job.state.finding is None


def test_one_that_works_past_its_limit_is_looked_at_again_but_not_at_every_report() -> None:
    job = learned()
    job.stands(1.5)
    job.tell(Looked(CULPRIT))
    job.stands(9.0)
    job.tell(Looked(StackFinding(1, "user.py:9")))

    assert job.stands(0.5) == []
    assert job.stands(0.6) == [BOTH]


def test_a_silent_rank_that_moved_is_looked_at_anew_when_it_stands() -> None:
    job = learned()
    job.tell(ThreadletState(1, True))
    job.tell(Looked(CULPRIT))
    job.trains(5)

    assert names(job.stands(1.5)) == ["Suspect", "RequestStacks"]
    assert job.state.finding is None


def test_a_gap_in_reports_is_no_standstill() -> None:
    job = learned()
    limit = job.state.give_up_after(0)
    job.now += 600

    assert (
        job.tell(ProgressReport(job.now, dict.fromkeys((0, 1), RankProgress(9000, age=0.05)))) == []
    )
    assert job.state.give_up_after(0) == limit


@given(st.lists(st.tuples(st.floats(0, 0.9), st.integers(0, 50), st.booleans()), max_size=60))
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
def test_who_moves_within_a_second_is_never_suspect(
    looks: list[tuple[float, int, bool]],
) -> None:
    job, number = Job(), 0
    for age, steps, in_eval in looks:
        number += 1 + steps
        job.now += 5 * age
        seen = RankProgress(number, "eval" if in_eval else "step", age)
        assert job.tell(ProgressReport(job.now, {0: seen, 1: seen})) == []
        assert all(len(rank.times) <= WINDOW for rank in job.state.ranks.values())


stories = st.lists(
    st.one_of(
        st.builds(lambda age: ("stands", age), st.floats(0, 100)),
        st.builds(lambda n: ("trains", n), st.integers(1, 5)),
        st.builds(
            lambda c, s: ("looked", c, s), st.sampled_from([None, 0, 1]), st.sampled_from("ab")
        ),
        st.builds(lambda r, s: ("heard", r, s), st.integers(0, 1), st.booleans()),
    ),
    max_size=40,
)


@given(stories)
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
def test_who_is_given_up_was_named_twice_with_one_stack_and_stood_for_its_limit(story) -> None:
    job, last = learned(), None
    for what, *how in story:
        told: list[Effect] = []
        if what == "stands":
            told = job.stands(how[0])
        elif what == "trains":
            told, last = job.trains(how[0]), None
        elif what == "heard":
            told = job.tell(ThreadletState(*how))
        else:
            found, was_asked = StackFinding(*how), job.state.is_looking
            told = job.tell(Looked(found))
            for effect in told:
                assert isinstance(effect, EndHungRank)
                assert effect.rank == found.culprit
                assert found == last
                rank = job.state.ranks[effect.rank]
                assert rank.age >= job.state.give_up_after(effect.rank) >= 10.0
            last = found if was_asked else last
        assert what == "looked" or not any(isinstance(effect, EndHungRank) for effect in told)
