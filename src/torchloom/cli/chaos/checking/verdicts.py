"""What a judge may say of a promise: it held, it was broken by this fact, or nobody can know."""

from dataclasses import dataclass
from enum import StrEnum

PROMISES = {
    "I1": "a committed checkpoint is whole and readable",
    "I2": "the latest checkpoint never goes back, none is half",
    "I3": "each step is applied once in the run that counts",
    "I4": "the bits are those of an undisturbed run",
    "I5": "the job went along edges that exist, each noted",
    "I6": "a rank has one life at a time",
    "I7": "what is said twice counts once",
    "I8": "nothing is left behind",
    "I9": "nothing grows without limit",
    "I10": "answers are well-formed, no secret is in a log",
}


class Answer(StrEnum):
    """The three things that can be said."""

    HELD = "held"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one promise."""

    name: str
    answer: Answer
    fact: str = ""


def held(name: str, fact: str = "") -> Verdict:
    """Say that a promise was kept, and how far that is known where there is a limit to it."""
    return Verdict(name, Answer.HELD, fact)


def broken(name: str, fact: str) -> Verdict:
    """Say that a promise was broken, and by what."""
    return Verdict(name, Answer.BROKEN, fact)


def unknown(name: str, why: str) -> Verdict:
    """Say that nobody can know, and why."""
    return Verdict(name, Answer.UNKNOWN, why)


def first(name: str, *facts: str) -> Verdict:
    """Say that a promise was broken by the first of some facts that is one; else it held."""
    found = next(filter(None, facts), "")
    return broken(name, found) if found else held(name)
