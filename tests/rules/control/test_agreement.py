from dataclasses import dataclass, field, replace

import pytest

from torchloom.messages.base import VERSION, Head
from torchloom.messages.plane import Applied, Decided, RankRefusal, Ready
from torchloom.rules.control.agreement import DELAYS, PATIENCE, State, restore, step
from torchloom.rules.control.command import (
    Abort,
    Ack,
    Command,
    CommandEntry,
    CommandKind,
    CommitAt,
    Status,
    offer_of,
    schedule,
)
from torchloom.rules.control.events import (
    Asked,
    AskWrite,
    BoundaryReached,
    CommandDone,
    CommandReport,
    CommandTick,
    Effect,
    Event,
    Generation,
    JobEnded,
    RankGone,
    SendOutcome,
    SendPrepare,
    StoreCommand,
    Withdrawn,
)

from ..model_ranks import desired, upcoming

ALL = frozenset({0, 1, 2})
HEAD = Head(VERSION, "job", 1, 0, "")  # rules look at nothing in it


def ready(command: str, rank: int, step: int, k: int = 0, offer: int = 1) -> CommandReport:
    return CommandReport(rank, Ready(HEAD, f"{command}/{offer}", step, k))


def refused(command: str, rank: int, why: str, is_late: bool = False) -> CommandReport:
    return CommandReport(rank, RankRefusal(HEAD, f"{command}/1", why, is_late))


def decided(command: str, effective: int | None, offer: int = 1) -> CommandReport:
    return CommandReport(0, Decided(HEAD, f"{command}/{offer}", effective))


def applied(command: str, rank: int, step: int, *values: float) -> CommandReport:
    return CommandReport(rank, Applied(HEAD, f"{command}/1", step, *values))


def knob(name: str = "c", at_step: int | None = None, lr: float = 0.1) -> Command:
    return Command(name, CommandKind.KNOB, {"lr": lr}, "ann", "too slow", at_step)


@dataclass
class Job:
    """A job of three ranks under the rule, with what was stored for it."""

    state: State = field(default_factory=State)
    rows: dict[str, CommandEntry] = field(default_factory=dict)

    @classmethod
    def of(cls, is_api: bool = True) -> "Job":
        job = cls()
        job.begins(1, is_api=is_api)
        return job

    def begins(self, number: int, start: int = 0, is_api: bool = True) -> list[Effect]:
        told = self.tell(Generation(number, ALL, start))
        return told + [
            effect for rank in ALL for effect in self.tell(BoundaryReached(rank, is_api))
        ]

    def tell(self, event: Event) -> list[Effect]:
        """Return what is to be done besides storing."""
        self.state, effects = step(self.state, event)
        self.rows |= {e.entry.id: e.entry for e in effects if isinstance(e, StoreCommand)}
        return [effect for effect in effects if not isinstance(effect, StoreCommand)]

    def answer(self, name: str, *steps: int, k: int = 0, offer: int = 1) -> list[Effect]:
        """All ranks promise, each in its step; return what follows from the last of them."""
        told: list[Effect] = []
        for rank, at in enumerate(steps):
            told = self.tell(ready(name, rank, at, k, offer))
        return told

    def commit(self, name: str, at: int) -> None:
        self.tell(Asked(knob(name)))
        self.answer(name, at - 1, at - 1, at - 1)
        self.tell(decided(name, at))

    def after_restart(self) -> "Job":
        return Job(restore(self.rows.values()), dict(self.rows))


