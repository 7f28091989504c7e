"""What the numbers mean that NVIDIA's driver reports errors by: whose fault, and what is left.

The meanings are those of NVIDIA's catalog of Xid errors; what its workflows answer with a reset of
the device or the host counts as lost, what they answer with a restart of the program as the app's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchloom.rules.drmap import DeviceState


class Blame(StrEnum):
    """Whom an error concerns."""

    LOST = "lost"  # nothing more can be computed there before a reset
    DEGRADED = "degraded"  # it works, and is to be left soon
    APP = "app"  # what ran there did something wrong; the device is well
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error says of the device."""

    blame: Blame
    words: str

    @property
    def state(self) -> DeviceState | None:
        """The state that the device is in now; none where the error is not about it."""
        return _STATES.get(self.blame)


_STATES = {Blame.LOST: DeviceState.FAILED, Blame.DEGRADED: DeviceState.DRAINING}
_LOST = {
    46: "the GPU stopped processing",
    62: "its micro-controller halted",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error: whatever ran there may be wrong",
    109: "a context switch timed out",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an ECC error that could not be recovered",
    143: "the GPU could not be initialised",
}
_DEGRADED = {
    48: "a double bit ECC error",
    63: "a memory row is to be remapped at the next reset",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    92: "many single bit ECC errors",
    94: "a contained memory error: the program that had the memory is ended",
    121: "an error of the link between chips",
}
_APP = {
    8: "a program's work stopped the GPU",
    11: "a broken stream of commands",
    13: "an exception in a program's kernel",
    31: "a program used memory that is not its own",
    32: "a broken stream of commands",
    43: "a program's work was reset",
    45: "what was left of a program was cleared away",
    68: "an exception in the video processor",
    69: "an exception in a program's graphics class",
}
MEANINGS: Mapping[int, Meaning] = {
    **{number: Meaning(Blame.LOST, words) for number, words in _LOST.items()},
    **{number: Meaning(Blame.DEGRADED, words) for number, words in _DEGRADED.items()},
    **{number: Meaning(Blame.APP, words) for number, words in _APP.items()},
}


def meaning_of(number: int) -> Meaning:
    """Return what an error means; of one that is not in the table nothing is concluded."""
    return MEANINGS.get(number, Meaning(Blame.UNKNOWN, "not an error that is known here"))


def xid_reason(number: int) -> str:
    """Return the reason as machines match it: `xid_79`."""
    return f"xid_{number}"
