"""A plain DDP training over epochs, which `loom convert` is given; it may be hurt once.

OUT has a file for each rank: a line behind each batch, and one at the end. HIT names rank, epoch,
batch and place of a SIGKILL; batch -1 is what follows an epoch.
"""

import hashlib
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OUT, RANK = os.environ["OUT"], int(os.environ["RANK"])
EPOCHS = 3
now = {"epoch": 0, "batch": 0}


def hurt(place):
    """End this process here, if that is meant and has not happened."""
    here = f"{RANK}:{now['epoch']}:{now['batch']}:{place}"
    if os.environ.get("HIT") == here and not os.path.exists(f"{OUT}/hit"):
        while not os.path.exists(f"{OUT}/go"):  # until a loss means no restart
            time.sleep(0.005)
        open(f"{OUT}/hit", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.2)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        hurt("forward")
        return self.last(x)


def digest(tensors):
    """Return what no other tensors have."""
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().numpy().tobytes())
    return found.hexdigest()[:20]


def trained(model, optimizer):
    """Return a digest of weights and momenta, and one of the model's statistics."""
    states = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
    kept = [state[name] for state in states for name in sorted(state) if state[name] is not None]
    return {"weights": digest([*model.parameters(), *kept]), "own": digest(model.buffers())}


def write(**facts):
    """Append a line in one piece."""
    file = os.open(f"{OUT}/rank-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, (json.dumps({"pid": os.getpid(), **facts}) + "\n").encode())
    os.close(file)


def evaluate(model, data):
    """Return the accuracy over the samples of all ranks."""
    model.eval()
    x, y = data[RANK::2]
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    hurt("evaluation")
    dist.all_reduce(right)
    model.train()
    return right.item() / len(data)


def main():
    torch.set_num_threads(1)
    write(begun=True)
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()  # the model, which must not outlive the group, is gone
    os._exit(0)


def train():
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (100,))
    dataset = TensorDataset(torch.randn(4, 16)[labels] + torch.randn(100, 16), labels)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    best = 0.0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            now.update(epoch=epoch, batch=i)
            hurt("begin")
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            hurt("backward")
            optimizer.step()
            total += loss.item()
            write(epoch=epoch, batch=i, lr=scheduler.get_last_lr(), **trained(model, optimizer))
        now["batch"] = -1
        hurt("end")
        accuracy = evaluate(model, dataset)
        if accuracy > best and RANK == 0:
            best = accuracy
            torch.save(model.state_dict(), f"{OUT}/best.pt")
        scheduler.step()
    write(final=trained(model, optimizer)["weights"], lr=scheduler.get_last_lr())


if __name__ == "__main__":
    main()
