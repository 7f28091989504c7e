"""A rank with loader workers, forked children that train, and a spawned one."""

import json
import os
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset

from torchloom.worker.threadlet.threadlet import current


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, at):
        train(3)  # counts for nobody
        return torch.tensor([float(at), float(os.getpid())])


def train(steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(steps):
        optimizer.step()


torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()
for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
    assert (batch[:, 1] != os.getpid()).all()
if (pid := os.fork()) == 0:
    train(50)
    os._exit(0)
os.waitpid(pid, 0)
code = (
    "from torchloom.worker.threadlet import attach; from torchloom.worker.run import run\n"
    "attach.attach()\n"
    "for step in run.init().steps(50):\n"
    "    step.log(loss=1.0)\n"
)
subprocess.run([sys.executable, "-c", code], check=True)
train(4)
print(json.dumps({"pid": os.getpid()}))
current().close()  # a fork of the tests leaves without
