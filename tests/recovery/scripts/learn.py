"""A training with all that is hard to put back; each rank keeps a ledger of what it has done.

MODEL: mlp (SGD with momentum), cnn (dropout, BatchNorm, AdamW, cosine), gpt (dropout, AMP scaler,
accumulation), stock (a DataLoader of torch's own with two workers that shuffles). OUT has the
ledgers, one line a step: attempt, generation, step, digest of the parameters, samples, learning
rate.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import torchloom as loom

SAMPLES, BATCH, EPOCHS = int(os.environ.get("SAMPLES", 96)), 4, int(os.environ.get("EPOCHS", 5))
MODEL = os.environ.get("MODEL", "mlp")


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples that know their number; each is drawn anew, as an augmentation does it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        own = torch.Generator().manual_seed(index)
        if MODEL == "gpt":
            tokens = torch.randint(0, 32, (17,), generator=own)
            return tokens[:-1], tokens[1:], index
        size = (1, 8, 8) if MODEL == "cnn" else (32,)
        sample = torch.randn(size, generator=own) + 0.1 * torch.randn(size)
        return sample, torch.randint(0, 10, (), generator=own), index


class Gpt(nn.Module):
    """Two blocks, registered in another order than they are used in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.embedding = nn.Embedding(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embedding(tokens)
        for block in self.blocks:
            found = block(found)
        answer: Tensor = self.head(found)
        return answer


def network() -> nn.Module:
    if MODEL == "gpt":
        return Gpt()
    if MODEL == "cnn":
        body = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*body, nn.Dropout(0.3), nn.Linear(512, 10))
    layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def digest(model: nn.Module) -> str:
    told = hashlib.sha256()
    for each in model.parameters():
        told.update(each.detach().numpy().tobytes())
    return told.hexdigest()[:20]


dist.init_process_group("gloo")
torch.manual_seed(7)
run = loom.init(project="proof")
run.checkpointing(every_n_steps=int(os.environ.get("EVERY", 10)), keep_last=1000)
model = run.wrap(network())
rate = 0.05 if MODEL in ("mlp", "stock") else 0.003
optimizer: torch.optim.Optimizer
if MODEL in ("mlp", "stock"):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7, enabled=MODEL == "gpt")
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60) if MODEL == "cnn" else None
run.track(optimizer=optimizer, scaler=scaler, **({"scheduler": scheduler} if scheduler else {}))

rates = [0.0]  # what the last step used, inside of which a change from outside acts
optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
data = Numbered()
if MODEL == "stock":
    sampler: DistributedSampler[tuple[Tensor, Tensor, int]] = DistributedSampler(data, world, rank)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=2)
else:
    loader = run.loader(data, batch_size=BATCH)

ledger = os.open(Path(os.environ["OUT"], f"rank-{rank}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
attempt, generation = os.environ.get("LOOM_ATTEMPT", "0"), os.environ.get("LOOM_GENERATION", "0")
pace = float(os.environ.get("PACE" if generation == "0" else "LATER_PACE", 0))
for step in run.steps(loader, epochs=EPOCHS):
    samples, targets, numbers = step.batch
    parts = [slice(0, None, 2), slice(1, None, 2)] if MODEL == "gpt" else [slice(None)]
    with step:
        for part in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=MODEL == "gpt"):
                outputs = model(samples[part])
                loss = nn.functional.cross_entropy(
                    outputs.flatten(0, -2).float(), targets[part].flatten()
                )
            scaler.scale(loss / len(parts)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        step.log(loss=loss)
    line = [
        attempt,
        generation,
        step.number,
        digest(model),
        step.epoch,
        numbers.tolist(),
        rates[-1],
    ]
    os.write(ledger, (json.dumps(line) + "\n").encode())
    time.sleep(pace)
