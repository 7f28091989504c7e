"""Replay a seed and print what happened: `python -m tests.rules.simulation SEED`.

`--many FIRST COUNT` runs so many seeds and prints what they found, for a program to read.
"""

import sys

from .campaign import several
from .checks import Broken
from .world import World


def replay(seed: int) -> int:
    """Print every event of a seed, and how it ended."""
    world = World(seed, is_traced=True)
    world.clock.note(world.setting)
    try:
        world.run()
        end = f"{world.record.phase} after {world.clock.count} events, {world.checks}"
    except Broken as broken:
        end = f"BROKEN: {broken}"
    print("\n".join(world.clock.lines))
    print(f"seed {seed}: {end}")
    return int(end.startswith("BROKEN"))


def main(words: list[str]) -> int:
    """Do what the command line says."""
    if words[:1] == ["--many"]:
        first, count = int(words[1]), int(words[2])
        print(several(range(first, first + count)).to_json())
        return 0
    return replay(int(words[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
