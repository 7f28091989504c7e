"""A small training that survives the loss of a rank; each rank writes down every loss it logs.

It goes on until it is told to stop. PACE is how long a step takes at least.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import torchloom as loom

OUT, PACE = Path(os.environ["OUT"]), float(os.environ.get("PACE", 0.05))
RANK = int(os.environ["RANK"])


class Numbers(Dataset[torch.Tensor]):
    """Samples that are the same whoever reads them."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


dist.init_process_group("gloo")
torch.manual_seed(3)
run = loom.init(project="shown")
model = run.wrap(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run.track(optimizer=optimizer)
ledger = os.open(OUT / f"rank-{RANK}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(ledger, (json.dumps({"pid": os.getpid()}) + "\n").encode())
print(f"rank {RANK} begins", flush=True)
for step in run.steps(run.loader(Numbers(), batch_size=4), epochs=1000):
    with step:
        loss = model(step.batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        os.write(ledger, (json.dumps([step.number, loss.item()]) + "\n").encode())
    time.sleep(PACE)
