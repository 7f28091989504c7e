"""Names of checkpoints: the step as a number, the draft by its writer, a shard by its rank.

Names are read strictly: what these functions did not make is not a checkpoint, so no name from
outside reaches a path. Steps are compared as numbers; the names do not sort.
"""

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
LARGEST = 2**63 - 1  # of a step, a generation, a count

_NUMBER = "(0|[1-9][0-9]{0,18})"
_FOLDER = re.compile("ckpt_step_([0-9]{5,19})")
_DRAFT = re.compile(rf"(ckpt_step_[0-9]{{5,19}})\.g{_NUMBER}-{_NUMBER}")
_WRITER = re.compile(f"g{_NUMBER}-{_NUMBER}")
_SHARD = re.compile(rf"worker_{_NUMBER}\.pt")


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being written: its step, generation and attempt."""

    step: int
    generation: int
    attempt: int

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return draft_name(self.step, self.generation, self.attempt)

    @property
    def writer(self) -> str:
        """Return who writes it, as a name: `g7-2`."""
        return f"g{_counted(self.generation)}-{_counted(self.attempt)}"


def folder_name(step: int) -> str:
    """Return the name of the committed checkpoint of a step."""
    return f"ckpt_step_{_counted(step):05d}"


def draft_name(step: int, generation: int, attempt: int) -> str:
    """Return the name of the folder in which a checkpoint is written before it is committed."""
    return f"{folder_name(step)}.{Draft(step, generation, attempt).writer}"


def shard_name(rank: int) -> str:
    """Return the name of the file that one rank writes."""
    return f"worker_{_counted(rank)}.pt"


def step_of(name: str) -> int | None:
    """Return the step of a committed checkpoint's folder, or None for any other name."""
    found = _FOLDER.fullmatch(name)
    step = int(found[1]) if found else LARGEST + 1
    return step if step <= LARGEST and folder_name(step) == name else None


def draft_of(name: str) -> Draft | None:
    """Return the draft with this folder, or None for any other name."""
    found = _DRAFT.fullmatch(name)
    step = step_of(found[1]) if found else None
    if found is None or step is None:
        return None
    return _draft(step, found[2], found[3])


def writer_of(step: int, name: str) -> Draft | None:
    """Return the draft of a step with this writer (`g7-2`), or None for any other name."""
    found = _WRITER.fullmatch(name)
    return _draft(step, found[1], found[2]) if found else None


def rank_of(name: str) -> int | None:
    """Return the rank of a shard's file, or None for any other name."""
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= LARGEST else None


def _draft(step: int, generation: str, attempt: str) -> Draft | None:
    draft = Draft(step, int(generation), int(attempt))
    return draft if max(draft.generation, draft.attempt) <= LARGEST else None


def _counted(number: int) -> int:
    if not 0 <= number <= LARGEST:
        raise ValueError(f"not a count: {number}")
    return number
