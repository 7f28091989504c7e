"""A replica group of one rank under torchft, which knows nothing of torchloom.

Rank 0 begins, and discards one step. Rank 1 begins when rank 0 has taken some steps, and heals.
Both end some steps later, at the same one. Each writes to a file of its own: its steps with their
losses, whether they were committed, and how many replicas took part. It prints its weights.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

OUT, RANK = Path(os.environ["FILES"]), int(os.environ["RANK"])
LATE, DISCARDED, MORE = 6, 4, 8
EVERY = int(os.environ.get("EVERY", "1"))  # steps of the optimizer in one of the Manager


def taken(rank):
    path = OUT / f"steps-{rank}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def goes_on():
    """Tell whether the step that rank 1 has named, when it had healed, is not reached."""
    path = OUT / "end"
    end = int(path.read_text()) if path.exists() else 5 if EVERY > 1 else 1 << 60
    return manager.current_step() < end


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


address = OUT / "lighthouse"
if RANK == 0:
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
    (OUT / "address").write_text(lighthouse.address())
    (OUT / "address").rename(address)
wait_for(lambda: address.exists() and (RANK == 0 or taken(0) >= LATE))
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
parts = {"model": model, "optimizer": optimizer}
manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=lambda state: [parts[name].load_state_dict(state[name]) for name in parts],
    state_dict=lambda: {name: part.state_dict() for name, part in parts.items()},
    replica_id=f"replica_{RANK}",
    store_addr="127.0.0.1",
    store_port=store.port,
    rank=0,
    world_size=1,
    lighthouse_addr=address.read_text(),
    hostname="127.0.0.1",
    use_async_quorum=EVERY == 1,
)
replica = DistributedDataParallel(manager, model) if EVERY == 1 else model
outer = OptimizerWrapper(manager, optimizer)
x = torch.randn(8, 4)
is_discarded = False
with (OUT / f"steps-{RANK}").open("a") as file:
    while goes_on():
        outer.zero_grad()
        for _ in range(EVERY - 1):
            model(x).pow(2).mean().backward()
            optimizer.step()
        loss = replica(x).pow(2).mean()
        loss.backward()
        before = manager.current_step()
        if EVERY == 1 and RANK == 0 and before == DISCARDED and not is_discarded:
            is_discarded = True
            manager.report_error(RuntimeError("a step that is discarded"))
        outer.step()
        is_committed = manager.current_step() > before
        step = manager.current_step() - is_committed
        count = manager.num_participants()
        file.write(json.dumps([step, loss.item(), is_committed, count]) + "\n")
        file.flush()
        time.sleep(0.02)
        if RANK == 1 and not (OUT / "end").exists():
            (OUT / "named").write_text(str(step + MORE))
            (OUT / "named").rename(OUT / "end")
manager.shutdown(wait=False)
print(json.dumps(model.weight.flatten().tolist()))
