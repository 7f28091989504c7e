"""A program of several ranks with its arguments in the config; a step moves its weight by the lr.

Each rank writes for itself, a line a step: step, its clock, what its config shows, its weight after
it. `MEMBERS` of them are forked by the first one, as launchers inside programs do it; with `ALONE`
that one does not train itself. `MEET_AS` is its rank among `MEET` processes of one app.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=400)
args = parser.parse_args()
members, alone = int(os.environ.get("MEMBERS", "1")), "ALONE" in os.environ
rank = int(os.environ.get("MEET_AS") or os.environ["RANK"])
world = int(os.environ.get("MEET") or os.environ["WORLD_SIZE"]) * members
first = 0 if alone else 1
for number in range(first, members):
    if os.fork() == 0:
        rank, first = number, -1
        break
if alone and first == 0:
    os.wait()
    raise SystemExit
meeting = f"file://{os.environ['OUT']}/meeting" if members > 1 or "MEET" in os.environ else "env://"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
weight = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(weight.weight)
model = DistributedDataParallel(weight)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
run = None
if first >= 0:
    from torchloom.worker.run import run as loom

    replica = os.environ.get("REPLICA", "")
    run = loom.init("argued", config=vars(args), replica=replica)
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
step = 0
while True:
    model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = run.config["lr"] if run is not None else None
    row = [step, time.monotonic(), {"lr": shown}, repr(weight.weight.item())]
    os.write(out, json.dumps(row).encode() + b"\n")
    step += 1
    time.sleep(0.005)
