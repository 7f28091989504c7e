from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.messages import plane
from torchloom.rules.hang import StackFinding
from torchloom.rules.verdict import (
    RankSamples,
    StackFrame,
    StackSample,
    VerdictKind,
    finding,
    judge,
    numbers,
    see,
)

from .hangs.record import WAYS, recorded

PLACES = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = StackFrame("all_reduce", f"{PLACES}/distributed/distributed_c10d.py", 2806)
BACKWARD = StackFrame("_engine_run_backward", f"{PLACES}/autograd/graph.py", 979)
NEXT = StackFrame("_try_get_data", f"{PLACES}/utils/data/dataloader.py", 1275)
SLEEP = StackFrame("train", "/job/train.py", 32, "time.sleep(1000)")


def twice(
    frame: StackFrame | None, state: str = "S", cpu: float = 0.0, where: str = ""
) -> RankSamples:
    """Return a rank in step 20 that was seen there both times, and computed so much between."""
    frames = (frame, StackFrame("<module>", "/job/train.py", 69)) if frame else ()
    first = StackSample(1.0, 5.0, state, where, frames)
    return RankSamples(20, (first, replace(first, at=1.3, cpu=5.0 + cpu)))


def saying(rank: RankSamples, *steps: int, still: float = 60.0, lasted: float = 0.3) -> RankSamples:
    """Return a rank whose own word, at each look, was that it is in these steps."""
    looks = tuple(
        replace(look, step=step, phase=1, still=still, lasted=lasted)
        for look, step in zip(rank.looks, steps, strict=True)
    )
    return replace(rank, looks=looks)


def of_recording(how: str) -> Mapping[int, RankSamples]:
    """Return what two looks at four real ranks saw."""
    steps, ranks = recorded(how)
    return {
        rank: RankSamples(step, tuple(_look(look) for look in looks))
        for rank, (step, looks) in enumerate(zip(steps, ranks, strict=True))
    }


def _look(look: plane.ProcessSample) -> StackSample:
    (main,) = (thread for thread in look.threads if thread.is_main)
    frames = tuple(StackFrame(f.function, f.file, f.line, f.text) for f in main.frames)
    return StackSample(look.at, look.cpu, look.state, look.waits_in, frames)


@pytest.mark.parametrize(
    ("how", "culprits", "awaited", "kind"),
    [
        ("sleep", (1,), (1,), VerdictKind.WAITING),
        ("stopped", (1,), (1,), VerdictKind.STOPPED),
        ("io", (1,), (1,), VerdictKind.IO),
        ("loader", (1,), (1,), VerdictKind.LOADER),
        ("barrier", (1,), (1,), VerdictKind.WAITING),
        ("handle", (1,), (1,), VerdictKind.WAITING),
        ("regex", (), (1,), VerdictKind.COMPUTING),
        ("spin", (), (1,), VerdictKind.COMPUTING),
        ("evaluation", (), (1,), VerdictKind.COMPUTING),
        ("everyone", (), (), VerdictKind.COMPUTING),
        ("apart", (), (), VerdictKind.COLLECTIVE),
    ],
)
def test_real_ranks_that_got_stuck_are_judged(
    how: str, culprits: tuple[int, ...], awaited: tuple[int, ...], kind: VerdictKind
) -> None:
    verdict = judge(of_recording(how))

    assert (verdict.culprits, verdict.awaited, verdict.kind) == (culprits, awaited, kind)


def test_every_recording_is_judged() -> None:
    (cases,) = (
        mark.args[1]
        for mark in test_real_ranks_that_got_stuck_are_judged.pytestmark  # type: ignore[attr-defined]
    )

    assert {case[0] for case in cases} == set(WAYS)


def test_the_sentence_names_ranks_places_and_who_waits() -> None:
    assert judge(of_recording("barrier")).words == (
        "rank 1 stands still in <module> (job/train.py:76)"
        " while ranks 0, 2-3 wait for their peers in barrier"
        " (distributed/distributed_c10d.py:5356) from <module> (job/train.py:78)"
    )


def test_what_is_compared_over_time_is_the_culprit_and_where_it_stands() -> None:
    ranks = {0: twice(ALL_REDUCE), 1: twice(SLEEP)}

    found = finding(judge(ranks), ranks)

    stack = "waiting\ntrain (job/train.py:32)\n<module> (job/train.py:69)"
    assert found == StackFinding(1, stack, judge(ranks).words)
    assert finding(judge({0: twice(SLEEP)}), {}).culprit is None