def words(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_command_acts_before_the_latest_step_that_a_rank_waits_at() -> None:
    job = Job.of()

    assert words(job.tell(Asked(knob()))) == ["SendPrepare"]
    job.tell(ready("c", 0, step=10, k=2))
    job.tell(ready("c", 1, step=12, k=0))
    entry = job.rows["c"]
    assert job.tell(ready("c", 2, step=11, k=2)) == [AskWrite(entry, 0, CommitAt(14))]
    committed = replace(entry, status=Status.COMMITTED, step=14)
    assert job.tell(decided("c", 14)) == [SendOutcome(committed, ALL, CommitAt(14))]


def test_it_is_done_when_all_ranks_say_so_with_what_each_did() -> None:
    job = Job.of()
    job.commit("c", 5)
    job.tell(applied("c", 0, 5, 0.2, 0.1))
    job.tell(applied("c", 1, 5, 0.2, 0.1))

    (done,) = job.tell(applied("c", 2, 5, 0.2, 0.1))

    assert isinstance(done, CommandDone)
    assert done.entry.status is Status.APPLIED
    assert done.entry.acks == dict.fromkeys(ALL, Ack(5, 0.2, 0.1))


def test_the_store_has_the_last_word() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.answer("c", 10, 10, 10)

    assert words(job.tell(decided("c", 99))) == ["SendOutcome"]
    assert job.rows["c"].step == 99


def test_nobody_is_asked_before_all_have_a_boundary() -> None:
    job = Job()
    job.tell(Generation(1, ALL))
    job.tell(Asked(knob()))

    assert job.tell(BoundaryReached(0, True)) == []
    assert job.tell(BoundaryReached(1, False)) == []
    assert words(job.tell(BoundaryReached(2, True))) == ["SendPrepare"]


def test_one_refusal_ends_it_in_words_and_frees_the_others() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.tell(ready("c", 0, 3))

    tell, done = job.tell(refused("c", 1, "lr must be above 0"))

    why = "rank 1: lr must be above 0"
    assert tell == SendOutcome(
        replace(done.entry, status=Status.PREPARING, why=""), ALL, Abort(why)
    )
    assert (done.entry.status, done.entry.why) == (Status.REFUSED, why)


def test_a_refusal_after_the_step_was_proposed_comes_too_late() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.answer("c", 3, 3, 3)

    assert job.tell(refused("c", 1, "changed my mind")) == []


@pytest.mark.parametrize(("far", "is_refused"), [(13, False), (14, True)])
def test_attached_ranks_far_apart_are_not_aligned(far: int, is_refused: bool) -> None:
    job = Job.of(is_api=False)
    job.tell(Asked(knob()))

    told = job.answer("c", 10, far, 11, k=2)

    assert words(told) == (["SendOutcome", "CommandDone"] if is_refused else ["AskWrite"])
    if is_refused:
        assert "not aligned: rank 0 is in step 10, rank 1 in step 14" in job.rows["c"].why


def test_ranks_of_the_api_may_be_as_far_apart_as_they_like() -> None:
    job = Job.of()
    job.tell(Asked(knob()))

    (write,) = job.answer("c", 10, 5000, 11)

    assert write.outcome == CommitAt(5001)


@pytest.mark.parametrize(("wished", "expected"), [(50, 50), (14, 15)])
def test_a_wished_step_is_kept_if_all_can_wait_for_it(wished: int, expected: int) -> None:
    job = Job.of()
    job.tell(Asked(knob(at_step=wished)))

    (write,) = job.answer("c", 11, 12, 13, k=1)

    assert write.outcome == CommitAt(expected)


def test_a_wished_step_that_a_rank_is_in_is_past() -> None:
    job = Job.of()
    job.tell(Asked(knob(at_step=12)))

    job.answer("c", 10, 12, 11)

    assert job.rows["c"].status is Status.REFUSED
    assert job.rows["c"].why == "step 12 is past: rank 1 is in step 12"


def test_commands_are_decided_one_after_the_other() -> None:
    job = Job.of()
    job.tell(Asked(knob("a")))

    assert job.tell(Asked(knob("b"))) == []
    job.answer("a", 3, 3, 3)
    told = job.tell(decided("a", 4))

    assert words(told) == ["SendOutcome", "SendPrepare"]
    assert told[1].entry.id == "b"


def test_the_same_id_twice_is_one_command_and_one_answer() -> None:
    job = Job.of()
    job.tell(Asked(knob()))

    assert job.tell(Asked(knob())) == []
    job.tell(refused("c", 0, "no"))
    assert job.tell(Asked(knob(lr=9.0))) == [CommandDone(job.rows["c"])]


def test_an_offer_that_ran_out_of_time_is_made_again_later_with_a_new_number() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.tell(ready("c", 0, 3))

    assert words(job.tell(decided("c", None))) == ["SendOutcome"]
    assert job.rows["c"].status is Status.OFFERED_AGAIN
    assert job.tell(CommandTick(DELAYS[0] / 2)) == []
    (prepare,) = job.tell(CommandTick(DELAYS[0]))

    assert (prepare.entry.offer, prepare.entry.status) == (2, Status.PREPARING)
    assert job.tell(decided("c", None, offer=1)) == []
    assert job.answer("c", 9, 9, 9, offer=1) == []
    assert words(job.answer("c", 9, 9, 9, offer=2)) == ["AskWrite"]


def test_after_many_offers_it_ends_and_names_who_did_not_answer() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    now = 0.0
    for offer in range(1, len(DELAYS) + 2):
        job.tell(ready("c", 0, 3, offer=offer))
        told = job.tell(decided("c", None, offer))
        now += 10
        job.tell(CommandTick(now))

    assert words(told) == ["SendOutcome", "CommandDone"]
    assert job.rows["c"].why == "rank 1, 2 did not answer in time"


def test_what_has_no_answer_is_said_again_to_those_who_owe_one() -> None:
    job = Job.of()
    job.tell(CommandTick(100.0))
    job.tell(Asked(knob()))
    job.tell(ready("c", 0, 3))

    assert job.tell(CommandTick(100.6)) == []
    (again,) = job.tell(CommandTick(101.2))
    assert again == SendPrepare(job.rows["c"], frozenset({1, 2}))


def test_a_minute_in_which_we_were_stopped_is_nobodys_delay() -> None:
    job = Job.of()
    job.tell(CommandTick(100.0))
    job.tell(Asked(Command("r", CommandKind.RESUME)))

    assert job.tell(CommandTick(160.0)) == []
    assert job.rows["r"].status is Status.PREPARING


def test_what_needs_no_step_acts_at_once_and_gives_up_after_a_while() -> None:
    job = Job.of()
    job.tell(Asked(Command("r", CommandKind.RESUME)))
    job.tell(Asked(Command("s", CommandKind.RESUME)))

    told = job.answer("r", 4, 4, 4)
    assert told[0].outcome == CommitAt(None)
    for tenth in range(int(PATIENCE * 10) + 20):
        job.tell(CommandTick(tenth / 10))
    assert job.rows["s"].why == "rank 0, 1, 2 did not answer in time"


def test_a_resume_lifts_a_pause_that_some_have_not_reached() -> None:
    job = Job.of()
    job.tell(Asked(Command("p", CommandKind.PAUSE)))
    job.answer("p", 4, 4, 4)
    job.tell(decided("p", 5))
    job.tell(applied("p", 0, 5))
    job.tell(Asked(Command("r", CommandKind.RESUME)))

    told = job.answer("r", 4, 4, 4)

    assert words(told) == ["SendOutcome", "CommandDone"]
    assert (job.rows["p"].status, job.rows["p"].why) == (Status.APPLIED, "lifted by r")


def test_a_death_offers_again_what_was_open_and_keeps_what_was_committed() -> None:
    job = Job.of()
    job.commit("a", 90)
    job.tell(Asked(knob("b")))
    job.tell(ready("b", 0, 20))
    job.tell(RankGone(1))

    assert job.answer("b", 20, 20, 20) == []
    told = job.begins(2, start=21)

    a, b = job.rows["a"], job.rows["b"]
    assert told == [SendOutcome(a, ALL, CommitAt(90)), SendPrepare(b, ALL)]
    assert (a.status, a.generation) == (Status.COMMITTED, 2)
    assert (b.status, b.offer) == (Status.PREPARING, 2)


def test_a_committed_pause_acts_in_the_next_generation_and_a_past_one_never_again() -> None:
    for start, expected in [(5, ["SendOutcome"]), (6, ["CommandDone"])]:
        job = Job.of()
        job.tell(Asked(Command("p", CommandKind.PAUSE)))
        job.answer("p", 4, 4, 4)
        job.tell(decided("p", 5))
        job.tell(applied("p", 0, 5))
        job.tell(RankGone(2))

        assert words(job.begins(2, start)) == expected


def test_acks_of_a_generation_that_ended_do_not_count_in_the_next() -> None:
    job = Job.of()
    job.commit("c", 5)
    job.tell(applied("c", 0, 5))
    job.tell(RankGone(2))
    job.begins(2, start=5)

    job.tell(applied("c", 1, 5))
    assert job.tell(applied("c", 2, 5)) == []
    assert words(job.tell(applied("c", 0, 5))) == ["CommandDone"]


def test_a_commit_that_only_survivors_know_is_not_offered_again() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.answer("c", 4, 4, 4)
    job = job.after_restart()
    job.tell(decided("c", 5))

    told = job.begins(2, start=4)

    assert told == [SendOutcome(job.rows["c"], ALL, CommitAt(5))]


def test_a_rank_that_did_it_says_so_before_anybody_else() -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    job.answer("c", 4, 4, 4)

    assert words(job.tell(applied("c", 1, 5, 0.2, 0.1))) == ["SendOutcome"]
    assert job.rows["c"].status is Status.COMMITTED
    assert job.rows["c"].acks == {1: Ack(5, 0.2, 0.1)}


def test_after_a_restart_the_same_offer_is_made_again() -> None:
    job = Job.of()
    job.commit("a", 9)
    job.tell(applied("a", 0, 9))
    job.tell(Asked(knob("b")))
    job = job.after_restart()

    told = job.begins(1)

    assert told == [
        SendOutcome(job.rows["a"], frozenset({1, 2}), CommitAt(9)),
        SendPrepare(job.rows["b"], ALL),
    ]
    assert job.rows["b"].offer == 1


def test_an_old_generation_begins_nothing() -> None:
    job = Job.of()
    job.begins(3)

    assert job.begins(2) == []
    assert job.state.generation == 3


def test_who_did_it_before_another_step_is_named() -> None:
    job = Job.of()
    job.commit("c", 5)
    job.tell(applied("c", 0, 5))
    job.tell(applied("c", 1, 7))

    (done,) = job.tell(applied("c", 2, 5))

    assert done.entry.why == "rank 1 did it before step 7 instead of 5"


def test_a_commit_that_came_to_nothing_on_a_rank_is_no_success() -> None:
    job = Job.of()
    job.commit("c", 5)
    job.tell(applied("c", 0, 5))

    job.tell(refused("c", 1, "no boundary yet"))  # asked again, before it can know
    job.tell(refused("c", 1, "its handler failed", is_late=True))
    job.tell(applied("c", 2, 5))

    assert job.rows["c"].status is Status.ABORTED
    assert job.rows["c"].why == "rank 1: its handler failed"


@pytest.mark.parametrize("name", ["c", "c/", "c/x", "c/2", "/1", "c/1/1", ""])
def test_a_report_of_what_was_never_offered_changes_nothing(name: str) -> None:
    job = Job.of()
    job.tell(Asked(knob()))
    before = job.state

    messages = (Ready(HEAD, name, 3, 0), Decided(HEAD, name, 5), Applied(HEAD, name, 5))
    assert [job.tell(CommandReport(0, message)) for message in messages] == [[], [], []]
    assert job.state == before


def test_a_resume_whose_outcome_a_rank_knows_acts_at_once() -> None:
    job = Job.of()
    job.tell(Asked(Command("r", CommandKind.RESUME)))

    (told,) = job.tell(decided("r", 0))

    assert (told.outcome, job.rows["r"].step) == (CommitAt(None), None)


def test_what_no_rank_was_asked_for_can_be_withdrawn() -> None:
    job = Job.of()
    job.tell(Asked(knob("a")))
    job.tell(Asked(knob("b")))

    assert job.tell(Withdrawn("a", "never mind")) == []
    assert words(job.tell(Withdrawn("b", "never mind"))) == ["CommandDone"]
    assert job.rows["b"].status is Status.ABORTED


def test_nobody_waits_for_a_job_that_has_ended() -> None:
    job = Job.of()
    job.commit("a", 5)
    job.tell(applied("a", 0, 5))
    job.commit("b", 9)
    job.tell(Asked(knob("c")))

    told = job.tell(JobEnded("the job has completed"))

    assert [(e.entry.id, e.entry.status) for e in told] == [
        ("a", Status.APPLIED),
        ("b", Status.ABORTED),
        ("c", Status.ABORTED),
    ]


def audit() -> list[CommandEntry]:
    def entry(number: int, at: int | None, status: Status, command: Command) -> CommandEntry:
        return CommandEntry(replace(command, id=f"c{number}"), number, status, step=at)

    both = Command("", CommandKind.KNOB, {"lr": 3, "temperature": 1})
    return [
        entry(1, 40, Status.APPLIED, knob(lr=1)),
        entry(2, 10, Status.APPLIED, knob(lr=2)),
        entry(3, 10, Status.COMMITTED, both),
        entry(4, 20, Status.APPLIED, Command("", CommandKind.PAUSE, {"lr": 7})),
        entry(5, 30, Status.ABORTED, knob(lr=8)),
        entry(6, None, Status.PREPARING, knob(lr=9)),
    ]


def test_the_audit_gives_the_values_of_every_step() -> None:
    assert desired(audit(), 9) == {}
    assert desired(audit(), 10) == {"lr": 3, "temperature": 1}
    assert desired(audit(), 39) == {"lr": 3, "temperature": 1}
    assert desired(audit(), 40) == {"lr": 1, "temperature": 1}


def test_the_audit_gives_what_is_yet_to_be_done_again() -> None:
    assert [entry.id for entry in upcoming(audit(), 9)] == ["c2", "c3", "c1"]
    assert [entry.id for entry in upcoming(audit(), 10)] == ["c1"]


def test_a_generation_that_begins_anew_comes_upon_earlier_changes_unless_a_newer_came_first() -> (
    None
):
    def entry(number: int, generation: int, at: int, status: Status, **values: int) -> CommandEntry:
        command = Command(f"c{number}", CommandKind.KNOB, values)
        return CommandEntry(command, number, status, step=at, generation=generation)

    told = [
        entry(1, 0, 40, Status.APPLIED, lr=1, momentum=1),
        entry(2, 0, 60, Status.APPLIED, lr=2),
        entry(3, 0, 900, Status.COMMITTED, lr=3),  # nobody has come to its step yet
        entry(4, 1, 10, Status.APPLIED, temperature=4),
        entry(5, 1, 50, Status.APPLIED, lr=5),
    ]

    found = [(one.step, one.command.payload) for one in schedule(told)]

    assert found == [
        (10, {"temperature": 4}),
        (40, {"lr": 1, "momentum": 1}),
        (50, {"lr": 5}),
        (900, {"lr": 3}),
    ]


def test_an_offer_has_a_key_in_the_store_and_an_id_in_messages() -> None:
    row = CommandEntry(knob(at_step=7), 3, Status.COMMITTED, 2, 7)

    assert (row.key, row.offer_id, offer_of(row.offer_id)) == ("command/c/2", "c/2", ("c", 2))
