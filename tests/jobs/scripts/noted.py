"""A dataset; the module also has each rank write down its tensors' digest after every step.

After HOLD steps a rank waits until the file `go` is there.
"""

import hashlib
import json
import os
import time

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

folder, rank = os.environ["OUT"], os.environ["RANK"]
file = open(f"{folder}/rank-{rank}", "a", buffering=1)  # noqa: SIM115
taken = 0


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def note(optimizer, *_):
    global taken
    found = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for each in (parameter, *(state[key] for key in sorted(state))):
                found.update(local(each).contiguous().numpy().tobytes())
    taken += 1
    file.write(json.dumps({"pid": os.getpid(), "digest": found.hexdigest()}) + "\n")
    while taken == int(os.environ["HOLD"]) and not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)


class Samples(torch.utils.data.Dataset):
    """Points around ten corners of a cube."""

    classes = 10

    def __len__(self):
        return 640

    def __getitem__(self, number):
        target = number % self.classes
        corner = torch.tensor([float(target >> bit & 1) for bit in range(4)])
        noise = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return corner + 0.1 * noise, target


def samples(hyperparameters):
    register_optimizer_step_post_hook(note)
    return Samples()