@pytest.mark.parametrize(
    ("rank", "kind"),
    [
        (twice(ALL_REDUCE), VerdictKind.COLLECTIVE),
        (twice(ALL_REDUCE, "R", 0.3), VerdictKind.COLLECTIVE),  # a wait that spins
        (twice(BACKWARD), VerdictKind.COLLECTIVE),
        (twice(BACKWARD, "S", 0.3), VerdictKind.COMPUTING),
        (twice(BACKWARD, "R"), VerdictKind.COMPUTING),  # it would, but others have the CPU
        (twice(StackFrame("f", "/job/a.py", 3, "loss.item()"), "R", 0.3), VerdictKind.DEVICE),
        (twice(StackFrame("f", "/job/a.py", 3, "work.wait()")), VerdictKind.COLLECTIVE),
        (
            twice(StackFrame("wait", "/usr/lib/python3.11/threading.py", 3, "x.wait()")),
            VerdictKind.WAITING,
        ),
        (twice(NEXT), VerdictKind.LOADER),
        (twice(NEXT, "R", 0.3), VerdictKind.COMPUTING),
        (twice(SLEEP), VerdictKind.WAITING),
        (twice(SLEEP, "D"), VerdictKind.IO),
        (twice(SLEEP, "S", where="pipe_read"), VerdictKind.IO),
        (twice(SLEEP, "T"), VerdictKind.STOPPED),
        (twice(SLEEP, "t"), VerdictKind.UNKNOWN),
        (twice(None), VerdictKind.UNKNOWN),
        (twice(None, "D"), VerdictKind.IO),
        (RankSamples(20, ()), VerdictKind.UNKNOWN),
        (
            twice(StackFrame("write", f"{PLACES}/distributed/checkpoint/filesystem.py", 8), "D"),
            VerdictKind.IO,
        ),
    ],
)
def test_what_a_rank_is_about(rank: RankSamples, kind: VerdictKind) -> None:
    assert see(rank.looks).kind is kind


def test_somebody_who_debugs_a_rank_does_not_make_it_a_culprit() -> None:
    assert judge({0: twice(ALL_REDUCE), 1: twice(SLEEP, "t")}).culprits == ()


def test_a_program_alone_is_never_blamed() -> None:
    assert judge({0: twice(SLEEP)}).culprits == ()
    assert judge({0: twice(SLEEP), 1: twice(SLEEP)}).culprits == ()


def test_of_ranks_that_all_wait_the_one_behind_is_named() -> None:
    behind = replace(twice(ALL_REDUCE), step=19)

    verdict = judge({0: twice(ALL_REDUCE), 1: behind, 2: twice(BACKWARD)})

    assert (verdict.culprits, verdict.kind) == ((1,), VerdictKind.COLLECTIVE)
    assert "in step 19 while" in verdict.words
    assert judge({0: twice(ALL_REDUCE), 1: twice(BACKWARD)}).culprits == ()


def test_a_rank_that_is_past_those_who_wait_is_not_what_they_wait_for() -> None:
    past = replace(twice(SLEEP), step=25)

    assert judge({0: twice(ALL_REDUCE), 1: past}).culprits == ()


def test_of_whom_nothing_is_known_nothing_is_said() -> None:
    unseen = RankSamples(20)

    assert judge({0: twice(ALL_REDUCE), 1: unseen}).culprits == ()
    assert judge({0: twice(ALL_REDUCE), 1: unseen, 2: twice(SLEEP)}).culprits == (2,)
    assert judge({}).words == "no stacks"


def test_who_sleeps_in_every_step_goes_on_by_its_own_word() -> None:
    sleeps = saying(twice(SLEEP), 20, 21)

    verdict = judge({0: sleeps, 1: sleeps, 2: saying(twice(ALL_REDUCE), 20, 21)})

    assert (verdict.culprits, verdict.awaited) == ((), ())
    assert verdict.words == "no rank waits for another: ranks 0-2 go from step to step"


def test_who_is_in_a_long_step_like_all_its_others_does_not_stand() -> None:
    ranks = {0: twice(ALL_REDUCE), 1: saying(twice(SLEEP), 20, 20, still=1.9, lasted=2.0)}

    verdict = judge(ranks)

    assert (verdict.culprits, verdict.awaited) == ((), (1,))
    assert verdict.words.startswith("rank 1 takes no longer than usual in train (job/train.py:32)")


