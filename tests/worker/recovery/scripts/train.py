"""A small training that is hurt where it is told to be, and writes down what it sees."""

import hashlib
import json
import os
import random
import signal
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

TOLD = json.loads(os.environ["TOLD"])
RANK, LIFE = int(os.environ["RANK"]), int(os.environ.get("LOOM_LIFE", "1"))
STEPS, BATCH = TOLD.get("steps", 12), 4
ledger = os.open(f"{os.environ['OUT']}/rank-{RANK}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
hurt = TOLD.get("hurt", {}).get(str(RANK), [])


def write(**facts):
    own = {"pid": os.getpid(), "life": LIFE, "generation": run.generation}
    os.write(ledger, (json.dumps(own | facts) + "\n").encode())


def hit(place, number):
    """Be hurt in the first life."""
    for where, step, kind in hurt:
        if LIFE == 1 and (where, step) == (place, number):
            if kind == "raise":
                raise ValueError(f"own in step {number}")
            os.kill(os.getpid(), getattr(signal, kind))


class Average:
    """Something that is tracked and is nobody else's: how often this rank went forth."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(16, 4), nn.Linear(8, 16)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.drop(self.norm(torch.relu(self.first(x)))))


dist.init_process_group("gloo")
run = loom.init(config={"temperature": 0.5})
torch.manual_seed(3 + RANK)
told = run.broadcast({"width": RANK, "row": torch.arange(3) + RANK})
average = Average()
net = Net()
model = run.wrap(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
ema = torch.optim.swa_utils.AveragedModel(net)
run.track(optimizer=optimizer, scheduler=scheduler, average=average, ema=ema)
if "every" in TOLD:
    run.checkpointing(every_n_steps=TOLD["every"])
rates = []
optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
data = torch.arange(STEPS * BATCH * 3 * 8, dtype=torch.float32).reshape(-1, 8).sin()
samples = torch.utils.data.TensorDataset(data)
if TOLD.get("loader") == "stock":
    sampler = torch.utils.data.DistributedSampler(samples, 3, RANK, seed=3)
    source = torch.utils.data.DataLoader(samples, BATCH, sampler=sampler)
elif TOLD.get("loader") == "generators":
    own = torch.Generator().manual_seed(RANK), numpy.random.default_rng(RANK), random.Random(RANK)
    run.track(torch_own=own[0], numpy_own=own[1], python_own=own[2])
    source = STEPS
else:
    source = run.loader(samples, batch_size=BATCH, num_workers=TOLD.get("workers", 0))
write(told=[told["width"], told["row"].tolist()])


def digest():
    told = hashlib.blake2b(digest_size=8)
    for each in (*net.parameters(), *net.buffers(), *ema.parameters(), *ema.buffers()):
        told.update(each.detach().numpy().tobytes())
    return told.hexdigest()


def wait_for(name):
    while not os.path.exists(f"{os.environ['OUT']}/{name}"):
        time.sleep(0.001)


def drawn(of_torch, of_numpy, of_python):
    """Return a batch that generators of the program's own have drawn."""
    x = torch.rand(BATCH, 8, generator=of_torch) + of_numpy.random() + of_python.random()
    return x.float()


def train():
    for step in run.steps(source):
        (x,) = (drawn(*own),) if source == STEPS else step.batch
        before = float(x.sum())
        with step:
            hit("begin", step.number)
            average.count += 1
            if TOLD.get("loader") != "stock":
                x.add_(1)  # in place: a batch is the program's own
            outputs = model(x)
            hit("forward", step.number)
            loss = outputs.pow(2).mean() * run.config.temperature
            loss.backward()
            hit("backward", step.number)
            optimizer.step()
            hit("optimizer", step.number)
            optimizer.zero_grad()
            ema.update_parameters(net)
            scheduler.step()
        if step.is_done:
            rate = [rates[-1], run.config.temperature]
            write(step=step.number, batch=before, digest=digest(), rate=rate, count=average.count)
        if step.number in TOLD.get("sections", []):
            with run.section("eval") as section:
                hit("section", step.number)
                total = torch.ones(())
                dist.all_reduce(total)
                write(section=step.number, total=float(total))
            write(section_done=section.is_done, number=step.number)
        if step.number == TOLD.get("gate", -1) and step.is_done:
            wait_for("go")
        if step.number == TOLD.get("leave", -1):
            if RANK != 0:
                wait_for("ended-0")
            break


for _ in range(TOLD.get("loops", 1)):
    train()
write(ended=run.applied)
if "leave" in TOLD:
    open(f"{os.environ['OUT']}/ended-{RANK}", "w").close()
    wait_for("released")  # the end of one rank may take away what another still receives
dist.destroy_process_group()
