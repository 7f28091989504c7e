"""A training by a strategy; each rank writes down its own parts' digests, in plain torch."""

import hashlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import torchloom as loom
from torchloom.worker.threadlet.threadlet import current

told = json.loads(os.environ["TOLD"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(7)
PLAN = {"0": "colwise", "2": "rowwise", "4": "colwise", "6": "rowwise"}


def layers():
    """Layers of sizes that four ranks cannot share evenly, a buffer, and dropout."""
    sizes = ((6, 10), (10, 6), (6, 14), (14, 4))
    found = []
    for inner, outer in sizes:
        found += [nn.Linear(inner, outer), nn.Tanh()]
    return nn.Sequential(*found, nn.Dropout(told.get("dropout", 0.1)))


run = loom.init()
net = layers()
net[5].register_buffer("seen", torch.zeros(3))
own = told.get("own", "")
if own:  # the program divides the model itself
    fully_shard(net)
    model = run.wrap(net) if own == "wrap" else net
else:
    model = run.wrap(net, **told["wrap"])
make = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
optimizer = make[told.get("optimizer", "adamw")](model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
run.track(optimizer=optimizer, scheduler=scheduler)
if own == "track":
    run.track(net=net)
if "checkpointing" in told:
    run.checkpointing(**told["checkpointing"])
samples = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
loader = run.loader(samples, batch_size=told.get("batch_size", 4), drop_last=True)
is_pipeline = hasattr(model, "stages")
seen = dict(model.named_buffers()).get("5.seen", torch.zeros(3))


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def everything():
    """Yield each tensor of the training by name."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    names = {}
    for name, each in model.named_parameters():
        names[id(each)] = name
        yield name, each
    for name, each in model.named_buffers():
        yield name, each
    for group in optimizer.param_groups:
        for each in group["params"]:
            for key, value in sorted(optimizer.state.get(each, {}).items()):
                yield f"{names[id(each)]} {key}", value


@torch.no_grad()
def digest():
    found = b"".join(local(each).contiguous().numpy().tobytes() for _, each in everything())
    return hashlib.sha256(found).hexdigest()


@torch.no_grad()
def gather(name):
    """Keep all whole tensors that this rank has, as plain torch gathers them."""
    found = {key: whole(each).clone() for key, each in everything()}
    torch.save(found, f"{os.environ['OUT']}/{name}-{rank}.pt")


def loss_of(outputs, _):
    return outputs.pow(2).mean()


out = open(f"{os.environ['OUT']}/rank-{rank}", "w", buffering=1)  # noqa: SIM115
for step in run.steps(loader, epochs=told.get("epochs", 2)):
    with step:
        if step.number == run.resumed_from:
            gather("resumed")
        if told.get("idle"):
            loss = 0.0
        elif is_pipeline:
            loss, _ = model.step(step.batch, step.batch, loss_of)
        else:
            loss = loss_of(model(step.batch), None)
            loss.backward()
        if not told.get("idle"):
            seen += step.number
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        step.log(loss=loss)
        if step.number in told.get("evaluates", []):
            model.eval()
            model(step.batch)
            model.train()
        if step.number in told.get("asks", []):
            run.checkpoint()
    row = {"step": step.number, "digest": digest(), "lr": scheduler.get_last_lr()[0]}
    out.write(json.dumps({**row, "loss": float(loss)}) + "\n")
    if step.number == told.get("leave", -1):
        break
gather("end")
print(json.dumps({"resumed": run.resumed, "from": run.resumed_from, "applied": run.applied}))
out.close()
current().close()  # a fork of the tests leaves without
if world > 1:
    dist.destroy_process_group()
