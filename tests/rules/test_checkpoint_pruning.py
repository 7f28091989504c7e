"""Which checkpoints may go: what nobody asked to keep, and never the newest."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from torchloom.rules.checkpoints import KeepRules, KeptCheckpoint, excess, keep_rules_of, sound

LOSSES = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
SAVED = st.dictionaries(st.integers(0, 300), LOSSES, max_size=30).map(
    lambda found: [
        KeptCheckpoint(step, {} if loss is None else {"loss": loss}) for step, loss in found.items()
    ]
)
WISHES = st.builds(
    KeepRules,
    st.none() | st.integers(1, 6),
    st.none() | st.integers(1, 50),
    st.sampled_from(["", "loss"]),
    st.sampled_from(["min", "max"]),
)
HELD = st.frozensets(st.integers(0, 300), max_size=3)


def saved(*steps: int) -> list[KeptCheckpoint]:
    return [KeptCheckpoint(step) for step in steps]


def test_the_last_ones_stay_by_number_and_not_by_name() -> None:
    assert excess(saved(99_999, 100_000, 5, 100_001), KeepRules(2)) == (5, 99_999)


def test_every_kth_the_best_and_what_is_held_stay_beside_the_last() -> None:
    losses = {10: 0.5, 20: 0.9, 30: 0.2, 40: math.nan, 50: 0.8, 60: 0.7}
    found = [KeptCheckpoint(step, {"loss": loss}) for step, loss in losses.items()]

    assert excess(found, KeepRules(1, every=20, best="loss"), held={10}) == (50,)
    assert excess(found, KeepRules(1, best="loss", mode="max")) == (10, 30, 40, 50)


def test_without_a_wish_nothing_goes() -> None:
    assert excess(saved(1, 2, 3, 4, 5), KeepRules()) == ()
    assert excess(saved(1, 2, 3, 4, 5), keep_rules_of({"keep_every": 2})) == ()


def test_what_a_rank_says_that_cannot_be_meant_keeps_more() -> None:
    said = {"keep_last": 0, "keep_every": "x", "best": 3, "mode": "maximum"}

    assert keep_rules_of(said) == KeepRules(None, None, "", "min")
    assert keep_rules_of({"keep_last": True}) == KeepRules()
    assert keep_rules_of(
        {"keep_last": 3, "keep_every": 100, "best": "acc", "mode": "max", "every_n_seconds": 5}
    ) == KeepRules(3, 100, "acc", "max")


@given(SAVED, WISHES, HELD)
def test_whatever_is_wished_the_newest_the_last_and_the_held_stay(
    found: Sequence[KeptCheckpoint], wishes: KeepRules, held: frozenset[int]
) -> None:
    steps = sorted(each.step for each in found)

    gone = excess(found, wishes, held)

    assert list(gone) == sorted(set(gone))
    assert set(gone) <= set(steps) - held
    assert not steps or steps[-1] not in gone
    assert set(gone).isdisjoint(steps[len(steps) - (wishes.last or len(steps)) :])
    assert all(wishes.every is None or step % wishes.every for step in gone)


@given(SAVED, st.sampled_from(["min", "max"]))
def test_what_goes_is_never_better_than_all_that_stays(
    found: Sequence[KeptCheckpoint], mode: str
) -> None:
    wishes = KeepRules(1, best="loss", mode="max" if mode == "max" else "min")
    known = {each.step: each.metrics.get("loss", math.nan) for each in found}
    gone = excess(found, wishes)

    left = [loss for step, loss in known.items() if step not in gone and math.isfinite(loss)]
    lost = [known[step] for step in gone if math.isfinite(known[step])]

    if lost:
        best = max if mode == "max" else min
        assert best(left) == best([*left, *lost])


@given(SAVED, WISHES, HELD)
def test_what_was_left_stays_when_it_is_looked_at_again(
    found: Sequence[KeptCheckpoint], wishes: KeepRules, held: frozenset[int]
) -> None:
    gone = excess(found, wishes, held)

    left = [each for each in found if each.step not in gone]

    assert excess(left, wishes, held) == ()


def test_while_a_loss_is_not_finite_the_newest_from_before_it_is_sound() -> None:
    steps = (10, 20, 30, 40)

    assert sound(steps, None, ()) == frozenset()
    assert sound(steps, 35, ()) == {30}
    assert sound(steps, 30, ()) == {20, 30}  # what made it so may be in the later one
    assert sound(steps, None, {40}) == {30}  # it was saved with one, of which nobody told yet
    assert sound(steps, 35, {30, 40}) == {20}
    assert sound(steps, 5, ()) == frozenset()
