"""Which change is taken back, and why another is not."""

from typing import Any

from torchloom.rules.control.command import Ack, Command, CommandEntry, CommandKind, Status
from torchloom.rules.control.undo import NoUndo, Undo, undo


def change(
    number: int, status: Status = Status.APPLIED, undo: str = "", **values: Any
) -> CommandEntry:
    """Return a change whose knobs were 0 before."""
    wishes = {name: {"value": v, "hold": False} for name, v in values.items()}
    if undo:
        wishes = {name: {**wish, "undo": undo} for name, wish in wishes.items()}
    before: Any = dict.fromkeys(values, 0) if len(values) > 1 else 0
    acks = {1: Ack(5, before), 3: Ack(5, None)} if status is Status.APPLIED else {}
    command = Command(f"c{number}", CommandKind.KNOB, wishes)
    return CommandEntry(command, number, status, step=5 * number, why="why", acks=acks)


def test_the_last_change_is_taken_back_then_the_one_before() -> None:
    audit = [
        change(1, lr=1),
        change(2, momentum=2),
        CommandEntry(Command("p", CommandKind.PAUSE), 3),
    ]

    assert undo(audit) == Undo("c2", {"momentum": 0})
    assert undo([*audit, change(4, undo="c2", momentum=0)]) == Undo("c1", {"lr": 0})
    assert undo(audit, "c1") == Undo("c1", {"lr": 0})


def test_several_knobs_go_back_together() -> None:
    assert undo([change(1, lr=1, momentum=2)]) == Undo("c1", {"lr": 0, "momentum": 0})


def test_an_undo_can_be_undone_and_then_the_change_counts_again() -> None:
    audit = [change(1, lr=1), change(2, undo="c1", lr=0)]

    assert undo(audit) == NoUndo("no change of knobs is in force")
    assert undo(audit, "c1") == NoUndo("change c1 is already undone")
    assert undo(audit, "c2") == Undo("c2", {"lr": 0})
    assert undo([*audit, change(3, undo="c2", lr=1)]) == Undo("c1", {"lr": 0})


def test_what_cannot_be_taken_back_is_said_in_words() -> None:
    audit = [
        change(1, lr=1),
        change(2, Status.REFUSED, lr=2),
        change(3, lr=3),
        change(4, Status.COMMITTED, temperature=4),
    ]

    assert undo([]) == NoUndo("no change of knobs is in force")
    assert undo(audit, "x") == NoUndo("no change of knobs has the id 'x'")
    assert undo(audit, "c1") == NoUndo(
        "lr was changed again by c3; undo that first, or set a value"
    )
    assert undo(audit, "c2") == NoUndo("change c2 had no effect: why")
    assert undo(audit, "c4") == NoUndo(
        "change c4 has not taken effect yet before step 20; undo it afterwards"
    )
