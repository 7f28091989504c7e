"""Conditions on metrics are read as people write them; what is none is refused with an example."""

import pytest

from torchloom.weaver.runs.search import BadCondition, condition

METRICS = {
    "loss": {"last": 0.25, "best": 0.2, "best_step": 5},
    "eval/accuracy": {"last": "nan", "best": 0.9, "best_step": 3},
    "odd": {"last": "nan", "best": None, "best_step": None},
}


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("loss<0.3", True),
        ("loss < 0.25", False),
        ("loss<=0.25", True),
        ("loss=0.25", True),
        ("loss==0.25", True),
        ("loss!=0.25", False),
        ("best:loss<=0.2", True),
        ("last:loss>1e-3", True),
        ("best:eval/accuracy>0.8", True),
        ("eval/accuracy>0.8", False),  # what is no number is not more than any
        ("odd<1", False),
        ("best:odd<1", False),
        ("missing<1", False),
        ("missing!=1", False),
    ],
)
def test_a_condition_holds_or_does_not(words: str, fits: bool) -> None:
    assert condition(words).fits(METRICS) is fits


@pytest.mark.parametrize(
    "words", ["", "loss", "<3", "loss<", "loss<x", "loss<<3", "a<1<2", " " * 9999]
)
def test_what_is_no_condition_is_refused(words: str) -> None:
    with pytest.raises(BadCondition, match=r"write loss<0\.3 or best:accuracy>=0\.9"):
        condition(words)
