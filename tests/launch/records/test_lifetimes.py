"""When a run that has ended may go on: what nobody can have meant is refused."""

import pytest

from torchloom.launch.records.resumption import (
    AlreadyComplete,
    Continuation,
    NoCheckpoint,
    NotResumable,
)


@pytest.mark.parametrize(
    ("asked", "is_complete", "newest"),
    [
        ({}, False, 40),
        ({"ranks": 2, "step": 20}, False, 40),
        ({"until": 80}, True, 40),
        ({"step": 20}, True, 40),
        ({"step": 20, "until": 30}, True, 40),
        ({"from_scratch": True}, False, None),
        ({"from_scratch": True, "until": 10}, True, None),
    ],
)
def test_what_says_enough_is_let_through(
    asked: dict[str, int], is_complete: bool, newest: int | None
) -> None:
    Continuation(**asked).check("job", is_complete, newest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "is_complete", "newest", "refusal", "words"),
    [
        ({}, False, None, NoCheckpoint, "resuming would start over; give --from-scratch"),
        ({"until": 80}, True, None, NoCheckpoint, "--from-scratch"),
        ({}, True, 40, AlreadyComplete, "--until STEP .* extends it, --from STEP"),
        ({"from_scratch": True}, True, None, AlreadyComplete, "--until STEP"),
        ({"from_scratch": True}, False, 40, NotResumable, "has a checkpoint of step 40"),
        ({"from_scratch": True, "step": 4}, False, None, NotResumable, "exclude each other"),
        ({"until": 40}, True, 40, NotResumable, "nothing to train: job resumes at step 40"),
        ({"step": 20, "until": 20}, True, 40, NotResumable, "resumes at step 20"),
    ],
)
def test_what_would_surprise_is_refused_with_the_remedy(
    asked: dict[str, int],
    is_complete: bool,
    newest: int | None,
    refusal: type[NotResumable],
    words: str,
) -> None:
    with pytest.raises(refusal, match=words):
        Continuation(**asked).check("job", is_complete, newest)  # type: ignore[arg-type]
