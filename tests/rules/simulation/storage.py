"""Checkpoints: parts that ranks write in the background, and the commit that a fence may refuse."""

from .model import Part


class Storage:
    """What was written, by step and generation, and what of it was committed."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.drafts: dict[tuple[int, int], dict[int, Part]] = {}
        self.committed: dict[int, dict[int, Part]] = {}
        self.fence = -1

    def write(self, step: int, generation: int, rank: int, part: Part) -> bool:
        """Take one part; with all of them the checkpoint is committed. Return whether it was."""
        draft = self.drafts.setdefault((step, generation), {})
        draft[rank] = part
        is_whole = len(draft) == self.ranks and generation >= self.fence
        if is_whole and step not in self.committed:
            self.committed[step] = dict(draft)
            return True
        return False

    def seal(self, generation: int) -> int | None:
        self.fence = max(self.fence, generation)
        return self.latest()

    def latest(self) -> int | None:
        return max(self.committed, default=None)
