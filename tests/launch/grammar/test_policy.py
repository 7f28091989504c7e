"""A policy is read as it is written, or refused with what one may write."""

import pytest

from torchloom.launch.grammar.values import (
    ON_LOSS,
    RECOVERIES,
    BadFlagValue,
    in_words,
    parse_policy,
    policy,
)
from torchloom.rules.response import LossRecovery, OnLoss


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", {}),
        ("restart", {"recovery": "restart"}),
        ("nan=fail", {"on_loss": "fail"}),
        ("shrink, min=2,nan=notify", {"recovery": "shrink", "min_groups": 2, "on_loss": "notify"}),
    ],
)
def test_words_are_wishes_and_wishes_words(said: str, meant: dict[str, object]) -> None:
    assert parse_policy(said) == meant
    assert in_words(parse_policy(said)) == said.replace(" ", "")


@pytest.mark.parametrize(
    "said",
    ["again", "restart,fail", "nan", "nan=live", "min=2", "shrink,min=0", "shrink,min=x", "live=1"],
)
def test_what_makes_no_sense_is_refused(said: str) -> None:
    with pytest.raises(BadFlagValue, match="--policy"):
        policy("--policy", said)


def test_the_words_are_those_that_the_rules_know() -> None:
    assert (tuple(LossRecovery), tuple(OnLoss)) == (RECOVERIES, ON_LOSS)
