"""Deal the samples of an epoch to ranks, block by block: pure arithmetic.

A position is how many samples of the epoch have been dealt, whoever got them. So ranks that go on
in another number take up the rest of the epoch as it is.
"""

from collections.abc import Iterator

Block = tuple[int, int]  # where it begins and ends in the epoch's order


def blocks(total: int, start: int, world: int, size: int, drop_last: bool) -> Iterator[Block]:
    """Yield what all ranks take together in each step, from a position to the epoch's end.

    What is left at the end is dealt as a smaller block; if it is too little for every rank to have
    some, it is added to the block before.
    """
    whole = world * size
    while total - start >= whole:
        end = start + whole
        rest = total - end
        if not drop_last and 0 < rest < world:
            end = total
        yield start, end
        start = end
    if start < total and not drop_last:
        yield start, total


def count(total: int, world: int, size: int, drop_last: bool) -> int:
    """Return how many steps an epoch has."""
    full, rest = divmod(total, world * size)
    if drop_last or (full and rest < world):
        return full
    return full + (rest > 0)


def share(block: Block, rank: int, world: int) -> range:
    """Return a rank's places in a block: consecutive ones, as many as anybody else's or one more.

    Only if a run goes on with more ranks than samples are left does a rank get one that another
    has too, since each must have some.
    """
    begin, end = block
    here = end - begin
    if here < world:
        at = begin + rank % here
        return range(at, at + 1)
    return range(begin + here * rank // world, begin + here * (rank + 1) // world)
