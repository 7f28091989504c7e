"""The decisions that the simulation drives, as values: a planted bug replaces one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchloom.rules.membership import election, faults, live_recovery


@dataclass(frozen=True)
class Laws:
    """What the weaver, agents, ranks and keepers decide by."""

    step: Callable[[Any, Any], Any] = live_recovery.step
    admit: Callable[[Any, int, int], Any] = faults.admit
    whose: Callable[[Any, float, bool], Any] = faults.fault_owner
    slot_of: Callable[[int], int] = election.slot_of  # where a page is written
    read_slot_of: Callable[[int], int] = election.slot_of
