"""A rank without torch that saves: told a step by a file, it writes its shard by hand and says so.

Words: the agent's socket, the job, the rank, how many there are, the root of checkpoints, a folder
in which a file `save-STEP` asks for one.
"""

import os
import sys
import time
from pathlib import Path

from blake3 import blake3
from fake_rank import PAUSE, Rank  # beside this file

from torchloom.bus.progress_page import ProgressPage
from torchloom.messages.plane import VERSION, Event, Head


def write(root: Path, step: int, rank: int) -> tuple[int, str]:
    """Write a shard into the draft of a step; return its size and hash."""
    text = f"weights of rank {rank} before step {step}\n".encode() * 1000
    draft = root / f"ckpt_step_{step:05d}.g0-0"
    draft.mkdir(parents=True, exist_ok=True)
    with open(draft / f"worker_{rank}.pt", "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return len(text), f"blake3:{blake3(text).hexdigest()}"


def main(address: str, job: str, number: str, world: str, root: str, folder: str) -> None:
    rank, asked = int(number), Path(folder)
    me = Rank(
        address,
        Head(VERSION, job, 0, rank, f"life-{os.getpid()}"),
        ProgressPage.open(asked / f"page-{rank}"),
    )
    done: set[int] = set()
    while not (asked / "enough").exists() or not me.done():
        for step in sorted(int(path.name[5:]) for path in asked.glob("save-*")):
            if step not in done:
                done.add(step)
                size, content = write(Path(root), step, rank)
                whose = {"step": step, "generation": 0, "attempt": 0, "rank": rank}
                file = {"name": f"worker_{rank}.pt", "size": size, "hash": content}
                facts = {**whose, **file, "world_size": int(world), "metrics": {"loss": 1 / step}}
                me.say(Event(me._head, "checkpoint_shard", step, time.time(), facts))
        me.turn()
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
