"""A small training that says what it is about to do, so that a test can kill it right there."""

import os
import time

folder, rank = os.environ["PHASES"], os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
said = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def say(phase: str) -> None:
    os.write(said, f"{attempt} {phase} {os.getpid()}\n".encode())


say("import")
from datetime import timedelta  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

torch.set_num_threads(1)
say("init")
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(8, 256)
enough = torch.zeros(1)
while not enough.item():
    say("step")
    loss = model(batch).square().mean()
    say("allreduce")
    loss.backward()
    say("optimizer")
    optimizer.step()
    optimizer.zero_grad()
    enough[0] = any(os.path.exists(f"{folder}/enough{which}") for which in ("", f"-{attempt}"))
    dist.broadcast(enough, 0)
    time.sleep(0.002)
say("teardown")
dist.barrier()
dist.destroy_process_group()
say("done")
