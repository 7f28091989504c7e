"""A small training that says what it is about to do and lingers there, so that a test can hit it.

Where all ranks meet, one of them is late: the others are then really inside, and wait.
"""

import os
import time

folder, rank = os.environ["PHASES"], os.environ["RANK"]
attempt, world = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["WORLD_SIZE"])
said = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def say(phase: str) -> None:
    os.write(said, f"{attempt} {phase} {os.getpid()} {time.monotonic()}\n".encode())


def linger(*_: object) -> None:
    time.sleep(float(os.environ["LINGER"]))


def meet(phase: str) -> None:
    """Say that all are to meet; whoever is late goes there when the others have waited."""
    with open(f"{folder}/late") as late:
        if late.read() != rank:
            say(phase)
            return
    say("late")
    while not all(waits(other, phase) for other in range(world) if str(other) != rank):
        time.sleep(0.002)
    linger()


def waits(other: int, phase: str) -> bool:
    try:
        with open(f"{folder}/{other}") as file:
            words = file.read().rpartition("\n")[0].rpartition("\n")[2].split()
    except FileNotFoundError:
        return False
    return words[:2] in ([attempt, phase], [attempt, "late"])


say("import")
from datetime import timedelta  # noqa: E402

import torch  # noqa: E402

linger()
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

torch.set_num_threads(1)
meet("init")
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_pre_hook(linger)  # that is inside its step
batch = torch.ones(8, 256)
enough = torch.zeros(1)
say("first_step")
linger()
while not enough.item():
    loss = model(batch).square().mean()
    meet("allreduce")
    loss.backward()
    say("optimizer")
    optimizer.step()
    optimizer.zero_grad()
    say("step")
    enough[0] = any(os.path.exists(f"{folder}/enough{which}") for which in ("", f"-{attempt}"))
    dist.broadcast(enough, 0)
meet("teardown")
dist.barrier()
linger()  # until torch's own thread has let go of that, too: it cannot once the interpreter goes
dist.destroy_process_group()
say("done")
