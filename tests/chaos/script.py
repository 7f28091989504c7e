"""A training that is struck while it runs; each rank also writes down what it has, by itself.

OUT has a file for each rank: step, digest of the parameters, samples. PACE seconds pass behind
each step until OUT has a file `quick`, so that a test has time to strike and need not wait.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import torchloom as loom

OUT, PACE = Path(os.environ["OUT"]), float(os.environ.get("PACE", "0"))
STEPS, EVERY = int(os.environ["STEPS"]), int(os.environ.get("EVERY", "20"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, EPOCHS = 4, 5


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples that know their number; each is drawn anew, as an augmentation does it."""

    def __len__(self) -> int:
        return STEPS * BATCH * WORLD // EPOCHS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        own = torch.Generator().manual_seed(index)
        sample = torch.randn(32, generator=own) + 0.1 * torch.randn(32)
        return sample, torch.randint(0, 10, (), generator=own), index


def digest(net: nn.Module) -> str:
    told = hashlib.sha256()
    for each in net.parameters():
        told.update(each.detach().numpy().tobytes())
    return told.hexdigest()[:20]


dist.init_process_group("gloo")
torch.manual_seed(7)
run = loom.init(project="chaos")
run.checkpointing(every_n_steps=EVERY, keep_last=4)
net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 10))
model = run.wrap(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
run.track(optimizer=optimizer)
book = os.open(OUT / f"rank-{RANK}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
is_quick = (OUT / "quick").exists

for step in run.steps(run.loader(Numbered(), batch_size=BATCH), epochs=EPOCHS):
    samples, targets, numbers = step.batch
    with step:
        loss = nn.functional.cross_entropy(model(samples), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        line = [step.number, digest(net), numbers.tolist()]
        os.write(book, json.dumps(line).encode() + b"\n")
    print(f"step {step.number}", flush=True)
    if PACE and not is_quick():
        time.sleep(PACE)
