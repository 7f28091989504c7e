"""A training that is hurt in the middle; each rank writes down what it is, and what it has done.

MODEL: mlp (SGD with momentum), cnn (dropout, BatchNorm, AdamW, cosine), gpt (dropout, AMP scaler,
gradients added up within a step). Layers are registered in another order than they are used in.
OUT has a ledger for each rank: a line at its start, and one at the end of each step.

HIT is a list of `rank:step:place:kind`, parted by plus signs. Kinds: SIGKILL, SIGSTOP, raise (each
once: a file made by O_EXCL says that it was), raises (every time). Those of one step and place
happen together. Places:

data        while a sample of the step is read
forward     between two layers
backward    before any gradient is there
allreduce   when the first gradients are being added up and others are not there yet
behind      all others have applied the step
ahead       no other has applied the step
optimizer   when some parameters have been changed and others have not
after       behind the step
checkpoint  in the step behind a checkpoint, while that is written
recovery    not in a step: so many milliseconds after the hit before it in the list; if that was
            of the same rank, in the life after it
"""

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import torchloom as loom

MODEL, OUT = os.environ.get("MODEL", "mlp"), Path(os.environ["OUT"])
SAMPLES, EPOCHS = int(os.environ.get("SAMPLES", 96)), int(os.environ.get("EPOCHS", 5))
EVERY, PACE = int(os.environ.get("EVERY", 5)), float(os.environ.get("PACE", 0))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 4
PATIENCE = 10.0  # seconds
GATE = 1  # behind this step ranks that are to be hurt wait for a file `go`
HITS = [word.split(":") for word in os.environ.get("HIT", "").split("+") if word]
now = {"step": 0}  # that is under way, or comes next


# What hurts.


def mark(number: int) -> Path:
    return OUT / f"hit-{number}"


def wait(*paths: Path, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.001)


def hit(place: str) -> None:
    """Be hurt here, if that is meant and has not happened."""
    for number, (rank, step, where, kind) in enumerate(HITS):
        if (int(rank), int(step), where) == (RANK, now["step"], place):
            strike(number, kind)


