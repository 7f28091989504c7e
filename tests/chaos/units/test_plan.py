"""Plans: read from a file or drawn from a seed; a wrong one is refused by the name of its field."""

from itertools import pairwise
from statistics import mean

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.chaos import plan
from torchloom.chaos.faults.kinds import KINDS, UnknownKind, kinds_of
from torchloom.chaos.plan import CLOSE, BadPlan, Fault
from torchloom.errors import UserError

TEXT = """
- {at: 5, kind: kill-weaver}
- {at: 3.2, kind: kill, rank: 2}
- {at: 1m, kind: stop, rank: 0, lasts: 500ms}
- {at: 70, kind: cut-link, link: h1/eth0, lasts: 2}
- {at: 71, kind: disk-full, mb: 64}
- {at: 72, kind: clock-step, by: -30}
"""
ALL = tuple(KINDS.values())
GOLDEN = (
    Fault(4.236, "kill", rank=2),
    Fault(4.317, "stop", rank=1, lasts=1.32),
    Fault(6.303, "kill", rank=3),
    Fault(6.389, "stop", rank=1, lasts=1.567),
)


def test_a_plan_is_read_and_put_in_the_order_of_its_times() -> None:
    assert plan.read(TEXT) == (
        Fault(3.2, "kill", rank=2),
        Fault(5.0, "kill-weaver"),
        Fault(60.0, "stop", rank=0, lasts=0.5),
        Fault(70.0, "cut-link", link="h1/eth0", lasts=2.0),
        Fault(71.0, "disk-full", mb=64),
        Fault(72.0, "clock-step", by=-30.0),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it must be a list of faults like"),
        ("{at: 1, kind: kill}", "it must be a list"),
        ("[1", "not YAML"),
        ("- kill", "fault 1: it must be a mapping"),
        ("- {kind: kill}", "fault 1: at is missing; write at: SECONDS"),
        ("- {at: 1}", "fault 1: kind is missing"),
        ("- {at: 0, kind: kill}\n- {at: -3, kind: kill}", "fault 2: at is -3; it must be 0 or"),
        ("- {at: -3s, kind: kill}", "at is '-3s'; it must be a number"),
        ("- {at: .nan, kind: kill}", "at is 'nan'"),
        ("- {at: soon, kind: kill}", "at: 'soon' is not a time; write 5s"),
        ("- {at: true, kind: kill}", "at is 'True'"),
        ("- {at: 1, kind: kill, rank: two}", "rank is 'two'; it must be 0 or more"),
        ("- {at: 1, kind: kill, rank: -1}", "rank is '-1'"),
        ("- {at: 1, kind: kill, ramk: 1}", "'ramk' is not a field of kill; did you mean 'rank'?"),
        ("- {at: 1, kind: kill, lasts: 2}", "'lasts' is not a field of kill"),
        ("- {at: 1, kind: stop, lasts: -2}", "lasts is -2; it must be 0 or more seconds"),
        ("- {at: 1, kind: cut-link}", "link is missing; write link: IFACE"),
        ("- {at: 1, kind: cut-link, link: --all}", "link must be a name, not '--all'"),
    ],
)
def test_a_wrong_plan_is_refused_by_the_name_of_its_field(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        plan.read(text, "p.yaml")

    assert refused.value.exit_code == 2
    assert str(refused.value).startswith("p.yaml: ")
    assert words in str(refused.value)


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownKind) as refused:
        plan.read("- {at: 1, kind: kil}")

    assert str(refused.value) == (
        f"no kind of fault 'kil'; did you mean 'kill'?; known: {', '.join(KINDS)}"
    )


def test_a_plan_of_too_many_faults_is_refused() -> None:
    with pytest.raises(BadPlan, match="10001 faults; at most 10000"):
        plan.read("[" + "0," * 10_001 + "]")


@pytest.mark.parametrize(
    ("text", "expected"), [("5s", 5.0), ("200ms", 0.2), ("2m", 120.0), ("1h", 3600.0), ("7", 7.0)]
)
def test_times_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert plan.seconds(text, "--mtbf") == expected


def test_a_seed_says_the_same_everywhere_and_always() -> None:
    drawn = plan.draw(10, 5.0, kinds_of("kill,stop"), [0, 1, 2, 3], most=4)

    assert drawn == plan.draw(10, 5.0, kinds_of("kill,stop"), [0, 1, 2, 3], most=4)
    assert drawn == GOLDEN
    assert drawn != plan.draw(11, 5.0, kinds_of("kill,stop"), [0, 1, 2, 3], most=4)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    mtbf=st.floats(0.01, 100),
    ranks=st.integers(1, 8),
    most=st.integers(2, 60),
)
def test_a_fifth_of_any_drawn_faults_come_close_and_at_another_rank(
    seed: int, mtbf: float, ranks: int, most: int
) -> None:
    drawn = plan.draw(seed, mtbf, ALL, range(ranks), most, links=["h1/eth0"])

    gaps = [after.at - before.at for before, after in pairwise(drawn)]
    close = [gap <= CLOSE + 1e-9 for gap in gaps]
    assert len(drawn) == most
    assert min(gaps) >= 0
    assert all(5 * sum(close[: n - 1]) >= n for n in range(2, most + 1))
    assert {fault.rank for fault in drawn} <= {None, *range(ranks)}


@pytest.mark.parametrize("kinds", ["kill", "kill-weaver,kill-nats", "kill,kill-agent"])
def test_faults_that_come_close_hit_something_else(kinds: str) -> None:
    drawn = plan.draw(3, 1e6, kinds_of(kinds), [0, 1], most=50)

    hit = [(KINDS[fault.kind].hits, fault.rank) for fault in drawn]
    close = [after.at - before.at <= CLOSE for before, after in pairwise(drawn)]
    pairs = [pair for pair, is_close in zip(pairwise(hit), close, strict=True) if is_close]
    assert len(pairs) >= 10
    assert all(one != other for one, other in pairs)


def test_the_mean_time_between_others_is_what_was_asked_for() -> None:
    drawn = plan.draw(11, 5.0, kinds_of("kill"), [0, 1], most=4000)

    gaps = [after.at - before.at for before, after in pairwise(drawn)]
    assert 4.5 < mean(gap for gap in gaps if gap > CLOSE) < 5.8


def test_what_was_drawn_can_be_written_down_and_read_again() -> None:
    drawn = plan.draw(3, 5.0, ALL, [0, 1], most=40, links=["h1/eth0"])

    assert plan.read(yaml.safe_dump([fault.to_dict() for fault in drawn])) == drawn


def test_a_plan_for_a_while_ends_with_it() -> None:
    drawn = plan.draw(5, 2.0, kinds_of("kill"), [0, 1], until=60.0)

    assert 0 < drawn[-1].at <= 60.0
    assert drawn == plan.draw(5, 2.0, kinds_of("kill"), [0, 1], until=600.0)[: len(drawn)]
