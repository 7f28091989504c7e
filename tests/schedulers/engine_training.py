"""A training that is hurt, changed and moved; each rank writes down what it has done."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import torchloom as loom

RANK, OUT = int(os.environ["RANK"]), Path(os.environ["OUT"])


class Data(torch.utils.data.Dataset):
    """Samples that tell which one they are."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 100_000)


dist.init_process_group("gloo")
torch.manual_seed(3)
run = loom.init()
model = run.wrap(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run.track(optimizer=optimizer)
used = []
optimizer.register_step_pre_hook(lambda one, *_: used.append(one.param_groups[0]["lr"]))
ledger = os.open(OUT / f"rank-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
told = {
    "pid": os.getpid(),
    "host": os.uname().nodename,
    "resume": os.environ.get("LOOM_RESUME", ""),
    "restarts": os.environ.get("SLURM_RESTART_COUNT", "0"),
}
os.write(ledger, json.dumps(told).encode() + b"\n")
for step in run.steps(run.loader(Data(), batch_size=2), epochs=1):
    with step:
        loss = model(step.batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
    os.write(ledger, json.dumps([step.number, used[-1]]).encode() + b"\n")
    time.sleep(0.02)