def strike(number: int, kind: str) -> None:
    if kind == "raises":
        raise RuntimeError("this step cannot be done")
    if mark(number).exists():
        return
    together = [other for other, its in enumerate(HITS) if its[1:3] == HITS[number][1:3]]
    if HITS[number][2] != "recovery":
        OUT.joinpath(f"ready-{number}").touch()
        wait(*(OUT / f"ready-{other}" for other in together))
    try:
        os.close(os.open(mark(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    mark(number).write_text(f"{time.time_ns()} {os.getpid()}")
    if kind == "raise":
        raise RuntimeError("hurt once")
    os.kill(os.getpid(), getattr(signal, kind))


def later(number: int) -> None:
    """Be hurt so many milliseconds after another hit."""
    wait(mark(number - 1), seconds=1e9)
    time.sleep(int(HITS[number][1]) / 1000)
    strike(number, HITS[number][3])


def hold(*_: Any) -> None:
    """Before a step is applied: wait for whoever is to be hurt first, or until all others have."""
    for number, (rank, step, where, _) in enumerate(HITS):
        if int(step) != now["step"] or mark(number).exists():
            continue
        if where == "ahead" and not is_hurt("ahead"):
            wait(mark(number))
            time.sleep(0.02)  # the word of it may come now
        if where == "behind" and int(rank) == RANK:
            others = [other for other in range(WORLD) if not is_hurt("behind", other)]
            wait(*(OUT / f"applied-{other}-{step}" for other in others))
            time.sleep(0.002)
            hit("behind")


def while_it_is_saved() -> None:
    """Be hurt when the checkpoint before this step is being written."""
    if is_hurt("checkpoint"):
        name, deadline = f"ckpt_step_{now['step']:05d}.*", time.monotonic() + 0.2
        folder = Path(os.environ.get("LOOM_CHECKPOINT_ROOT", OUT))
        while not list(folder.glob(name)) and time.monotonic() < deadline:
            time.sleep(0.001)
        hit("checkpoint")


def is_hurt(place: str, rank: int = RANK) -> bool:
    return any(its[:3] == [str(rank), str(now["step"]), place] for its in HITS)


class Hurt:
    """An optimizer of two groups; between them it may be hurt."""

    def _init_group(self, group: Any, *rest: Any, **more: Any) -> Any:
        if group is self.param_groups[-1]:  # type: ignore[attr-defined]
            hit("optimizer")
        return super()._init_group(group, *rest, **more)  # type: ignore[misc]


class Sgd(Hurt, torch.optim.SGD):
    pass


class AdamW(Hurt, torch.optim.AdamW):
    pass


# What is trained.


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples that know their number; each is drawn anew, as an augmentation does it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        hit("data")
        own = torch.Generator().manual_seed(index)
        if MODEL == "gpt":
            tokens = torch.randint(0, 32, (17,), generator=own)
            return tokens[:-1], tokens[1:], index
        size = (1, 8, 8) if MODEL == "cnn" else (32,)
        sample = torch.randn(size, generator=own) + 0.1 * torch.randn(size)
        return sample, torch.randint(0, 10, (), generator=own), index


class Layers(nn.Module):
    """Layers that are registered from the last to the first."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.count = len(layers)
        for number in reversed(range(self.count)):
            self.add_module(str(number), layers[number])

    def forward(self, found: Tensor) -> Tensor:
        for number in range(self.count):
            if number == self.count - 1:
                hit("forward")
            found = self.get_submodule(str(number))(found)
        return found


def network() -> Layers:
    if MODEL == "gpt":
        blocks = [
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(2)
        ]
        return Layers(nn.Embedding(32, 32), *blocks, nn.Linear(32, 32))
    if MODEL == "cnn":
        body = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        return Layers(*body, nn.Dropout(0.3), nn.Linear(512, 10))
    return Layers(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def digest(tensors: Any) -> str:
    told = hashlib.sha256()
    for each in tensors:
        told.update(each.detach().numpy().tobytes())
    return told.hexdigest()[:20]


def kept(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer, in an order that is always the same."""
    states = (optimizer.state[p] for group in optimizer.param_groups for p in group["params"])
    return [state[name] for state in states for name in sorted(state)]


# What is written down.


def started() -> int:
    """Return when this process began, as the kernel says: ticks since the machine did."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


ledger = os.open(OUT / f"rank-{RANK}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
token = os.urandom(8).hex()  # made once in the life of a process


def write(**facts: Any) -> None:
    own = {"pid": os.getpid(), "started": started(), "token": token}
    own["attempt"] = os.environ.get("LOOM_ATTEMPT", "0")
    os.write(ledger, (json.dumps(own | facts) + "\n").encode())


write(main=__name__, time=time.time())
for number, its in enumerate(HITS):
    is_mine = its[0] == str(RANK) and its[2] == "recovery"
    if is_mine and (HITS[number - 1][0] != its[0] or mark(number - 1).exists()):
        threading.Thread(target=later, args=(number,), daemon=True).start()

dist.init_process_group("gloo")
torch.manual_seed(7)
run = loom.init(project="live")
run.checkpointing(every_n_steps=EVERY, keep_last=1000)
net = network()
compression = json.loads(os.environ.get("COMPRESSION", "{}"))
model = run.wrap(net, compression=compression, bucket_cap_mb=0.004)
parameters = list(net.parameters())  # of the last layers first
halves = [{"params": parameters[:2]}, {"params": parameters[2:]}]
optimizer: torch.optim.Optimizer
optimizer = Sgd(halves, lr=0.05, momentum=0.9) if MODEL == "mlp" else AdamW(halves, lr=0.003)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7, enabled=MODEL == "gpt")
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60) if MODEL == "cnn" else None
run.track(optimizer=optimizer, scaler=scaler, **({"scheduler": scheduler} if scheduler else {}))
rates = [0.0]  # what the last step used
optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
optimizer.register_step_pre_hook(hold)
parameters[-1].register_post_accumulate_grad_hook(lambda _: hit("allreduce"))

parts = [slice(0, None, 2), slice(1, None, 2)] if MODEL == "gpt" else [slice(None)]


def learn(samples: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=MODEL == "gpt"):
        outputs = model(samples)
        loss = nn.functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())
    outputs.register_hook(lambda _: hit("backward"))
    scaler.scale(loss / len(parts)).backward()
    return loss


for step in run.steps(run.loader(Numbered(), batch_size=BATCH), epochs=EPOCHS):
    now["step"] = step.number
    samples, targets, numbers = step.batch
    with step:
        while_it_is_saved()
        for part in parts[:-1]:
            with model.no_sync():
                learn(samples[part], targets[part])
        loss = learn(samples[parts[-1]], targets[parts[-1]])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        step.log(loss=loss)
        write(
            generation=int(getattr(run, "generation", os.environ.get("LOOM_GENERATION", "0"))),
            step=step.number,
            digest=digest([*net.parameters(), *kept(optimizer)]),
            own=digest(net.buffers()),
            epoch=step.epoch,
            samples=numbers.tolist(),
            rate=rates[-1],
            time=time.time(),
        )
        if HITS:
            (OUT / f"applied-{RANK}-{step.number}").touch()
    for place in ("ahead", "after"):
        hit(place)
    if HITS and step.number == GATE:
        wait(OUT / "go", seconds=6 * PATIENCE)
    now["step"] = step.number + 1
    time.sleep(PACE)
