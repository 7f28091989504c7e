"""A plain DDP loop over gloo that knows nothing of torchloom.

Each rank writes for itself, a line a step: step, its clock, the values the optimizer used in it and
a digest of the weights behind it. `CHANGES` writes changes into the program, as one would by hand.
At its end it writes how many collectives torch has counted, in C++, and how many groups there are.
"""

import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

KNOBS = ("lr", "momentum", "weight_decay")
changes = dict(json.loads(os.environ.get("CHANGES", "[]")))
steps = int(os.environ.get("STEPS", "1000000"))
pause = float(os.environ.get("PAUSE", "0"))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model = DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
used = {}


def look(one, args, kwargs):
    """Note what the step is about to use, from inside of it."""
    used.update({name: one.param_groups[0][name] for name in KNOBS})


optimizer.register_step_pre_hook(look)
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
for step in range(steps):
    optimizer.param_groups[0].update(changes.get(step, {}))
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step * 8 + rank))
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    weights = b"".join(p.detach().numpy().tobytes() for p in plain.parameters())
    row = [step, time.monotonic(), used, hashlib.blake2b(weights, digest_size=8).hexdigest()]
    os.write(out, json.dumps(row).encode() + b"\n")
    if pause:
        time.sleep(pause)
world = dist.distributed_c10d._world
made = {
    "groups": len(world.pg_map),
    "collectives": world.default_pg._get_sequence_number_for_group(),
}
with open(f"{os.environ['OUT']}/made-{rank}", "w") as file:
    json.dump(made, file)
