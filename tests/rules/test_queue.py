"""Whose turn it is: examples, and a machine that looks after every event."""

import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from torchloom.rules import queue
from torchloom.rules.queue import (
    Assign,
    Effect,
    Event,
    JobGone,
    JobsGone,
    JobSubmitted,
    Need,
    NodeCapacity,
    NodeDown,
    NodeShare,
    NodeUp,
    QuotaSet,
    Refuse,
    State,
    Waiting,
    reasons,
    settle,
    step,
)


def after(*events: Event) -> tuple[State, list[Effect]]:
    """Return the state and all effects after some events."""
    state, done = State(), []
    for event in events:
        state, effects = step(state, event)
        done += effects
    return state, done


HOST = NodeUp("host", NodeCapacity(4))


def job(name: str, workers: int, priority: int = 0, owner: str = "alice") -> JobSubmitted:
    return JobSubmitted(name, owner, Need(workers), priority)


def test_jobs_are_placed_in_their_order_and_the_next_one_when_there_is_room() -> None:
    state, done = after(HOST, job("a", 3), job("b", 2), job("c", 1), JobGone("a"))

    assert [effect.job for effect in done] == ["a", "b", "c"]
    assert not state.waiting


def test_nobody_overtakes_a_job_that_waits_for_room() -> None:
    state, done = after(HOST, job("a", 3), job("big", 4), job("small", 1))

    assert done == [Assign("a", (NodeShare("host", 3, 3),))]
    assert reasons(state)["big"] == "waits for room: needs 4 workers, 1 would fit now"
    assert reasons(state)["small"] == "waits behind big"


def test_a_submission_is_decided_as_if_everything_had_been_looked_at_again() -> None:
    """Whoever is submitted looks at itself alone; that must be all there is to look at."""
    for seed in range(300):
        chance, quick, slow = random.Random(seed), State(), State()
        for number in range(40):
            event = anything(chance, number)

            quick, done = step(quick, event)
            slow, expected = step(replace(slow, is_settled=False, blocked=None), event)

            assert (done, quick.waiting, quick.placed) == (expected, slow.waiting, slow.placed)


def anything(chance: random.Random, number: int) -> Event:
    """Return any event."""
    owner, host = chance.choice("ab"), chance.choice("xyz")
    return chance.choice(
        [
            job(f"j{number}", chance.randint(1, 5), chance.randint(0, 2), owner),
            job(f"j{number}", chance.randint(1, 5), chance.randint(0, 2), owner),
            JobGone(f"j{chance.randint(0, number)}"),
            JobsGone(frozenset(f"j{chance.randint(0, number)}" for _ in range(5))),
            NodeUp(host, NodeCapacity(chance.randint(1, 5))),
            NodeDown(host),
            QuotaSet(owner, chance.choice([None, 1, 3, 6])),
        ]
    )


def test_everybody_is_told_what_it_waits_for_in_the_order_of_turns() -> None:
    state, _ = after(HOST, job("a", 4), job("low", 2), job("big", 4, 5), job("small", 1))

    assert reasons(state) == {
        "big": "waits for room: needs 4 workers, 0 would fit now",
        "low": "waits behind big",
        "small": "waits behind big and 1 more",
    }


def test_a_queue_that_was_read_from_a_disk_is_settled() -> None:
    one = Waiting("a", "alice", Need(2), 0, 1)

    _, done = settle(State({"host": NodeCapacity(4)}, {"a": one}, submitted=1))

    assert done == (Assign("a", (NodeShare("host", 2, 2),)),)


def test_a_higher_priority_goes_first() -> None:
    _, done = after(HOST, job("a", 4), job("low", 4), job("high", 4, priority=5), JobGone("a"))

    assert [effect.job for effect in done] == ["a", "high"]


def test_what_can_never_run_is_refused_at_once() -> None:
    state, done = after(HOST, job("big", 8))

    assert done == [Refuse("big", "unschedulable: needs 8 workers, the cluster has 4")]
    assert not state.waiting


def test_an_owners_quota_holds_up_nobody_else() -> None:
    quota = QuotaSet("alice", 2)
    state, done = after(HOST, quota, job("a", 2), job("b", 1), job("c", 1, owner="bob"))

    assert [effect.job for effect in done] == ["a", "c"]
    assert reasons(state)["b"] == "waits for a quota: alice has 2 of 2 workers"
    assert after(HOST, quota, job("d", 3))[1] == [
        Refuse("d", "unschedulable: needs 3 workers, alice may have 2")
    ]