@pytest.mark.parametrize(("still", "lasted"), [(1.1, 0.0), (1.1, 0.3), (6.1, 2.0)])
def test_who_says_of_itself_that_it_stands_does(still: float, lasted: float) -> None:
    stands = saying(twice(SLEEP), 20, 20, still=still, lasted=lasted)

    assert judge({0: saying(twice(ALL_REDUCE), 20, 20), 1: stands}).culprits == (1,)


def test_who_was_stopped_right_now_is_a_culprit_at_once() -> None:
    stopped = saying(twice(SLEEP, "T"), 20, 20, still=0.4)

    assert judge({0: saying(twice(ALL_REDUCE), 20, 20), 1: stopped}).culprits == (1,)


def test_who_moves_but_comes_no_further_is_told_so() -> None:
    rank = saying(twice(SLEEP), 20, 20)
    first, last = rank.looks
    polls = replace(rank, looks=(replace(first, frames=(NEXT,)), last))

    assert judge({0: polls}).words == (
        "no rank waits for another: rank 0 moves within its step in train (job/train.py:32)"
    )


def test_ranks_are_counted_as_people_do() -> None:
    assert numbers([3]) == "rank 3"
    assert numbers([0, 2, 3, 4, 7]) == "ranks 0, 2-4, 7"


def said(
    looks: tuple[StackSample, ...], word: tuple[int | None, int | None, float]
) -> tuple[StackSample, ...]:
    """Return two looks at a rank that says it is in these steps, the last for so many seconds."""
    first, last = looks
    return replace(first, step=word[0]), replace(last, step=word[1], still=word[2])


ranks = st.builds(
    lambda rank, step, moves, word: replace(
        rank,
        step=step,
        looks=said((replace(rank.looks[0], frames=(NEXT,)), rank.looks[1]), word)
        if moves
        else said(rank.looks, word),
    ),
    st.builds(
        twice,
        st.sampled_from([ALL_REDUCE, BACKWARD, SLEEP, NEXT, None]),
        st.sampled_from("RSDTt"),
        st.sampled_from([0.0, 0.01, 0.3]),
        st.sampled_from(["", "pipe_read", "futex_do_wait"]),
    ),
    st.sampled_from([None, 19, 20, 21]),
    st.booleans(),
    st.sampled_from([(None, None, 0.0), (20, 20, 0.5), (20, 20, 60.0), (20, 21, 0.1)]),
)
jobs = st.dictionaries(st.integers(0, 7), ranks, max_size=8)
often = settings(max_examples=300, derandomize=True, database=None, deadline=None)


@given(jobs)
@often
def test_whoever_moves_is_never_a_culprit(job: dict[int, RankSamples]) -> None:
    for rank in judge(job).culprits:
        first, last = job[rank].looks
        kind = see(job[rank].looks).kind
        assert kind is VerdictKind.STOPPED or first.step == last.step
        assert kind is VerdictKind.STOPPED or first.frames == last.frames
        is_idle = last.cpu - first.cpu < 0.25 and "R" not in (first.state, last.state)
        assert is_idle or kind in (VerdictKind.STOPPED, VerdictKind.COLLECTIVE)  # some waits spin


@given(jobs)
@often
def test_nobody_is_blamed_unless_another_waits(job: dict[int, RankSamples]) -> None:
    verdict = judge(job)
    sights = {rank: see(standing.looks) for rank, standing in job.items()}
    waiting = {
        r for r, s in sights.items() if s.kind in (VerdictKind.COLLECTIVE, VerdictKind.DEVICE)
    }

    assert not verdict.culprits or waiting - set(verdict.culprits)
    assert set(verdict.culprits) <= set(verdict.awaited) <= set(job)


@given(jobs, st.permutations(range(8)))
@often
def test_who_is_blamed_does_not_hang_on_the_numbers_of_ranks(
    job: dict[int, RankSamples], names: list[int]
) -> None:
    renamed = judge({names[rank]: standing for rank, standing in job.items()})

    assert set(renamed.culprits) == {names[rank] for rank in judge(job).culprits}


@given(jobs)
@often
def test_one_more_that_waits_clears_nobody(job: dict[int, RankSamples]) -> None:
    culprits = judge(job).culprits

    more = judge({**job, 8: replace(twice(ALL_REDUCE), step=21)})

    assert set(culprits) <= set(more.culprits)
