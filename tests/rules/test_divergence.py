"""Since when a loss is not finite, whose was first, and when that is over."""

from typing import Any

from torchloom.rules.divergence import Known, NonFiniteLoss, better, since, words, worse


def seen(
    rank: int, step: int, value: str = "nan", generation: int = 0, **more: Any
) -> NonFiniteLoss:
    return NonFiniteLoss(
        more.get("name", "loss"), value, rank, step, more.get("at", step), generation
    )


def after(*events: NonFiniteLoss) -> Known:
    known: Known = {}
    for one in events:
        known = worse(known, one)
    return known


def test_the_first_is_whoever_had_it_at_the_lowest_step_in_whatever_order_they_tell() -> None:
    told = [seen(0, 99), seen(2, 98), seen(1, 99)]

    for events in (told, told[::-1]):
        assert words(after(*events)) == "loss is NaN since step 98 (rank 2 first)"


def test_it_is_over_when_every_rank_that_had_it_is_finite_again() -> None:
    known = after(seen(0, 99), seen(2, 98, "inf"))

    assert words(known) == "loss is inf since step 98 (rank 2 first)"
    assert better(known, "loss", 2, 97, 0) == known  # it came late
    known = better(known, "loss", 2, 100, 0)
    assert words(known) == "loss is inf since step 98 (rank 2 first)"
    assert better(known, "loss", 0, 100, 0) == {}


def test_a_later_generation_that_is_finite_ends_it_and_one_that_is_not_goes_on_with_it() -> None:
    known = after(seen(0, 98), seen(1, 98))

    assert better(known, "loss", 3, 5, 1) == {}
    assert words(worse(known, seen(0, 101, generation=1))) == words(known)
    again = worse(known, seen(1, 95, generation=1))
    assert words(again) == "loss is NaN since step 95 (rank 1 first)"
    assert again["loss"]["ranks"] == {"1": 95}


def test_one_that_was_finite_meanwhile_begins_anew() -> None:
    assert words(after(seen(0, 3), seen(0, 6))) == "loss is NaN since step 6 (rank 0 first)"


def test_several_losses_are_told_apart_and_the_first_step_of_training_counts() -> None:
    known = after(seen(0, 98), seen(0, 9_000, name="aux_loss", at=90))

    assert since(known) == 90
    assert since({}) is None
    assert words(known).split("; ") == [
        "loss is NaN since step 98 (rank 0 first)",
        "aux_loss is NaN since step 9000 (rank 0 first)",
    ]