def test_a_job_whose_node_is_lost_keeps_its_share_and_holds_up_nobody() -> None:
    other = NodeUp("other", NodeCapacity(1))
    events = (HOST, other, job("a", 4), job("b", 4), NodeDown("host"), job("c", 1), HOST)

    state, done = after(*events)

    assert [effect.job for effect in done] == ["a", "c"]
    assert state.free() == {"host": NodeCapacity(0), "other": NodeCapacity(0)}
    assert reasons(state)["b"] == "waits for room: needs 4 workers, 0 would fit now"


def test_jobs_that_leave_together_are_not_given_the_room_that_others_of_them_wait_for() -> None:
    queue = (HOST, job("a", 3), job("big", 4), job("small", 1), job("kept", 1))

    one_by_one, _ = after(*queue, JobGone("big"))
    state, done = after(*queue, JobsGone(frozenset({"big", "small"})))

    assert "small" in one_by_one.placed
    assert [effect.job for effect in done] == ["a", "kept"]
    assert (set(state.placed), dict(state.waiting)) == ({"a", "kept"}, {})


def test_the_same_job_is_submitted_once() -> None:
    _, done = after(HOST, job("a", 1), job("a", 1))

    assert len(done) == 1


class WhateverIsSubmitted(RuleBasedStateMachine):
    """Any events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.count = 0
        self.live: dict[str, tuple[NodeShare, ...]] = {}
        self.whole: dict[str, NodeCapacity] = {}

    def take(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            if isinstance(effect, Assign):
                assert effect.job not in self.live
                self.live[effect.job] = effect.shares

    @rule(
        workers=st.integers(1, 9),
        cpus=st.integers(1, 2),
        gpus=st.integers(0, 2),
        owner=st.sampled_from(["alice", "bob"]),
        priority=st.integers(-1, 1),
    )
    def submit(self, workers: int, cpus: int, gpus: int, owner: str, priority: int) -> None:
        self.count += 1
        self.take(JobSubmitted(f"j{self.count}", owner, Need(workers, cpus, gpus), priority))

    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        jobs = [*self.live, *self.state.waiting]
        if jobs:
            job = jobs[which % len(jobs)]
            self.live.pop(job, None)
            self.take(JobGone(job))

    @rule(name=st.sampled_from("abc"))
    def come(self, name: str) -> None:
        """A node comes back as it was: what runs there may still run there."""
        number = "abc".index(name)
        gpus = tuple(f"{name}{index}" for index in range(number * 2))
        self.whole[name] = NodeCapacity(4 + 4 * number, 0, gpus)
        self.take(NodeUp(name, self.whole[name]))

    @rule(name=st.sampled_from("abc"))
    def lose(self, name: str) -> None:
        self.take(NodeDown(name))

    @rule(owner=st.sampled_from(["alice", "bob"]), workers=st.none() | st.integers(0, 9))
    def allow(self, owner: str, workers: int | None) -> None:
        self.take(QuotaSet(owner, workers))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        shares = [share for each in self.live.values() for share in each]
        for name, room in self.whole.items():
            here = [share for share in shares if share.node == name]
            gpus = [gpu for share in here for gpu in share.gpus]
            assert sum(share.cpus for share in here) <= room.cpus
            assert len(gpus) == len(set(gpus))
            assert set(gpus) <= set(room.gpus)

    @invariant()
    def the_rule_knows_who_runs(self) -> None:
        assert {job: each.shares for job, each in self.state.placed.items()} == self.live

    @invariant()
    def whose_turn_it_is_waits_for_a_reason(self) -> None:
        """Recompute, by counting, whether the first in turn could be started."""
        for one in self.state.order():
            quota = self.state.quotas.get(one.owner)
            has = sum(
                share.workers
                for job, placed in self.state.placed.items()
                if placed.owner == one.owner
                for share in placed.shares
            )
            if quota is not None and has + one.need.workers > quota:
                continue
            if queue.shortage(one.need, self.state.nodes):
                continue
            room = sum(queue.fit(one.need, left) for left in self.state.free().values())
            assert room < one.need.workers
            return

    @invariant()
    def everybody_is_told_why(self) -> None:
        for job in self.state.waiting:
            assert reasons(self.state)[job]


TestWhateverIsSubmitted = WhateverIsSubmitted.TestCase
TestWhateverIsSubmitted.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
