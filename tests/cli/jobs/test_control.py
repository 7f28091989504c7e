"""Words to values, and outcomes of commands in words."""

from typing import Any

import pytest

from torchloom.cli.jobs.control import in_words, numbers, split, value_of
from torchloom.errors import UserError


def outcome(**changed: Any) -> dict[str, Any]:
    """Return a command as the weaver shows it: lr from 0.1 to 0.03 on four ranks."""
    ranks = [{"rank": rank, "state": "applied"} for rank in range(4)]
    return {
        "id": "c1",
        "kind": "knob",
        "payload": {"name": "lr", "value": 0.03, "hold": False},
        "state": "applied",
        "effective_step": 412,
        "before": 0.1,
        "after": 0.03,
        "asked_at": "2026-01-01T00:00:00.000+00:00",
        "ended_at": "2026-01-01T00:00:00.006+00:00",
        "ranks": ranks,
        **changed,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.03", 0.03),
        ("3e-2", 0.03),
        (".5", 0.5),
        ("7", 7),
        ("true", True),
        ("[0.9, 0.99]", [0.9, 0.99]),
        ('{"a": 1}', {"a": 1}),
        ("cosine", "cosine"),
        ('"7"', "7"),
    ],
)
def test_a_value_is_what_json_says_or_a_text(text: str, value: object) -> None:
    found = value_of(text)

    assert (found, type(found)) == (value, type(value))


def test_the_job_may_stand_anywhere_among_the_values() -> None:
    assert split(["lr=0.1", "train-1", "beta=2"]) == ("train-1", {"lr": 0.1, "beta": 2})
    assert split(["lr=a=b"]) == ("", {"lr": "a=b"})
    assert split([]) == ("", {})


@pytest.mark.parametrize("words", [["a", "b"], ["=3"], ["lr="], ["lr=1", "lr=2"]])
def test_words_that_mean_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError):
        split(words)


def test_a_change_is_told_in_one_line() -> None:
    assert in_words(outcome()) == ["lr 0.1 -> 0.03 at step 412 on ranks 0-3, acked in 6 ms"]


def test_several_changes_are_told_one_a_line() -> None:
    values = {"values": {"lr": 0.03, "momentum": 0.8}, "hold": True}
    before, after = {"lr": 0.1, "momentum": 0.9}, {"lr": 0.03, "momentum": 0.8}

    lines = in_words(outcome(payload=values, before=before, after=after))

    where = "at step 412 on ranks 0-3, acked in 6 ms, held"
    assert lines == [f"lr 0.1 -> 0.03 {where}", f"momentum 0.9 -> 0.8 {where}"]


def test_what_was_before_several_changes_may_be_unknown() -> None:
    values = {"values": {"lr": 0.03, "momentum": 0.8}, "hold": False}

    for before in (None, 0.1, {"lr": None}):
        lines = in_words(outcome(payload=values, before=before, after=None))
        assert [line.split(" at ")[0] for line in lines] == ["lr 0.03", "momentum 0.8"]


def test_what_is_decided_and_yet_to_come_is_not_said_to_be_done() -> None:
    coming = outcome(kind="stop_at", state="committed", ranks=[], ended_at=None)

    assert in_words(coming) == ["will stop at step 412"]


def test_a_pause_names_its_step_and_a_command_on_its_way_its_state() -> None:
    ranks = [{"rank": 2, "state": "applied"}]

    assert in_words(outcome(kind="pause", ranks=ranks)) == [
        "paused at step 412 on rank 2, acked in 6 ms"
    ]
    waiting = outcome(state="offered_again", ranks=[], effective_step=None, ended_at=None)
    assert in_words(waiting) == ["knob c1 is offered again"]


def test_ranks_are_written_as_ranges() -> None:
    assert numbers([7, 0, 1, 3, 2]) == "0-3,7"
    assert numbers([]) == ""
